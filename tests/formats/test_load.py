"""Loading: where a checkpoint is found, which settings count, complete or not at all."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrine
from tests.formats import cases
from tests.formats.cases import assert_same_weights, forget, load_quietly, make_checkpoint, run, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint, load_model, replace_class_names
from vitrine.models.config import ViTConfig
from vitrine.models.vit import VisionTransformer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "ours", "vitrine")
    return tmp_path / "ours"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Write a file in timm's format without metadata, of width 128."""
    config = ViTConfig(**{**cases.SMALL, "width": 128}, gelu="erf", num_classes=5)
    save_quietly(make_checkpoint(config), tmp_path / "bare.safetensors", "timm")
    return forget(tmp_path / "bare.safetensors")


def test_public_functions(folder: Path) -> None:
    model = vitrine.load_model(folder)
    assert not model.training
    assert_same_weights(model, vitrine.load_checkpoint(folder).model)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_file_names_do_not_matter(bare: Path, tmp_path: Path) -> None:
    expected = load_quietly(bare).model
    for name in ("weights.bin", "weights", "weights.safetensors.backup"):
        shutil.copy(bare, tmp_path / name)
        assert_same_weights(load_quietly(tmp_path / name).model, expected)


def test_a_checkpoint_is_returned_as_it_is_or_as_a_changed_copy(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    assert load_checkpoint(checkpoint) is checkpoint
    assert load_model(checkpoint) is checkpoint.model
    resized = load_checkpoint(checkpoint, image_size=36)
    assert_same_weights(resized.model, load_model(folder, image_size=36))
    assert resized.preprocessing.crop == (36, 36)
    assert load_quietly(checkpoint, num_classes=2).model.config.num_classes == 2
    with pytest.warns(VitrineWarning, match="replaces"):
        chosen = load_checkpoint(checkpoint, overrides=Overrides(preprocess="imagenet"))
    assert chosen.preprocessing == build_imagenet_preprocessing((24, 24))
    assert checkpoint.model.config == cases.VIT
    assert all(torch.equal(before[name], tensor) for name, tensor in checkpoint.model.state_dict().items())
    with pytest.raises(ValueError, match="gelu"):
        load_checkpoint(checkpoint, overrides=Overrides(gelu="erf"))


def test_no_checkpoint(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No checkpoint at .*nowhere.* ours"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no weights .*nothing"):
        load_model(tmp_path / "empty")


def test_several_weights_files(tmp_path: Path, bare: Path) -> None:
    shutil.copy(bare, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"bare.safetensors, other.safetensors"):
        load_model(tmp_path)


def test_a_new_head_is_reported(folder: Path) -> None:
    with pytest.warns(VitrineWarning, match="5 classes, not 9: its head"):
        checkpoint = load_checkpoint(folder, num_classes=9)
    assert checkpoint.class_names is None
    assert not run(checkpoint.model).any()
    assert run(checkpoint.model).shape == (3, 9)


def test_the_same_number_of_classes_keeps_the_head(folder: Path) -> None:
    assert_same_weights(load_model(folder, num_classes=5), load_model(folder))


def test_another_size_resizes_positions_and_preprocessing(folder: Path) -> None:
    checkpoint = load_checkpoint(folder, image_size=(36, 48))
    assert checkpoint.model.config.image_size == checkpoint.preprocessing.crop == (36, 48)
    expected = load_model(folder)
    expected.resize((36, 48))
    assert_same_weights(checkpoint.model, expected)


def test_resize_methods(folder: Path) -> None:
    by_method = [load_model(folder, image_size=36, resize_method=method) for method in ("paper", "timm", "hf")]
    tables = [model.state_dict()["positions.0.table"] for model in by_method]
    assert not torch.allclose(tables[0], tables[1])
    assert not torch.allclose(tables[0], tables[2])


def test_overrides_state_what_a_bare_file_does_not(bare: Path) -> None:
    overrides = Overrides(gelu="erf", norm_eps=1e-3, num_heads=4, preprocess="imagenet")
    checkpoint = load_checkpoint(bare, overrides=overrides)  # no warning: nothing is left to assume
    config = checkpoint.model.config
    assert (config.gelu, config.norm_eps, config.num_heads) == ("erf", 1e-3, 4)
    assert checkpoint.preprocessing == build_imagenet_preprocessing((24, 24))


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [("gelu", "erf", "tanh"), ("norm_eps", 1e-3, 1e-6), ("num_heads", 4, 2), ("grid", (4, 9), (6, 6))],
)
def test_overrides_that_a_checkpoint_contradicts_are_errors(name: str, other: Any, same: Any, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"{name}=.* contradicts"):
        load_checkpoint(folder, overrides=Overrides(**{name: other}))
    assert getattr(load_checkpoint(folder, overrides=Overrides(**{name: same})).model.config, name) == same


def test_another_preprocessing_replaces_a_stated_one_with_a_notice(folder: Path) -> None:
    stated = load_checkpoint(folder).preprocessing
    with pytest.warns(VitrineWarning, match="preprocessing .* replaces"):
        chosen = load_checkpoint(folder, overrides=Overrides(preprocess="imagenet"))
    assert chosen.preprocessing == build_imagenet_preprocessing((24, 24)) != stated
    assert load_checkpoint(folder, overrides=Overrides(preprocess=stated)).preprocessing == stated  # equal: no notice


def test_other_class_names_replace_stated_ones_with_a_notice(folder: Path) -> None:
    checkpoint = load_checkpoint(folder)
    assert replace_class_names(checkpoint, None) is checkpoint
    assert replace_class_names(checkpoint, checkpoint.class_names).class_names == checkpoint.class_names
    with pytest.warns(VitrineWarning, match="class names .* replace"):
        assert replace_class_names(checkpoint, tuple("vwxyz")).class_names == tuple("vwxyz")


def test_norms_use_the_overridden_epsilon(bare: Path) -> None:
    model = load_quietly(bare, Overrides(norm_eps=1e-3)).model
    assert {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)} == {1e-3}


def test_one_warning_names_every_assumption(bare: Path) -> None:
    with pytest.warns(VitrineWarning) as caught:
        load_model(bare)
    assert len(caught) == 1
    for option in ("num_heads", "gelu", "norm_eps", "preprocess"):
        assert option in str(caught[0].message)


def test_preprocessing_from_a_file(bare: Path, tmp_path: Path) -> None:
    wanted = build_inception_preprocessing((24, 24))
    contents: dict[str, Any] = {
        "alone.json": wanted.to_json(),
        "ours.json": {"preprocessing": wanted.to_json()},
        "theirs.json": {"do_resize": True, "size": {"height": 24, "width": 24}, "resample": 2},
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(json.dumps(content))
        assert load_quietly(bare, Overrides(preprocess=tmp_path / name)).preprocessing == wanted
    with pytest.raises(FileNotFoundError, match=r"none.json"):
        load_quietly(bare, Overrides(preprocess=tmp_path / "none.json"))


def test_preprocessing_for_the_final_image_size(bare: Path, tmp_path: Path) -> None:
    wanted = build_imagenet_preprocessing((36, 36))
    (tmp_path / "for-36.json").write_text(json.dumps(wanted.to_json()))
    overrides = Overrides(preprocess=tmp_path / "for-36.json")
    assert load_quietly(bare, overrides, image_size=36).preprocessing == wanted


def test_overrides_that_change_nothing_are_errors(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "a.npz", "google-2020")
    with pytest.raises(ValueError, match=r"4 contradicts .* 2"):
        load_quietly(forget(tmp_path / "a.npz"), Overrides(num_heads=4))
    save_quietly(make_checkpoint(ViTConfig(**cases.SMALL, mlp="swiglu")), tmp_path / "out", "vitrine")
    with pytest.raises(ValueError, match=r"gelu=erf .*SwiGLU"):
        load_quietly(tmp_path / "out", Overrides(gelu="erf"))
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "bit", "vitrine")
    with pytest.raises(ValueError, match="timm"):
        load_quietly(tmp_path / "bit", image_size=64, resize_method="timm")


def test_a_hidden_layer_replaced_with_its_head_is_reported(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(replace(cases.VIT, hidden_head=True)), tmp_path / "out", "vitrine")
    with pytest.warns(VitrineWarning, match="hidden layer"):
        assert not load_model(tmp_path / "out", num_classes=2).config.hidden_head


def test_an_image_size_beyond_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 32 TB")

    monkeypatch.setattr(VisionTransformer, "resize", fail)
    with pytest.raises(ValueError, match=r"9000.*DefaultCPUAllocator"):
        load_model(folder, image_size=9000)


@pytest.mark.parametrize("prefix", ["module.", "params/"])
def test_tensors_beside_a_prefix_are_not_dropped(prefix: str, bare: Path, tmp_path: Path) -> None:
    state = load_file(bare)
    names = {name: name if name.startswith("head.") else f"{prefix}{name}" for name in state}
    strange = {f"{prefix}{name}": tensor for name, tensor in state.items()} | {"totally.unexpected": torch.zeros(2)}
    save_file({names[name]: tensor for name, tensor in state.items()}, tmp_path / "half.safetensors")
    save_file(strange, tmp_path / "strange.safetensors")
    assert load_quietly(tmp_path / "half.safetensors").model.config.num_classes == 5
    with pytest.raises(ValueError, match=r"unexpected: totally\.unexpected"):
        load_quietly(tmp_path / "strange.safetensors")


def test_a_grid_that_contradicts_the_checkpoint(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"\(4, 9\) contradicts .*\(6, 6\)"):
        load_model(folder, overrides=Overrides(grid=(4, 9)))


def test_overrides_of_a_resnet(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "a.npz", "bit")
    with pytest.raises(ValueError, match=r"gelu, grid .*ResNet"):
        load_quietly(tmp_path / "a.npz", Overrides(gelu="erf", grid=(2, 2)))


@pytest.mark.parametrize("fmt", ["vitrine", "timm", "google-2020"])
def test_replaced_weights_are_detected(fmt: Any, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    path = tmp_path / f"out{cases.ENDINGS[fmt]}"
    save_quietly(checkpoint, path, fmt)
    file = path / "model.safetensors" if fmt == "vitrine" else path
    if fmt == "google-2020":
        arrays = dict(np.load(file))
        arrays["head/bias"] = arrays["head/bias"] + 1
        np.savez(file, **arrays)
    else:
        from safetensors import safe_open

        with safe_open(file, "pt") as old:
            metadata = old.metadata()
        state = load_file(file)
        state["head.bias"] = state["head.bias"] + 1
        save_file(state, file, metadata=metadata)
    with pytest.raises(ValueError, match="checksum"):
        load_model(path)


def test_half_precision_is_widened_exactly(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    checkpoint.model.half()
    save_quietly(checkpoint, tmp_path / "out", "vitrine")
    assert load_file(tmp_path / "out" / "model.safetensors")["head.weight"].dtype == torch.float16
    again = load_checkpoint(tmp_path / "out").model
    checkpoint.model.float()
    assert_same_weights(again, checkpoint.model)


def test_bfloat16_through_npz(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    checkpoint.model.bfloat16()
    save_quietly(checkpoint, tmp_path / "a.npz", "google-linen")
    checkpoint.model.float()
    assert_same_weights(load_checkpoint(tmp_path / "a.npz").model, checkpoint.model)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("depth", 10**6, "1,000,000 blocks .* 32 tensors"),
        ("width", 24, "wrong shape: "),
        ("depth", 1, "unexpected: "),
        ("patch_size", 10**7, "patch"),
        ("num_heads", 3, "num_heads=3"),
    ],
)
def test_metadata_that_does_not_fit(field: str, value: int, sentence: str, folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["model"][field] = value
    del content["metadata_checksum"]
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=sentence):
        load_model(folder)

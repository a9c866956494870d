"""Loading: where a checkpoint is found, whose word counts, whole or refused."""

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
from vitrine.formats.load import load_checkpoint, load_model
from vitrine.models.config import ViTConfig
from vitrine.models.vit import VisionTransformer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "ours", "vitrine")
    return tmp_path / "ours"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A file of timm's that says nothing of itself, 128 wide."""
    config = ViTConfig(**{**cases.SMALL, "width": 128}, gelu="erf", num_classes=5)
    save_quietly(make_checkpoint(config), tmp_path / "bare.safetensors", "timm")
    return forget(tmp_path / "bare.safetensors")


def test_the_public_names(folder: Path) -> None:
    model = vitrine.load_model(folder)
    assert not model.training
    assert_same_weights(model, vitrine.load_checkpoint(folder).model)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["weights.bin", "weights", "weights.safetensors.backup"])
def test_the_name_of_a_file_does_not_matter(name: str, bare: Path, tmp_path: Path) -> None:
    shutil.copy(bare, tmp_path / name)
    assert_same_weights(load_quietly(tmp_path / name).model, load_quietly(bare).model)


def test_nothing_there(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No checkpoint at .*nowhere; in that place: ours\. Give a folder"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no weights \(model.safetensors, .*\); it holds: nothing"):
        load_model(tmp_path / "empty")


def test_several_files_of_weights(tmp_path: Path, bare: Path) -> None:
    shutil.copy(bare, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"several files of weights, bare.safetensors, other.safetensors: give one"):
        load_model(tmp_path)


def test_a_new_head_is_said_aloud(folder: Path) -> None:
    with pytest.warns(VitrineWarning, match=r"has 5 classes and 9 were asked for: its head was replaced by a new one of zeros"):
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


def test_positions_can_be_resized_as_peers_do(folder: Path) -> None:
    by_method = [load_model(folder, image_size=36, resize_method=method) for method in ("paper", "timm", "hf")]
    tables = [model.state_dict()["positions.0.table"] for model in by_method]
    assert not torch.allclose(tables[0], tables[1])
    assert not torch.allclose(tables[0], tables[2])


def test_the_users_word_counts_most(folder: Path, bare: Path) -> None:
    overrides = Overrides(gelu="erf", norm_eps=1e-3, num_heads=4, preprocess="imagenet")
    for path in (folder, bare):
        checkpoint = load_checkpoint(path, overrides=overrides)  # no notice: nothing is left to assume
        config = checkpoint.model.config
        assert (config.gelu, config.norm_eps, config.num_heads) == ("erf", 1e-3, 4)
        assert checkpoint.preprocessing == build_imagenet_preprocessing((24, 24))


def test_the_norms_compute_with_the_users_epsilon(bare: Path) -> None:
    model = load_quietly(bare, Overrides(norm_eps=1e-3)).model
    assert {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)} == {1e-3}


def test_one_notice_names_every_assumption(bare: Path) -> None:
    with pytest.warns(VitrineWarning) as notices:
        load_model(bare)
    assert len(notices) == 1
    for option in ("--num-heads", "--gelu", "--norm-eps", "--preprocess"):
        assert option in str(notices[0].message)


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
    with pytest.raises(FileNotFoundError, match=r"--preprocess .*none.json is neither imagenet, inception nor a file"):
        load_quietly(bare, Overrides(preprocess=tmp_path / "none.json"))


def test_preprocessing_for_the_size_that_the_model_gets(bare: Path, tmp_path: Path) -> None:
    wanted = build_imagenet_preprocessing((36, 36))
    (tmp_path / "for-36.json").write_text(json.dumps(wanted.to_json()))
    overrides = Overrides(preprocess=tmp_path / "for-36.json")
    assert load_quietly(bare, overrides, image_size=36).preprocessing == wanted


def test_words_that_change_nothing_are_refused(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "a.npz", "google-2020")
    with pytest.raises(ValueError, match=r"num_heads=4 contradicts .*, whose kernels have 2"):
        load_quietly(forget(tmp_path / "a.npz"), Overrides(num_heads=4))
    save_quietly(make_checkpoint(ViTConfig(**cases.SMALL, mlp="swiglu")), tmp_path / "out", "vitrine")
    with pytest.raises(ValueError, match="gelu=erf is said of a model with SwiGLU, which has none"):
        load_quietly(tmp_path / "out", Overrides(gelu="erf"))
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "bit", "vitrine")
    with pytest.raises(ValueError, match="A ResNet has no positions to resize by method='timm'"):
        load_quietly(tmp_path / "bit", image_size=64, resize_method="timm")


def test_a_hidden_layer_that_goes_with_its_head_is_named(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(replace(cases.VIT, hidden_head=True)), tmp_path / "out", "vitrine")
    with pytest.warns(VitrineWarning, match="its head and the hidden layer before it were replaced"):
        assert not load_model(tmp_path / "out", num_classes=2).config.hidden_head


def test_a_size_beyond_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 32 TB")

    monkeypatch.setattr(VisionTransformer, "resize", fail)
    with pytest.raises(ValueError, match=r"image_size=\(9000, 9000\) is too much for this machine: DefaultCPUAllocator"):
        load_model(folder, image_size=9000)


@pytest.mark.parametrize("prefix", ["module.", "params/"])
def test_nothing_beside_a_prefix_is_dropped_quietly(prefix: str, bare: Path, tmp_path: Path) -> None:
    state = load_file(bare)
    names = {name: name if name.startswith("head.") else f"{prefix}{name}" for name in state}
    strange = {f"{prefix}{name}": tensor for name, tensor in state.items()} | {"totally.unexpected": torch.zeros(2)}
    save_file({names[name]: tensor for name, tensor in state.items()}, tmp_path / "half.safetensors")
    save_file(strange, tmp_path / "strange.safetensors")
    assert load_quietly(tmp_path / "half.safetensors").model.config.num_classes == 5
    with pytest.raises(ValueError, match=r"unexpected: totally\.unexpected\."):
        load_quietly(tmp_path / "strange.safetensors")


def test_a_grid_that_contradicts_what_is_known(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"grid=\(4, 9\) contradicts the checkpoint, which knows its grid to be \(6, 6\)"):
        load_model(folder, overrides=Overrides(grid=(4, 9)))


def test_a_word_on_a_resnet_that_is_none(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "a.npz", "bit")
    with pytest.raises(ValueError, match="gelu, grid is said of a ResNet, which has no such thing"):
        load_quietly(tmp_path / "a.npz", Overrides(gelu="erf", grid=(2, 2)))


@pytest.mark.parametrize("form", ["vitrine", "timm", "google-2020"])
def test_exchanged_weights_are_noticed(form: Any, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    path = tmp_path / f"out{cases.ENDINGS[form]}"
    save_quietly(checkpoint, path, form)
    file = path / "model.safetensors" if form == "vitrine" else path
    if form == "google-2020":
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
    with pytest.raises(ValueError, match=r"not the ones that its description was written for \(checksum\)"):
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
        ("depth", 10**6, "describes 1,000,000 blocks and has 32 tensors"),
        ("width", 24, "misshapen: "),
        ("depth", 1, "unexpected: "),
        ("patch_size", 10**7, "must hold at least one patch"),
        ("num_heads", 3, "must be divisible by num_heads=3"),
    ],
)
def test_a_description_that_does_not_fit(field: str, value: int, sentence: str, folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    content["model"][field] = value
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=sentence):
        load_model(folder)

"""Hugging Face folders, read and written, compared with transformers itself."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    BitConfig,
    BitForImageClassification,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers import logging as transformers_logging

from tests.filling import fill_randomly
from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models import config as configs

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "patch_size": 4,
}
PROCESSOR = {
    "size": {"height": 28, "width": 28},
    "resample": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_normalize": True,
}


@pytest.fixture(autouse=True)
def quiet_bars() -> None:
    transformers_logging.disable_progress_bar()


def write_peer(peer: Any, folder: Path, processor: dict[str, Any] | None = None) -> Any:
    fill_randomly(peer)
    peer.eval().save_pretrained(folder)
    if processor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return peer


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "changes",
    [
        {"image_size": 28},
        {"image_size": (20, 36)},
        {"image_size": 28, "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "num_channels": 1},
        {"image_size": 28, "hidden_act": "quick_gelu", "qkv_bias": False},
    ],
)
@torch.no_grad()
def test_read_vit(changes: dict[str, Any], tmp_path: Path) -> None:
    """Only the preprocessing is assumed: config.json states everything else."""
    peer = write_peer(ViTForImageClassification(ViTConfig(**SIZES, **changes, num_labels=6)), tmp_path)
    with pytest.warns(VitrineWarning, match=r"defaults of hf: resize to \d+ x \d+ pixels, [^;]*\.$"):
        model = load_checkpoint(tmp_path).model
    images = draw(2, model.config.num_channels, *model.config.image_size)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_complete_folder_needs_no_assumptions(tmp_path: Path) -> None:
    labels = {index: f"kind {index}" for index in range(6)}
    peer = ViTForImageClassification(ViTConfig(**SIZES, image_size=28, id2label=labels, label2id={}))
    write_peer(peer, tmp_path, PROCESSOR)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.class_names == tuple(labels.values())
    assert checkpoint.preprocessing.resize == (28, 28)
    assert checkpoint.provenance["format"] == "hf"


@torch.no_grad()
def test_names_of_both_versions_are_read(tmp_path: Path) -> None:
    """transformers 5 renames on loading and writes the names of 4; its own names are those of its state dict."""
    peer = ViTForImageClassification(ViTConfig(**SIZES, image_size=28, num_labels=6))
    write_peer(peer, tmp_path / "four", PROCESSOR)
    assert "vit.encoder.layer.0.attention.attention.query.weight" in load_file(tmp_path / "four" / "model.safetensors")
    write_peer(peer, tmp_path / "five", PROCESSOR)
    save_file(peer.state_dict(), tmp_path / "five" / "model.safetensors")
    assert "vit.layers.0.attention.q_proj.weight" in load_file(tmp_path / "five" / "model.safetensors")
    images = draw(2, 3, 28, 28)
    for name in ("four", "five"):
        torch.testing.assert_close(load_checkpoint(tmp_path / name).model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_shards(tmp_path: Path) -> None:
    peer = ViTForImageClassification(ViTConfig(**SIZES, image_size=28, num_labels=6))
    write_peer(peer, tmp_path / "whole", PROCESSOR)
    peer.save_pretrained(tmp_path / "parts", max_shard_size="20kB")
    assert len(list((tmp_path / "parts").glob("model-*.safetensors"))) > 2
    images = draw(2, 3, 28, 28)
    torch.testing.assert_close(load_quietly(tmp_path / "parts").model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_read_a_model_with_a_pooler_and_no_head(tmp_path: Path) -> None:
    peer = write_peer(ViTModel(ViTConfig(**SIZES, image_size=28)), tmp_path, PROCESSOR)
    model = load_checkpoint(tmp_path).model
    assert (model.config.num_classes, model.config.hidden_head) == (0, True)
    images = draw(2, 3, 28, 28)
    torch.testing.assert_close(model(images), peer(images).pooler_output, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_read_distilled_deit(tmp_path: Path) -> None:
    peer = DeiTForImageClassificationWithTeacher(DeiTConfig(**SIZES, image_size=28, num_labels=6))
    write_peer(peer, tmp_path, PROCESSOR)
    images = draw(2, 3, 28, 28)
    torch.testing.assert_close(load_checkpoint(tmp_path).model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_read_bit(tmp_path: Path) -> None:
    config = BitConfig(depths=[2, 1], hidden_sizes=[128, 256], embedding_size=32, num_groups=16, num_labels=6)
    processor = {**PROCESSOR, "size": {"shortest_edge": 50}, "crop_size": {"height": 44, "width": 52}, "do_center_crop": True}
    peer = write_peer(BitForImageClassification(config), tmp_path, processor)
    model = load_checkpoint(tmp_path).model
    assert model.config.image_size == (44, 52)
    images = draw(2, 3, 44, 52)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


WRITTEN = [
    (ViTForImageClassification, {"num_classes": 6}),
    (ViTForImageClassification, {"num_classes": 6, "image_size": (20, 36), "gelu": "erf", "norm_eps": 1e-12}),
    (ViTForImageClassification, {"num_classes": 6, "class_position": False, "num_channels": 1}),
    (DeiTForImageClassificationWithTeacher, {"num_classes": 6, "distillation_token": True}),
    (ViTForImageClassification, {"num_classes": 6, "qkv_bias": False, "gelu": "quick"}),
    (ViTModel, {"num_classes": 0, "hidden_head": True}),
    (ViTModel, {"num_classes": 0, "hidden_head": True, "hidden_head_dim": 10}),
]


@pytest.mark.parametrize(("kind", "changes"), WRITTEN)
@torch.no_grad()
def test_write_vit(kind: Any, changes: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configs.ViTConfig(**{**cases.SMALL, **changes})
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "out", "hf")
    peer = load_peer(kind, tmp_path / "out", caplog)
    images = draw(2, config.num_channels, *config.image_size)
    expected = peer(images).logits if config.num_classes > 0 else peer(images).pooler_output
    torch.testing.assert_close(checkpoint.model(images), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_write_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configs.ResNetConfig(stages=(2, 1), width_factor=0.5, num_groups=16, num_classes=6, image_size=(44, 52))
    checkpoint = make_checkpoint(config)
    with pytest.warns(VitrineWarning, match="epsilons 1e-05 and 1e-10"):
        save_checkpoint(checkpoint, tmp_path / "out", "hf")
    peer = load_peer(BitForImageClassification, tmp_path / "out", caplog)
    images = draw(2, 3, 44, 52)
    torch.testing.assert_close(checkpoint.model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


def load_peer(kind: Any, folder: Path, caplog: pytest.LogCaptureFixture) -> Any:
    """Load with `from_pretrained`, which must find every weight and log nothing."""
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            peer, info = kind.from_pretrained(folder, output_loading_info=True)
    finally:
        transformers_logging.disable_propagation()
    assert {name: list(found) for name, found in info.items() if found} == {}
    assert [record.message for record in caplog.records] == []
    return peer.eval()


def test_names_of_transformers_5_are_written(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "hf")
    peer = ViTForImageClassification(ViTConfig(**{**SIZES, "hidden_size": 16, "num_attention_heads": 2}, num_labels=5))
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(peer.state_dict())


def test_weights_without_config(tmp_path: Path) -> None:
    peer = write_peer(ViTForImageClassification(ViTConfig(**SIZES, image_size=28, num_labels=6)), tmp_path)
    path = (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    with pytest.warns(VitrineWarning, match=r"erf GELU \(gelu\); LayerNorm epsilon 1e-12 \(norm_eps\)"):
        model = load_checkpoint(path, overrides=Overrides(num_heads=4)).model
    images = draw(2, 3, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "hidden_size=64.* 16"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"model_type": "dinov2"}, "'dinov2'.*vit, deit"),
        ({"image_size": "large"}, "image_size='large'"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps='small'"),
        ({"num_attention_heads": -1}, "num_attention_heads=-1"),
        ({"image_size": 1000}, "37 positions.*250 x 250"),
    ],
)
def test_a_wrong_config_is_an_error(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "hf")
    forget(tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        load_quietly(tmp_path / "out")


@pytest.mark.parametrize(
    "changes", [{"pool": "mean"}, {"num_registers": 1}, {"hidden_head": True}, {"mlp": "swiglu"}, {"pre_norm": True}]
)
def test_unsupported_models(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hf cannot hold"):
        save_quietly(make_checkpoint(configs.ViTConfig(**cases.SMALL, **changes)), tmp_path / "out", "hf")
    assert not (tmp_path / "out").exists()


def change(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_pooler_beside_the_classifier_is_dropped(tmp_path: Path) -> None:
    """transformers ignores it; as a hidden layer it would change every prediction."""
    peer = write_peer(ViTForImageClassification(ViTConfig(**SIZES, image_size=28, num_labels=6)), tmp_path, PROCESSOR)
    state = load_file(tmp_path / "model.safetensors")
    pooler = {"vit.pooler.dense.weight": torch.randn(32, 32), "vit.pooler.dense.bias": torch.randn(32)}
    save_file(state | pooler, tmp_path / "model.safetensors")
    with pytest.warns(VitrineWarning, match="pooler"):
        model = load_checkpoint(tmp_path).model
    images = draw(2, 3, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changes", [{"output_stride": 16}, {"layer_type": "bottleneck"}, {"global_padding": "same"}])
def test_other_variants_of_bit_are_errors(changes: dict[str, Any], tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "out", "hf")
    forget(tmp_path / "out")
    change(tmp_path / "out", "config.json", **changes)
    with pytest.raises(ValueError, match=next(iter(changes))):
        load_quietly(tmp_path / "out")


def test_edited_json_counts(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "hf")
    change(tmp_path / "out", "config.json", layer_norm_eps=1e-3)
    change(tmp_path / "out", "preprocessor_config.json", image_mean=[0.1, 0.2, 0.3])
    with pytest.warns(VitrineWarning, match="edited"):
        checkpoint = load_checkpoint(tmp_path / "out")
    assert checkpoint.model.config.norm_eps == 1e-3
    assert checkpoint.preprocessing.mean == (0.1, 0.2, 0.3)


def test_an_override_replaces_a_preprocessing_that_does_not_fit(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "hf")
    forget(tmp_path / "out")
    change(tmp_path / "out", "preprocessor_config.json", crop_size={"height": 9, "width": 9})
    with pytest.raises(ValueError, match=r"9 x 9 pixels.*preprocess"):
        load_checkpoint(tmp_path / "out")
    with pytest.warns(VitrineWarning, match="replaces"):
        checkpoint = load_checkpoint(tmp_path / "out", overrides=Overrides(preprocess="imagenet"))
    assert checkpoint.preprocessing.crop == (24, 24)


def test_a_grid_that_config_json_contradicts_is_refused(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.VIT), tmp_path / "out", "hf")
    with pytest.raises(ValueError, match=r"grid=\(4, 9\) contradicts"):
        load_quietly(forget(tmp_path / "out"), Overrides(grid=(4, 9)))
    assert load_quietly(tmp_path / "out", Overrides(grid=(6, 6))).model.config.grid == (6, 6)


@torch.no_grad()
def test_the_hidden_layer_becomes_the_pooler(tmp_path: Path) -> None:
    """Without the head, the hidden layer of the ImageNet-21k files is transformers' pooler."""
    checkpoint = make_checkpoint(configs.ViTConfig(**cases.SMALL, hidden_head=True, num_classes=5))
    save_quietly(checkpoint, tmp_path / "a.npz", "google-2020")
    with pytest.warns(VitrineWarning, match="removed"):
        headless = load_checkpoint(tmp_path / "a.npz", num_classes=0)
    save_quietly(headless, tmp_path / "out", "hf")
    images = draw(2, 3, 24, 24)
    peer = ViTModel.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(headless.model(images), peer(images).pooler_output, rtol=1e-5, atol=1e-5)


def test_a_model_without_head_and_pooler_is_reported(tmp_path: Path) -> None:
    with pytest.warns(VitrineWarning, match="add_pooling_layer=False"):
        save_checkpoint(make_checkpoint(replace(cases.VIT, num_classes=0)), tmp_path / "out", "hf")

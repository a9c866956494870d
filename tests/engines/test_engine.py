"""TorchEngine against the model itself: normalisation, features, attention maps, evaluation mode, fingerprint."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.engines.engine import TorchEngine
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig, ViTConfig

PREPROCESSING = build_inception_preprocessing((32, 32))
VIT: dict[str, Any] = {"width": 24, "depth": 2, "num_heads": 2, "mlp_dim": 40, "hidden_head": True, "dropout_rate": 0.5}


def draw_images(checkpoint: Checkpoint, num_images: int = 3) -> Tensor:
    size = (num_images, checkpoint.preprocessing.num_channels, *checkpoint.preprocessing.crop)
    return torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_logits_are_those_of_the_normalised_images(config: ModelConfig) -> None:
    checkpoint = make_checkpoint(config)
    images = draw_images(checkpoint)
    logits = TorchEngine(checkpoint).logits(images)
    mean, std = (torch.tensor(each)[:, None, None] for each in (checkpoint.preprocessing.mean, checkpoint.preprocessing.std))
    torch.testing.assert_close(logits, checkpoint.model((images / 255 - mean) / std).detach())
    assert logits.std() > 0
    assert not logits.requires_grad


@pytest.mark.parametrize(("name", "changes"), [("ViT-Ti/16", VIT), ("R26x1", {})])
def test_head_of_features_gives_logits(name: str, changes: dict[str, Any]) -> None:
    checkpoint = Checkpoint(build_filled(name, num_classes=7, image_size=32, **changes), PREPROCESSING)
    engine, images = TorchEngine(checkpoint), draw_images(checkpoint)
    with torch.no_grad():
        torch.testing.assert_close(checkpoint.model.head(engine.features(images)), engine.logits(images))


def test_model_is_put_into_evaluation_mode() -> None:
    checkpoint = Checkpoint(build_filled("ViT-Ti/16", num_classes=7, image_size=32, **VIT).train(), PREPROCESSING)
    engine, images = TorchEngine(checkpoint), draw_images(checkpoint)
    assert torch.equal(engine.features(images), engine.features(images))  # no dropout
    assert torch.equal(engine.logits(images), engine.logits(images))


def test_attention_maps_come_layer_by_layer() -> None:
    checkpoint = make_checkpoint(cases.VIT)
    images, maps = draw_images(checkpoint), {}
    TorchEngine(checkpoint).stream_attention(images, lambda layer, attention: maps.update({layer: attention}))
    names = [name for name in checkpoint.model.intermediates if name.endswith(".attention")]
    kept = checkpoint.model.encode(checkpoint.preprocessing.normalise(images), keep=names).kept
    assert list(maps) == list(range(len(names)))
    for layer, name in enumerate(names):
        assert torch.equal(maps[layer], kept[name])


def test_engine_knows_classes() -> None:
    named = make_checkpoint(cases.VIT)
    engine = TorchEngine(named)
    assert (engine.num_classes, engine.class_names) == (5, named.class_names)
    assert TorchEngine(make_checkpoint(ViTConfig(**cases.SMALL, num_classes=0))).num_classes == 0


def test_fingerprint_changes_with_weights_config_and_preprocessing_only() -> None:
    checkpoint = make_checkpoint(cases.VIT)
    key = TorchEngine(checkpoint).fingerprint()
    assert TorchEngine(replace(checkpoint, class_names=None, provenance={"read": "elsewhere"})).fingerprint() == key
    other_gelu = replace(checkpoint, model=build_filled(replace(cases.VIT, gelu="erf")))
    other_std = replace(checkpoint, preprocessing=replace(checkpoint.preprocessing, std=(1.0, 1.0, 1.0)))
    other_weight = make_checkpoint(cases.VIT)
    with torch.no_grad():
        next(other_weight.model.parameters()).view(-1)[0] += 1.0
    keys = {TorchEngine(each).fingerprint() for each in (checkpoint, other_gelu, other_std, other_weight)}
    assert len(keys) == 4


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_computed_in_it_and_close(config: ModelConfig, precision: Any) -> None:
    checkpoint = make_checkpoint(config)
    images = draw_images(checkpoint)
    exact, half = TorchEngine(checkpoint), TorchEngine(checkpoint, precision=precision)
    for name in ("logits", "features"):
        expected, found = (getattr(engine, name)(images).float() for engine in (exact, half))
        assert not torch.equal(found, expected)
        assert (found - expected).norm() < 0.05 * expected.norm()  # bfloat16 has 8 bits
    assert half.logits(images).dtype == getattr(torch, precision)
    assert all(parameter.dtype == torch.float32 for parameter in checkpoint.model.parameters())


def test_attention_maps_of_half_precision_are_float32_and_so_is_what_is_made_of_them() -> None:
    checkpoint = make_checkpoint(cases.VIT)
    products: list[Tensor] = []
    engine = TorchEngine(checkpoint, precision="bfloat16")
    engine.stream_attention(draw_images(checkpoint), lambda layer, maps: products.append(maps @ maps))
    assert {product.dtype for product in products} == {torch.float32}


def test_precision_is_part_of_the_key_of_features_and_float32_keeps_its_old_one() -> None:
    checkpoint = make_checkpoint(cases.VIT)
    precisions: tuple[Any, ...] = ("auto", "float32", "bfloat16", "float16")
    keys = [TorchEngine(checkpoint, precision=precision).fingerprint() for precision in precisions]
    assert keys[0] == keys[1]  # on a CPU
    assert len(set(keys)) == 3

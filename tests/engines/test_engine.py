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

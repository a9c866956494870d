"""A checkpoint's description survives JSON, and its checksum notices everything."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint, CheckpointMetadata, compute_checksum, is_metadata, parse_metadata
from vitrine.models.config import ModelConfig

CONFIGS = [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID, cases.BIT]


def describe(config: ModelConfig = cases.VIT, **changes: Any) -> dict[str, Any]:
    """What a reader finds: through JSON, with some pieces exchanged; None takes a piece away."""
    names = tuple(f"class {index}" for index in range(config.num_classes))
    preprocessing = build_inception_preprocessing(config.image_size)
    description = CheckpointMetadata(config, preprocessing, names, {"source": "a test", "steps": [1, 2.5]}, "sha256:00")
    content = {**json.loads(json.dumps(description.to_json(), allow_nan=False)), **changes}
    return {name: value for name, value in content.items() if name not in changes or value is not None}


@pytest.mark.parametrize("config", CONFIGS)
def test_a_description_survives_json(config: ModelConfig) -> None:
    content = describe(config)
    assert is_metadata(content)
    again = parse_metadata(content, "config.json")
    assert again.config == config
    assert again.preprocessing == build_inception_preprocessing(config.image_size)
    assert again.class_names == tuple(f"class {index}" for index in range(config.num_classes))
    assert (again.provenance, again.checksum) == ({"source": "a test", "steps": [1, 2.5]}, "sha256:00")
    assert json.loads(json.dumps(again.to_json())) == content


def test_names_and_checksum_may_be_absent() -> None:
    again = parse_metadata({**describe(), "class_names": None, "checksum": None}, "config.json")
    assert (again.class_names, again.checksum) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, r"^config\.json is of format 2; this version reads format 1: install a newer one\.$"),
        ({"format": None}, r"^config\.json is of format None; this version reads format 1"),
        ({"format": [1]}, r"^config\.json is of format \[1\]"),
        ({"model": None}, r"^config\.json"),
        ({"model": 3}, r"^config\.json: A model's description must name its kind"),
        ({"model": {"kind": "vit", "width": 8}}, r"^config\.json: The description of a vit lacks depth, num_heads, mlp_dim\."),
        ({"preprocessing": None}, r"^config\.json: The preprocessing is a NoneType"),
        ({"preprocessing": {"crop": [24, 24]}}, r"^config\.json: The preprocessing's resize is missing"),
        ({"class_names": ["a", "b"]}, r"^config\.json: 2 class names do not fit a model of 5 classes: give one for each\."),
        ({"class_names": []}, r"^config\.json: 0 class names do not fit a model of 5 classes"),
        ({"class_names": "abcde"}, r"^config\.json: class_names must be a list of texts, or null\."),
        ({"class_names": [1, 2, 3, 4, 5]}, r"^config\.json: class_names must be a list of texts"),
        ({"provenance": None}, r"^config\.json must have provenance, an object, and checksum, a text\."),
        ({"provenance": "here"}, r"^config\.json must have provenance"),
        ({"checksum": 3}, r"^config\.json must have provenance, an object, and checksum, a text\."),
    ],
)
def test_a_wrong_description_costs_a_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_metadata(describe(**changes), "config.json")


def test_a_foreign_config_is_no_description() -> None:
    assert not is_metadata({"model_type": "vit", "hidden_size": 768})


def test_a_checkpoint_wants_the_models_size() -> None:
    good = make_checkpoint(cases.VIT)
    message = r"makes images of 3 x 24 x 28, and the model takes 3 x 24 x 24: give one for that size"
    with pytest.raises(ValueError, match=message):
        Checkpoint(good.model, good.preprocessing.resized((24, 28)))
    with pytest.raises(ValueError, match="makes images of 1 x 24 x 24, and the model takes 3 x 24 x 24"):
        replace(good, preprocessing=build_inception_preprocessing((24, 24), num_channels=1))
    with pytest.raises(ValueError, match="4 class names do not fit a model of 5 classes"):
        replace(good, class_names=("a", "b", "c", "d"))


TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.zeros((), dtype=torch.float64),
    "c": torch.ones(4, dtype=torch.bfloat16),
}


def test_a_checksum_does_not_depend_on_the_order() -> None:
    names = list(TENSORS)
    for seed in range(5):
        random.Random(seed).shuffle(names)
        assert compute_checksum({name: TENSORS[name] for name in names}) == compute_checksum(TENSORS)
    assert compute_checksum({**TENSORS, "a": TENSORS["a"].T.contiguous().T}) == compute_checksum(TENSORS)


@pytest.mark.parametrize(
    "changed",
    [
        {"b": torch.tensor(-0.0, dtype=torch.float64)},
        {"b": torch.tensor(1e-300, dtype=torch.float64)},
        {"b": torch.zeros(1, dtype=torch.float64)},
        {"b": torch.zeros((), dtype=torch.int64)},
        {"a": TENSORS["a"].reshape(3, 2)},
        {"a": TENSORS["a"].flip(0)},
        {"c": TENSORS["c"].half()},
        {"c": TENSORS["c"].view(torch.float16)},
        {"d": torch.zeros(0)},
    ],
)
def test_a_checksum_notices_everything(changed: dict[str, torch.Tensor]) -> None:
    assert compute_checksum({**TENSORS, **changed}) != compute_checksum(TENSORS)


def test_a_checksum_notices_names() -> None:
    renamed = {"a ": TENSORS["a"], "b": TENSORS["b"], "c": TENSORS["c"]}
    swapped = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert compute_checksum(renamed) != compute_checksum(TENSORS)
    assert compute_checksum(swapped) != compute_checksum({"a": torch.zeros(2), "b": torch.ones(2)})


def test_a_checksum_notices_any_bit() -> None:
    numbers = torch.randn(3)
    seen = {compute_checksum({"w": numbers})}
    for index in range(3):
        for bit in range(32):
            flipped = numbers.clone()
            flipped.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            seen.add(compute_checksum({"w": flipped}))
    assert len(seen) == 1 + 3 * 32

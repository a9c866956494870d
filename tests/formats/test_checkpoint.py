"""A checkpoint's metadata through JSON, and its checksum."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.filling import build_filled
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.console import VitrineWarning
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import (
    Calibration,
    Checkpoint,
    CheckpointMetadata,
    compute_checksum,
    is_metadata,
    parse_metadata,
)
from vitrine.formats.config import FormatName
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ModelConfig, ViTConfig

CONFIGS = [cases.VIT, cases.OBLONG, cases.HYBRID, cases.ROOT_HYBRID, cases.BIT]


def make_metadata(config: ModelConfig = cases.VIT, **changes: Any) -> dict[str, Any]:
    """Metadata as read from JSON, with some entries replaced; None removes an entry."""
    names = tuple(f"class {index}" for index in range(config.num_classes))
    preprocessing = build_inception_preprocessing(config.image_size)
    metadata = CheckpointMetadata(config, preprocessing, names, {"source": "a test", "steps": [1, 2.5]}, "sha256:00")
    content = {**json.loads(json.dumps(metadata.to_json(), allow_nan=False)), **changes}
    return {name: value for name, value in content.items() if name not in changes or value is not None}


@pytest.mark.parametrize("config", CONFIGS)
def test_metadata_survives_json(config: ModelConfig) -> None:
    content = make_metadata(config)
    assert is_metadata(content)
    again = parse_metadata(content, "config.json")
    assert again.config == config
    assert again.preprocessing == build_inception_preprocessing(config.image_size)
    assert again.class_names == tuple(f"class {index}" for index in range(config.num_classes))
    assert (again.provenance, again.checksum) == ({"source": "a test", "steps": [1, 2.5]}, "sha256:00")
    assert json.loads(json.dumps(again.to_json())) == content


def test_class_names_and_checksum_may_be_absent() -> None:
    again = parse_metadata({**make_metadata(), "class_names": None, "checksum": None}, "config.json")
    assert (again.class_names, again.checksum) == (None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "version 3"),
        ({"calibration": {"temperature": 1.5}}, "thresholds, reject_below"),
        ({"calibration": {"temperature": 0, "thresholds": None, "reject_below": None}}, "temperature=0"),
        ({"calibration": {"temperature": True, "thresholds": None, "reject_below": None}}, "temperature=True"),
        ({"calibration": {"temperature": 1.0, "thresholds": [0.5], "reject_below": None}}, "1 thresholds"),
        ({"calibration": {"temperature": 1.0, "thresholds": 0.5, "reject_below": None}}, "list"),
        ({"calibration": {"temperature": 1.0, "thresholds": None, "reject_below": 2}}, "from 0 to 1"),
        ({"format": None}, "version None"),
        ({"format": [1]}, r"version \[1\]"),
        ({"model": None}, "model"),
        ({"model": 3}, "kind"),
        ({"model": {"kind": "vit", "width": 8}}, "depth, num_heads, mlp_dim"),
        ({"preprocessing": None}, "preprocessing"),
        ({"preprocessing": {"crop": [24, 24]}}, "resize"),
        ({"class_names": ["a", "b"]}, "2 class names .* 5 classes"),
        ({"class_names": []}, "0 class names .* 5 classes"),
        ({"class_names": "abcde"}, "class_names"),
        ({"class_names": [1, 2, 3, 4, 5]}, "class_names"),
        ({"provenance": None}, "provenance"),
        ({"provenance": "here"}, "provenance"),
        ({"checksum": 3}, "checksum"),
    ],
)
def test_wrong_metadata_is_an_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^config\.json.*{message}"):
        parse_metadata(make_metadata(**changes), "config.json")


@pytest.mark.parametrize(
    "change",
    ["nothing", "readout", "letterbox", "temperature", "rejection", "thresholds"],
)
def test_only_what_older_versions_would_misread_is_format_2(change: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    preprocessing, num_classes = checkpoint.preprocessing, checkpoint.model.config.num_classes
    if change == "readout":
        checkpoint.model.reset_head(num_classes, readout_layers=(0, 1), readout="both")
    changed = {
        "letterbox": {"preprocessing": preprocessing.with_framing("letterbox")},
        "temperature": {"calibration": Calibration(temperature=1.5)},
        "rejection": {"calibration": Calibration(reject_below=0.6)},
        "thresholds": {"calibration": Calibration(thresholds=(0.5,) * num_classes)},
    }
    checkpoint = replace(checkpoint, **changed.get(change, {}))
    save_checkpoint(checkpoint, tmp_path / "model")
    content = json.loads((tmp_path / "model" / "config.json").read_text())
    assert content["format"] == (1 if change == "nothing" else 2)
    assert ("calibration" in content) == (change in ("temperature", "rejection", "thresholds"))
    assert ("letterbox" in content["preprocessing"]) == (change == "letterbox")
    again = load_checkpoint(tmp_path / "model")
    assert (again.preprocessing, again.calibration) == (checkpoint.preprocessing, checkpoint.calibration)


@pytest.mark.parametrize("format", ["timm", "hf"])
def test_other_formats_carry_letterbox_and_calibration_for_us(format: FormatName, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(replace(cases.VIT, gelu="erf"))
    framed = checkpoint.preprocessing.with_framing("letterbox")
    checkpoint = replace(checkpoint, preprocessing=framed, calibration=Calibration(temperature=2.0))
    path = tmp_path / ("model.safetensors" if format == "timm" else "model")
    with pytest.warns(VitrineWarning, match="letterbox around images and the calibration"):
        save_checkpoint(checkpoint, path, format)
    again = load_checkpoint(path)
    assert (again.preprocessing, again.calibration) == (framed, Calibration(temperature=2.0))


def test_a_foreign_config_is_not_metadata() -> None:
    assert not is_metadata({"model_type": "vit", "hidden_size": 768})


def test_a_checkpoint_must_fit_its_model() -> None:
    good = make_checkpoint(cases.VIT)
    with pytest.raises(ValueError, match=r"3 x 24 x 28.*3 x 24 x 24"):
        Checkpoint(good.model, good.preprocessing.resized((24, 28)))
    with pytest.raises(ValueError, match=r"1 x 24 x 24.*3 x 24 x 24"):
        replace(good, preprocessing=build_inception_preprocessing((24, 24), num_channels=1))
    with pytest.raises(ValueError, match="4 class names"):
        replace(good, class_names=("a", "b", "c", "d"))


TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.zeros((), dtype=torch.float64),
    "c": torch.ones(4, dtype=torch.bfloat16),
}


def test_checksum_does_not_depend_on_order() -> None:
    names = list(TENSORS)
    for seed in range(5):
        random.Random(seed).shuffle(names)
        assert compute_checksum({name: TENSORS[name] for name in names}) == compute_checksum(TENSORS)
    assert compute_checksum({**TENSORS, "a": TENSORS["a"].T.contiguous().T}) == compute_checksum(TENSORS)


def test_probabilities_are_softmax_or_sigmoids() -> None:
    logits = torch.tensor([[0.0, 2.0], [-1.0, 0.0]])
    assert torch.equal(Calibration(temperature=2.0).to_probabilities(logits), logits.softmax(dim=1))
    several = Calibration(thresholds=(0.4, 0.5))
    probabilities = several.to_probabilities(logits)
    assert torch.equal(probabilities, logits.sigmoid())
    assert several.find_labels(probabilities).tolist() == [[True, True], [False, True]]  # 0.5 is at its threshold


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
def test_checksum_depends_on_values_shapes_and_dtypes(changed: dict[str, torch.Tensor]) -> None:
    assert compute_checksum({**TENSORS, **changed}) != compute_checksum(TENSORS)


def test_checksum_depends_on_names() -> None:
    renamed = {"a ": TENSORS["a"], "b": TENSORS["b"], "c": TENSORS["c"]}
    swapped = {"a": torch.ones(2), "b": torch.zeros(2)}
    assert compute_checksum(renamed) != compute_checksum(TENSORS)
    assert compute_checksum(swapped) != compute_checksum({"a": torch.zeros(2), "b": torch.ones(2)})


def test_checksum_depends_on_every_bit() -> None:
    numbers = torch.randn(3)
    seen = {compute_checksum({"w": numbers})}
    for index in range(3):
        for bit in range(32):
            flipped = numbers.clone()
            flipped.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            seen.add(compute_checksum({"w": flipped}))
    assert len(seen) == 1 + 3 * 32


@pytest.mark.parametrize("name", ["own/config.json", "weights.pth.vitrine.json"])
def test_an_edited_json_file_is_used_with_a_warning(name: str, tmp_path: Path) -> None:
    config = ViTConfig(width=16, depth=1, num_heads=1, mlp_dim=8, patch_size=2, image_size=(4, 4), num_classes=2, gelu="erf")
    checkpoint = Checkpoint(build_filled(config), build_inception_preprocessing((4, 4)), ("cat", "dog"))
    save_checkpoint(checkpoint, tmp_path / "own")
    save_checkpoint(checkpoint, tmp_path / "weights.pth", "timm")
    source = tmp_path / name.split("/")[0].removesuffix(".vitrine.json")
    assert load_checkpoint(source).class_names == ("cat", "dog")
    (tmp_path / name).write_text((tmp_path / name).read_text().replace('"dog"', '"doe"'))
    with pytest.warns(VitrineWarning, match="edited"):
        assert load_checkpoint(source).class_names == ("cat", "doe")
    content = json.loads((tmp_path / name).read_text())
    del content["metadata_checksum"]
    (tmp_path / name).write_text(json.dumps(content))
    assert load_checkpoint(source).class_names == ("cat", "doe")

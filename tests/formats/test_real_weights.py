"""DeiT-Tiny's released weights through every format, on real photographs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.formats.cases import ENDINGS, load_quietly, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.verify import verify_checkpoint
from vitrine.models.config import ViTConfig

# The figures that are known for this file, with short side 256, bicubic, and a centre crop of 224.
TOP_1, TOP_5 = 0.708, 0.899


@pytest.fixture(scope="module")
def checkpoint(assets: Path) -> Checkpoint:
    with pytest.warns(VitrineWarning, match="taken as usual for timm"):
        return load_checkpoint(assets / "deit-tiny" / "model.safetensors")


def read_photographs(assets: Path, labels: range, checkpoint: Checkpoint) -> Tensor:
    """One validation image for each label, as bytes."""
    paths = [next((assets / "imagenet-val-1000" / f"{label:03d}").iterdir()) for label in labels]
    return torch.stack([checkpoint.preprocessing.load(path) for path in paths])


@torch.no_grad()
def predict(checkpoint: Checkpoint, images: Tensor) -> Tensor:
    batches = images.split(50)
    return torch.cat([checkpoint.model(checkpoint.preprocessing.normalise(batch)) for batch in batches])


def test_the_file_loads_by_itself(checkpoint: Checkpoint) -> None:
    expected = ViTConfig(width=192, depth=12, num_heads=3, mlp_dim=768, gelu="erf")
    assert checkpoint.model.config == expected
    assert sum(parameter.numel() for parameter in checkpoint.model.parameters()) == 5_717_416


def test_photographs_are_recognised(checkpoint: Checkpoint, assets: Path) -> None:
    labels = range(1000)
    best = predict(checkpoint, read_photographs(assets, labels, checkpoint)).topk(5).indices
    is_right = best == torch.tensor(labels)[:, None]
    # One photograph in a thousand, for another processor's rounding.
    assert is_right[:, 0].float().mean().item() == pytest.approx(TOP_1, abs=0.0011)
    assert is_right.any(dim=1).float().mean().item() == pytest.approx(TOP_5, abs=0.0011)


@pytest.mark.parametrize("form", [form for form in ENDINGS if form != "bit"])
def test_the_same_predictions_through_every_format(form: str, checkpoint: Checkpoint, assets: Path, tmp_path: Path) -> None:
    path = tmp_path / f"deit{ENDINGS[form]}"
    save_quietly(checkpoint, path, form)
    again = load_quietly(path)
    assert again.preprocessing == checkpoint.preprocessing
    images = read_photographs(assets, range(0, 1000, 50), checkpoint)
    torch.testing.assert_close(predict(again, images), predict(checkpoint, images), rtol=1e-6, atol=1e-6)


def test_transformers_agrees_on_photographs(checkpoint: Checkpoint, assets: Path, tmp_path: Path) -> None:
    save_quietly(checkpoint, tmp_path / "out", "hf")
    images = read_photographs(assets, range(0, 1000, 250), checkpoint)
    _, theirs = verify_checkpoint(checkpoint, tmp_path / "out", images)
    assert theirs.is_equal
    assert theirs.same_answers == 4

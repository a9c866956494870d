"""DeiT-Tiny's released weights through every format, on real photographs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.formats.cases import ENDINGS, assert_same_weights, load_quietly, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.verify import verify_checkpoint
from vitrine.models.config import ViTConfig

# On every tenth class; on all 1000 photographs the known 0.708 and 0.899 (tests/evaluation/test_real_figures.py).
TOP_1, TOP_5 = 0.67, 0.9


@pytest.fixture(scope="module")
def checkpoint(assets: Path) -> Checkpoint:
    with pytest.warns(VitrineWarning, match="defaults of timm"):
        return load_checkpoint(assets / "deit-tiny" / "model.safetensors")


def read_photographs(assets: Path, labels: range, checkpoint: Checkpoint) -> Tensor:
    """Read one validation image of each label, as bytes."""
    paths = [next((assets / "imagenet-val-1000" / f"{label:03d}").iterdir()) for label in labels]
    return torch.stack([checkpoint.preprocessing.load(path) for path in paths])


@torch.no_grad()
def predict(checkpoint: Checkpoint, images: Tensor) -> Tensor:
    batches = images.split(50)
    return torch.cat([checkpoint.model(checkpoint.preprocessing.normalise(batch)) for batch in batches])


def test_config_and_size(checkpoint: Checkpoint) -> None:
    expected = ViTConfig(width=192, depth=12, num_heads=3, mlp_dim=768, gelu="erf")
    assert checkpoint.model.config == expected
    assert sum(parameter.numel() for parameter in checkpoint.model.parameters()) == 5_717_416


def test_photographs_are_classified(checkpoint: Checkpoint, assets: Path) -> None:
    labels = range(0, 1000, 10)
    best = predict(checkpoint, read_photographs(assets, labels, checkpoint)).topk(5).indices
    is_right = best == torch.tensor(labels)[:, None]
    # The tolerance is one photograph, for the rounding of another CPU.
    assert is_right[:, 0].float().mean().item() == pytest.approx(TOP_1, abs=0.011)
    assert is_right.any(dim=1).float().mean().item() == pytest.approx(TOP_5, abs=0.011)


@pytest.mark.parametrize("fmt", [fmt for fmt in ENDINGS if fmt != "bit"])
def test_every_format_keeps_the_model(fmt: str, checkpoint: Checkpoint, assets: Path, tmp_path: Path) -> None:
    path = tmp_path / f"deit{ENDINGS[fmt]}"
    save_quietly(checkpoint, path, fmt)
    again = load_quietly(path)
    assert again.preprocessing == checkpoint.preprocessing
    if fmt != "big-vision":
        return assert_same_weights(again.model, checkpoint.model)
    images = read_photographs(assets, range(0, 1000, 200), checkpoint)  # the class token's position is folded
    return torch.testing.assert_close(predict(again, images), predict(checkpoint, images), rtol=1e-6, atol=1e-6)


def test_transformers_agrees(checkpoint: Checkpoint, assets: Path, tmp_path: Path) -> None:
    save_quietly(checkpoint, tmp_path / "out", "hf")
    images = read_photographs(assets, range(0, 1000, 250), checkpoint)
    _, peer = verify_checkpoint(checkpoint, tmp_path / "out", images)
    assert peer.is_equal
    assert peer.same_answers == 4

"""BiT's npz files, compared with Hugging Face's BiT on the same weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BitConfig, BitForImageClassification

from tests.filling import fill_randomly
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ResNetConfig


@pytest.fixture(scope="module")
def peer() -> BitForImageClassification:
    config = BitConfig(depths=[2, 1], hidden_sizes=[128, 256], embedding_size=32, num_labels=5, num_groups=16)
    peer = BitForImageClassification(config).eval()
    fill_randomly(peer)
    return peer


def as_released(peer: BitForImageClassification, counted: bool = False) -> dict[str, Any]:
    """Return the peer's weights under the names of big_transfer."""
    arrays: dict[str, Any] = {}
    conv = iter(range(100))

    def name_conv(place: str) -> str:
        return f"resnet/{place}/standardized_conv2d{f'_{next(conv)}' if counted else ''}/kernel"

    state = {name: value.numpy() for name, value in peer.state_dict().items()}
    arrays[name_conv("root_block")] = state["bit.embedder.convolution.weight"].transpose(2, 3, 1, 0)
    for stage, depth in enumerate(peer.config.depths):
        for unit in range(depth):
            theirs = f"bit.encoder.stages.{stage}.layers.{unit}"
            place = f"block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                arrays[f"resnet/{place}/{letter}/group_norm/gamma"] = state[f"{theirs}.norm{number}.weight"]
                arrays[f"resnet/{place}/{letter}/group_norm/beta"] = state[f"{theirs}.norm{number}.bias"]
                kernel = state[f"{theirs}.conv{number}.weight"].transpose(2, 3, 1, 0)
                arrays[name_conv(f"{place}/{letter}")] = kernel
            if unit == 0:
                arrays[name_conv(f"{place}/a/proj")] = state[f"{theirs}.downsample.conv.weight"].transpose(2, 3, 1, 0)
    arrays["resnet/group_norm/gamma"] = state["bit.norm.weight"]
    arrays["resnet/group_norm/beta"] = state["bit.norm.bias"]
    arrays["resnet/head/conv2d/kernel"] = state["classifier.1.weight"].T[None, None]
    arrays["resnet/head/conv2d/bias"] = state["classifier.1.bias"]
    return arrays


@pytest.mark.parametrize("counted", [False, True])
def test_a_released_file_computes_the_same_as_its_peer(counted: bool, peer: BitForImageClassification, tmp_path: Path) -> None:
    np.savez(tmp_path / "bit.npz", **as_released(peer, counted))
    with pytest.warns(VitrineWarning, match="defaults of bit.*224 x 224.*--preprocess"):
        model = load_checkpoint(tmp_path / "bit.npz").model
    assert model.config == ResNetConfig(stages=(2, 1), width_factor=0.5, num_classes=5)
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    # The peer's norms have 16 groups, which files of this format do not state: set them by hand.
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.num_groups = 16
    with torch.no_grad():
        # Hugging Face has an epsilon of 1e-8 instead of 1e-10.
        torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


def test_names_and_shapes_are_the_released_ones(peer: BitForImageClassification, tmp_path: Path) -> None:
    save_quietly(make_checkpoint(ResNetConfig(stages=(2, 1), width_factor=0.5, num_classes=5)), tmp_path / "a.npz", "bit")
    written = {name: array.shape for name, array in np.load(tmp_path / "a.npz").items()}
    assert written == {name: array.shape for name, array in as_released(peer).items()}


def test_other_models_are_unsupported(tmp_path: Path) -> None:
    for config in (cases.VIT, ResNetConfig(stages=(1,), style="post-activation")):
        with pytest.raises(ValueError, match="bit cannot hold"):
            save_quietly(make_checkpoint(config), tmp_path / "a.npz", "bit")


def test_a_missing_unit_is_named(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "a.npz", "bit")
    arrays = dict(np.load(tmp_path / "a.npz"))
    arrays.pop("resnet/block2/unit01/b/group_norm/gamma")
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(ValueError, match="missing: resnet/block2/unit01/b/group_norm/gamma"):
        load_quietly(tmp_path / "b.npz")

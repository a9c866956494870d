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
from tests.formats.flax_reference import run_bit, run_bit_paper
from tests.formats.test_google import draw
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
    with pytest.warns(VitrineWarning, match="defaults of bit.*224 x 224.*preprocess"):
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
    with pytest.raises(ValueError, match="bit cannot hold"):
        save_quietly(make_checkpoint(cases.VIT), tmp_path / "a.npz", "bit")


def test_a_missing_unit_is_named(tmp_path: Path) -> None:
    save_quietly(make_checkpoint(cases.BIT), tmp_path / "a.npz", "bit")
    arrays = dict(np.load(tmp_path / "a.npz"))
    arrays.pop("resnet/block2/unit01/b/group_norm/gamma")
    np.savez(tmp_path / "b.npz", **arrays)
    with pytest.raises(ValueError, match="missing: resnet/block2/unit01/b/group_norm/gamma"):
        load_quietly(tmp_path / "b.npz")


# big_vision's two ResNets, as `bit_paper.py` and `bit.py` name them.
SIZES: dict[str, Any] = {"stages": (2, 1), "width_factor": 0.5, "num_classes": 5, "image_size": (40, 56)}
BIG_VISION = {
    "bit_paper.py": (ResNetConfig(**SIZES, pool_padding="none"), run_bit_paper),
    "bit.py": (ResNetConfig(**SIZES, style="post-activation"), run_bit),
}


def draw_big_vision(name: str) -> dict[str, Any]:
    """Draw random arrays with the names and shapes of big_vision's files, written out by hand."""
    shapes: dict[str, tuple[int, ...]] = {"head/kernel": (256, 5), "head/bias": (5,)}
    units = [("block1", 1, 32, 32, True), ("block1", 2, 128, 32, False), ("block2", 1, 128, 64, True)]
    if name == "bit_paper.py":
        shapes |= {"root_block/conv_root/kernel": (7, 7, 3, 32)} | norm_shapes("norm-pre-head", 1, 1, 1, 256)
    else:
        shapes |= {"conv_root/kernel": (7, 7, 3, 32)} | norm_shapes("gn_root", 32)
    for block, number, in_dim, mid_dim, has_projection in units:
        unit = f"{block}/unit{number:02d}" if name == "bit_paper.py" else f"{block}/unit{number}"
        shapes |= {f"{unit}/conv1/kernel": (1, 1, in_dim, mid_dim), f"{unit}/conv2/kernel": (3, 3, mid_dim, mid_dim)}
        shapes |= {f"{unit}/conv3/kernel": (1, 1, mid_dim, 4 * mid_dim)}
        if has_projection:
            shapes |= {f"{unit}/conv_proj/kernel": (1, 1, in_dim, 4 * mid_dim)}
        if name == "bit_paper.py":
            for index, dim in enumerate((in_dim, mid_dim, mid_dim), start=1):
                shapes |= norm_shapes(f"{unit}/gn{index}", 1, 1, 1, dim)
        else:
            for norm, dim in (("gn1", mid_dim), ("gn2", mid_dim), ("gn3", 4 * mid_dim)):
                shapes |= norm_shapes(f"{unit}/{norm}", dim)
            shapes |= norm_shapes(f"{unit}/gn_proj", 4 * mid_dim) if has_projection else {}
    return draw(shapes)


def norm_shapes(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/scale": shape, f"{name}/bias": shape}


@pytest.mark.parametrize("name", BIG_VISION)
def test_files_of_big_vision_compute_the_same_in_numpy(name: str, tmp_path: Path) -> None:
    config, reference = BIG_VISION[name]
    arrays = draw_big_vision(name)
    np.savez(tmp_path / "bit.npz", **{f"params/{key}": array for key, array in arrays.items()})
    checkpoint = load_quietly(tmp_path / "bit.npz", image_size=config.image_size)
    assert checkpoint.model.config == config
    assert checkpoint.preprocessing.resize == round(256 / 224 * 40)
    images = np.random.default_rng(1).standard_normal((2, 40, 56, 3))
    expected = reference({key: np.asarray(array, dtype=np.float64) for key, array in arrays.items()}, images)
    with torch.no_grad():
        actual = checkpoint.model(torch.from_numpy(images).permute(0, 3, 1, 2).float())
    # NumPy computes in float64: the tolerance absorbs the rounding of float32.
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", BIG_VISION)
def test_files_of_big_vision_are_written_as_they_were(name: str, tmp_path: Path) -> None:
    arrays = draw_big_vision(name)
    np.savez(tmp_path / "bit.npz", **arrays)
    checkpoint = load_quietly(tmp_path / "bit.npz")
    save_quietly(checkpoint, tmp_path / "again.npz", "bit")
    written = dict(np.load(tmp_path / "again.npz"))
    assert written.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(written[key], array)
    for fmt in ("timm", "hf"):
        with pytest.raises(ValueError, match=f"{fmt} cannot hold"):
            save_quietly(checkpoint, tmp_path / f"out{cases.ENDINGS[fmt]}", fmt)

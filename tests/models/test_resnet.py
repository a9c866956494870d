"""Both ResNet styles against Hugging Face's BiT with the same random weights, and their parts against closed forms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BitConfig, BitForImageClassification

from tests.filling import build_filled, fill_randomly
from vitrine.models.config import ResNetConfig, ResNetStyle
from vitrine.models.model import Model
from vitrine.models.registry import build_model
from vitrine.models.resnet import StandardisedConv, build_group_norm, pad_same

# Hugging Face's epsilons, which are not the released ones (docs/paper.md).
PEER_EPSILONS = {"norm_eps": 1e-5, "standardise_eps": 1e-8}
SMALL: dict[str, Any] = {"stages": (2, 1, 1), "width_factor": 0.25, "num_classes": 5, "num_groups": 8}


def build_peer(style: ResNetStyle) -> BitForImageClassification:
    paddings = {"global_padding": "same", "embedding_dynamic_padding": True} if style == "post-activation" else {}
    layer_type = "bottleneck" if style == "post-activation" else "preactivation"
    config = BitConfig(
        layer_type=layer_type,
        depths=[2, 1, 1],
        hidden_sizes=[64, 128, 256],
        embedding_size=16,
        num_groups=8,
        num_labels=5,
        **paddings,
    )
    peer = BitForImageClassification(config).eval()
    fill_randomly(peer)
    return peer


def copy_peer_weights(peer: nn.Module) -> dict[str, Tensor]:
    renames = {
        "bit.embedder.convolution": "root.conv",
        "bit.embedder.norm": "root.norm",
        "bit.encoder.stages": "blocks",
        ".layers.": ".",
        "downsample.conv": "projection",
        "downsample.norm": "norm_projection",
        "bit.norm": "norm",
        "classifier.1": "head",
    }
    state = {}
    for name, value in peer.state_dict().items():
        for theirs, ours in renames.items():
            name = name.replace(theirs, ours)
        state[name] = value
    return state


def load_peer(style: ResNetStyle, size: tuple[int, int], **changes: Any) -> tuple[Model[Any], BitForImageClassification]:
    peer = build_peer(style)
    model = build_model("R50x1", style=style, image_size=size, **SMALL, **{**PEER_EPSILONS, **changes}).eval()
    model.load_state_dict(copy_peer_weights(peer))
    return model, peer


@pytest.mark.parametrize("style", ["pre-activation", "post-activation"])
@pytest.mark.parametrize("size", [(64, 64), (96, 64), (65, 47)])
@torch.no_grad()
def test_both_styles_equal_hugging_face(style: ResNetStyle, size: tuple[int, int]) -> None:
    model, peer = load_peer(style, size)
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(model(images), peer(images).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("style", ["pre-activation", "post-activation"])
@torch.no_grad()
def test_epsilons_are_not_ignored(style: ResNetStyle) -> None:
    images = torch.randn(1, 3, 64, 64)
    logits = [load_peer(style, (64, 64), **changes)[0](images) for changes in ({}, {"norm_eps": 0.1}, {"standardise_eps": 0.1})]
    assert not torch.allclose(logits[0], logits[1], rtol=0, atol=1e-4)
    assert not torch.allclose(logits[0], logits[2], rtol=0, atol=1e-4)


def test_released_epsilons_are_the_default() -> None:
    assert ResNetConfig(stages=(1,)).epsilons == (1e-5, 1e-10)
    assert ResNetConfig(stages=(1,), style="post-activation").epsilons == (1e-6, 1e-5)
    assert ResNetConfig(stages=(1,), norm_eps=1e-3, standardise_eps=1e-8).epsilons == (1e-3, 1e-8)


@torch.no_grad()
def test_kernels_are_standardised_as_each_style_does() -> None:
    for style, eps in (("pre-activation", 1e-2), ("post-activation", 1e-2)):
        conv = StandardisedConv(3, 4, 3, 1, ResNetConfig(stages=(1,), style=style, standardise_eps=eps))
        flat = conv.weight.flatten(1)
        centred = flat - flat.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)
        deviation = (variance + eps).sqrt() if style == "pre-activation" else variance.sqrt() + eps
        torch.testing.assert_close(conv.standardise().flatten(1), centred / deviation)


@pytest.mark.parametrize(
    ("size", "kernel", "before_and_after"),
    [(224, 7, (2, 3)), (112, 3, (0, 1)), (56, 3, (0, 1)), (7, 3, (1, 1)), (56, 1, (0, 0))],
)
def test_same_padding_is_tfs(size: int, kernel: int, before_and_after: tuple[int, int]) -> None:
    ones = torch.ones(1, 1, size, size)
    assert torch.equal(pad_same(ones, kernel, 2), F.pad(ones, before_and_after * 2))


@torch.no_grad()
def test_the_zeros_around_bits_pool_are_not_neutral() -> None:
    """Check negative values: a pool padded with zeros returns 0 at the border, one padded with -inf would not."""
    model = build_filled("R26x0.25", image_size=32)
    model.root.conv.forward = lambda images: torch.full((1, 16, 16, 16), -1.0)
    pooled = model.root(torch.zeros(1, 3, 32, 32))
    assert torch.equal(pooled[0, 0, 0], torch.zeros(8))
    assert torch.equal(pooled[0, 0, 1:, 1:], torch.full((7, 7), -1.0))


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (16, 16), (48, 24), (40, 20), (37, 1)])
def test_groups_are_at_most_32_and_divide_the_channels(channels: int, groups: int) -> None:
    norm = build_group_norm(channels, ResNetConfig(stages=(1,)))
    assert norm.num_groups == groups


@torch.no_grad()
def test_small_resnets_take_any_stages_and_width() -> None:
    for changes in (
        {"stages": (1,)},
        {"stages": (1, 2), "width_factor": 0.3},
        {"stages": (1, 1, 1, 1, 1), "width_factor": 0.125},
    ):
        for style in ("pre-activation", "post-activation"):
            model = build_filled("R50x1", image_size=(40, 33), num_classes=3, style=style, **changes)
            assert model(torch.randn(2, 3, 40, 33)).shape == (2, 3)


@pytest.mark.parametrize("pool_padding", ["zeros", "none"])
@torch.no_grad()
def test_what_the_pool_of_the_root_sees_beyond_the_edges(pool_padding: str) -> None:
    model = build_filled("R50x1", image_size=(37, 50), **SMALL, pool_padding=pool_padding)
    images = torch.randn(2, 3, 37, 50, generator=torch.Generator().manual_seed(0)) - 1
    features = model.root.conv(images)
    padded = features if pool_padding == "none" else F.pad(features, (1, 1, 1, 1))
    # torch's own padding of a pool is minus infinity.
    expected = F.max_pool2d(padded, 3, 2, padding=int(pool_padding == "none"))
    torch.testing.assert_close(model.root(images), expected, rtol=0, atol=0)

"""Attention rollout of known maps: uniform, identity and shifted attention, and layers multiplied by hand."""

import numpy as np
import pytest
import torch

from tests.inspection.networks import NETWORKS, build, draw_images
from vitrine.engines.engine import stream_attention
from vitrine.inspection.config import Fusion, RolloutConfig
from vitrine.inspection.rollout import Rollout, compute_rollout, fuse_heads

PLAIN = RolloutConfig(identity=False)


def test_uniform_attention_gives_uniform_rollout() -> None:
    rollout = Rollout(PLAIN)
    for _ in range(3):
        rollout.add(torch.full((1, 2, 5, 5), 1 / 5))
    torch.testing.assert_close(rollout.joint, torch.full((1, 5, 5), 1 / 5))


def test_residual_path_keeps_half_in_each_layer() -> None:
    rollout = Rollout(RolloutConfig())
    for _ in range(3):
        rollout.add(torch.full((1, 2, 5, 5), 1 / 5))
    expected = (1 - 0.5**3) / 5 + 0.5**3 * torch.eye(5)[None]
    torch.testing.assert_close(rollout.joint, expected)


@pytest.mark.parametrize("identity", [True, False])
def test_identity_attention_gives_identity(identity: bool) -> None:
    rollout = Rollout(RolloutConfig(identity=identity))
    for _ in range(4):
        rollout.add(torch.eye(6).expand(2, 3, 6, 6))
    torch.testing.assert_close(rollout.joint, torch.eye(6).expand(2, 6, 6))


def test_shifted_attention_moves_one_token_per_layer() -> None:
    rollout = Rollout(PLAIN)
    for _ in range(3):
        rollout.add(torch.eye(6).roll(1, dims=1).expand(1, 2, 6, 6))
    assert rollout.joint is not None
    assert rollout.joint[0].argmax(dim=1).tolist() == [3, 4, 5, 0, 1, 2]


def test_shifts_with_residual_path_are_binomial() -> None:
    rollout = Rollout(RolloutConfig())
    for _ in range(4):
        rollout.add(torch.eye(8).roll(1, dims=1).expand(1, 2, 8, 8))
    assert rollout.joint is not None
    np.testing.assert_allclose(rollout.joint[0, 0], np.array([1, 4, 6, 4, 1, 0, 0, 0]) / 16, atol=1e-7)


@pytest.mark.parametrize("kind", NETWORKS)
def test_rollout_equals_matrix_product_of_layers(kind: str) -> None:
    model = build(kind)
    images, maps = draw_images(model), []
    stream_attention(model, images, lambda layer, result: maps.append(result.double().numpy()))
    expected = np.eye(maps[0].shape[-1])[None]
    for layer in maps:
        step = layer.mean(axis=1) + np.eye(layer.shape[-1])
        expected = step / step.sum(axis=-1, keepdims=True) @ expected
    result = compute_rollout(model, images)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result.sum(dim=-1), 1, atol=1e-5)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_fusion_of_heads(fusion: Fusion) -> None:
    maps = torch.rand(2, 3, 4, 4).softmax(dim=-1)
    fused = getattr(np, fusion)(maps.numpy(), axis=1)
    result = fuse_heads(maps, RolloutConfig(fusion=fusion, identity=False))
    np.testing.assert_allclose(result, fused / fused.sum(axis=-1, keepdims=True), rtol=1e-5)


def test_weakest_attention_is_dropped() -> None:
    maps = torch.tensor([[[[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.25, 0.24, 0.26, 0.25], [0.0, 0.0, 0.0, 1.0]]]])
    result = fuse_heads(maps, RolloutConfig(identity=False, dropped_share=0.5))[0]
    expected = torch.tensor([[0, 0, 3 / 7, 4 / 7], [4 / 7, 3 / 7, 0, 0]])
    torch.testing.assert_close(result[:2], expected)
    assert (result > 0).sum(dim=1).tolist() == [2, 2, 2, 1]
    assert fuse_heads(maps, RolloutConfig(identity=False, dropped_share=0.99)).isfinite().all()


def test_min_fusion_of_disjoint_heads_is_finite() -> None:
    maps = torch.stack([torch.eye(3), torch.eye(3).roll(1, dims=1)])[None]
    assert torch.equal(fuse_heads(maps, RolloutConfig(fusion="min", identity=False)), torch.zeros(1, 3, 3))
    torch.testing.assert_close(fuse_heads(maps, RolloutConfig(fusion="min")), torch.eye(3)[None])

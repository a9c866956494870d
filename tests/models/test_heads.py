"""The attention-pooling head against one built from torch's layers."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.filling import fill_randomly
from vitrine.models.config import ViTConfig
from vitrine.models.heads import AttentionPool, build_linear_head


@torch.no_grad()
def test_attention_pool_is_attention_then_a_residual_mlp() -> None:
    config = ViTConfig(width=48, depth=1, num_heads=4, mlp_dim=100, pool="map")
    pool = AttentionPool(config).eval()
    fill_randomly(pool)
    tokens = torch.randn(3, 9, 48)
    x = pool.attention(tokens)
    y = F.layer_norm(x, (48,), pool.norm.weight, pool.norm.bias, eps=1e-6)
    hidden = F.gelu(y @ pool.mlp.get_submodule("hidden").weight.T + pool.mlp.get_submodule("hidden").bias, approximate="tanh")
    torch.testing.assert_close(pool(tokens), x + pool.mlp.out(hidden))


def test_a_head_without_classes_is_the_identity() -> None:
    assert isinstance(build_linear_head(8, 0, 0.0), nn.Identity)

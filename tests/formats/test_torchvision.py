"""torchvision's ViT files, compared with its structure built from torch's own attention and norm."""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.filling import fill_randomly
from tests.formats import cases
from tests.formats.cases import forget, load_quietly, make_checkpoint, run, save_quietly
from vitrine.core.console import VitrineWarning
from vitrine.formats.config import Overrides
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig


class Layer(nn.Module):
    def __init__(self, width: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_dim), nn.GELU(), nn.Dropout(0), nn.Linear(mlp_dim, width), nn.Dropout(0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Reference(nn.Module):
    """The released names, and torch's modules behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, 128))
        self.conv_proj = nn.Conv2d(3, 128, 8, 8)
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.zeros(1, 37, 128))
        layers = OrderedDict((f"encoder_layer_{index}", Layer(128, 2, 96)) for index in range(2))
        self.encoder.layers = nn.Sequential(layers)
        self.encoder.ln = nn.LayerNorm(128, eps=1e-6)
        head = OrderedDict(pre_logits=nn.Linear(128, 128), act=nn.Tanh(), head=nn.Linear(128, 7))
        self.heads = nn.Sequential(head)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv_proj(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.encoder.pos_embedding
        return self.heads(self.encoder.ln(self.encoder.layers(x))[:, 0])


@pytest.mark.parametrize("released", [False, True])
@torch.no_grad()
def test_a_released_file_computes_the_same(released: bool, tmp_path: Path) -> None:
    reference = Reference().eval()
    fill_randomly(reference)
    state = reference.state_dict()
    if released:  # older names of the MLP's two layers
        state = {n.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2."): v for n, v in state.items()}
    torch.save(state, tmp_path / "vit.pth")
    with pytest.warns(VitrineWarning, match="defaults of torchvision: 2 heads .* bilinear"):
        checkpoint = load_checkpoint(tmp_path / "vit.pth")
    assert checkpoint.preprocessing.interpolation == "bilinear"
    assert checkpoint.model.config.hidden_head
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(checkpoint.model(images), reference(images), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_what_we_write_loads_into_the_reference(tmp_path: Path) -> None:
    config = ViTConfig(
        width=128,
        depth=2,
        num_heads=2,
        mlp_dim=96,
        patch_size=8,
        image_size=(48, 48),
        gelu="erf",
        num_classes=7,
        hidden_head=True,
    )
    checkpoint = make_checkpoint(config)
    save_quietly(checkpoint, tmp_path / "out.pt", "torchvision")
    reference = Reference().eval()
    reference.load_state_dict(torch.load(tmp_path / "out.pt", weights_only=True))
    images = torch.randn(2, 3, 48, 48)
    torch.testing.assert_close(reference(images), checkpoint.model(images), rtol=1e-5, atol=1e-5)


def test_a_class_token_without_a_position_gets_one_of_zeros(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, class_position=False))
    save_quietly(checkpoint, tmp_path / "out.safetensors", "torchvision")
    again = load_quietly(tmp_path / "out.safetensors").model
    assert not again.state_dict()["positions.0.table"][0].any()
    torch.testing.assert_close(run(again), run(checkpoint.model), rtol=1e-6, atol=1e-6)


UNSUPPORTED: tuple[dict[str, Any], ...] = ({"pool": "mean"}, {"pre_norm": True}, {"patch_bias": False}, {"qkv_bias": False})


def test_a_hidden_head_of_another_width(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, hidden_head=True, hidden_head_dim=10, num_classes=5, gelu="erf"))
    save_quietly(checkpoint, tmp_path / "out.safetensors", "torchvision")
    again = load_quietly(forget(tmp_path / "out.safetensors"), Overrides(num_heads=2)).model
    assert again.config == checkpoint.model.config
    torch.testing.assert_close(run(again), run(checkpoint.model), rtol=0, atol=0)


def test_unsupported_models(tmp_path: Path) -> None:
    for config in (cases.BIT, cases.HYBRID, *(ViTConfig(**cases.SMALL, **changes) for changes in UNSUPPORTED)):
        with pytest.raises(ValueError, match="torchvision cannot hold"):
            save_quietly(make_checkpoint(config), tmp_path / "a.pth", "torchvision")

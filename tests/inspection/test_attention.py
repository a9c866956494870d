"""Attention maps against a plain softmax(QK') of each layer's input tokens; reading a query from them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.inspection.networks import NETWORKS, RESNET, build, draw_images
from vitrine.engines.engine import stream_attention
from vitrine.inspection.attention import (
    check_full_grid,
    check_numbers,
    choose_query,
    compute_attention,
    count_layers,
    read_query,
)
from vitrine.inspection.distance import DistanceMeter
from vitrine.models.model import Model
from vitrine.models.registry import build_model


def compute_plainly(model: Model[Any], tokens: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Compute attention maps (B, H, T, T) and the attention output (B, T, D) in float64 from the weights."""
    block: Any = model.get_submodule(f"blocks.{layer}")
    state = {name: tensor.double() for name, tensor in block.state_dict().items()}
    names = [name for name in state if "norm" in name]
    weight, bias = (next(state[name] for name in names if name.endswith(end)) for end in ("weight", "bias"))
    x = F.layer_norm(tokens.double(), tokens.shape[-1:], weight, bias, eps=model.config.norm_eps)
    prefix = next(name for name in state if name.endswith("qkv.weight")).removesuffix("qkv.weight")
    q, k, v = (x @ state[f"{prefix}qkv.weight"].T + state[f"{prefix}qkv.bias"]).chunk(3, dim=-1)
    q, k, v = (each.unflatten(-1, (model.config.num_heads, -1)).transpose(1, 2) for each in (q, k, v))
    logits = q @ k.mT / q.shape[-1] ** 0.5
    relative = getattr(model.get_submodule(f"{prefix and f'blocks.{layer}.' + prefix.rstrip('.')}"), "relative", None)
    if relative is not None:
        offsets = relative.offsets.double()
        positions = torch.arange(q.shape[2])
        table = offsets[positions[:, None] - positions[None, :] + len(offsets) // 2]  # (T, T, K)
        logits = logits + torch.einsum("bhqk,qtk->bhqt", q, table) / q.shape[-1] ** 0.5
    maps = logits.softmax(dim=-1)
    out = (maps @ v).transpose(1, 2).flatten(2)
    return maps, out @ state[f"{prefix}out.weight"].T + state[f"{prefix}out.bias"]


@pytest.mark.parametrize("kind", NETWORKS)
def test_maps_equal_plain_softmax(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    names = [name for name in model.intermediates if name.startswith("blocks")]
    kept = model.encode(images, keep=("embedding", *names)).kept
    result: dict[int, Tensor] = {}
    stream_attention(model, images, lambda layer, maps: result.update({layer: maps.clone()}))
    assert list(result) == list(range(3))
    for layer, maps in result.items():
        tokens = kept["embedding"] if layer == 0 else kept[f"blocks.{layer - 1}.output"]
        expected, _ = compute_plainly(model, tokens, layer)
        torch.testing.assert_close(maps.double(), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(compute_attention(model, images, layer), maps)


@pytest.mark.parametrize("kind", NETWORKS)
def test_streaming_does_not_change_logits(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    with torch.no_grad():
        plain = model(images)
        observed = model.forward_heads(stream_attention(model, images, lambda layer, maps: None))
    observed = observed[0] if len(observed) == 1 else torch.stack(observed).mean(dim=0)
    assert torch.equal(observed, plain)


@pytest.mark.parametrize("kind", ["vit", "oblong", "registers", "mean pooled"])
def test_read_query_returns_the_row_of_the_query(kind: str) -> None:
    config = build(kind).config
    rows, columns = config.grid
    maps = torch.arange(2 * config.num_tokens**2, dtype=torch.float64).reshape(2, config.num_tokens, config.num_tokens)
    first = config.num_prefix_tokens
    result = read_query(maps, config, f"1,{columns - 1}")
    assert torch.equal(result, maps[:, first + 2 * columns - 1, first:].reshape(2, rows, columns))
    assert torch.equal(read_query(maps, config, "mean"), maps[:, first:, first:].mean(dim=1).reshape(2, rows, columns))
    if config.has_class_token:
        assert torch.equal(read_query(maps, config, "class"), maps[:, 0, first:].reshape(2, rows, columns))


def test_choose_query_rejects_unavailable_queries() -> None:
    with_class, without = build("oblong").config, build("mean pooled").config
    assert (choose_query(with_class), choose_query(without)) == ("class", "mean")
    assert choose_query(with_class, "2,5") == "2,5"
    for query, config, message in (
        ("class", without, "class token"),
        ("3,0", with_class, "3 x 6"),
        ("0,6", with_class, "3 x 6"),
        ("here", with_class, "query='here'"),
        ("-1,2", with_class, "query='-1,2'"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_query(config, query)


def test_models_without_attention_maps_are_rejected() -> None:
    with pytest.raises(ValueError, match="ResNet"):
        count_layers(build_model("R50x1", num_classes=0, **RESNET))
    axial = build_model("Axial-ViT-Ti/8", width=16, depth=1, num_heads=2, mlp_dim=32, image_size=16, num_classes=0)
    with pytest.raises(ValueError, match="axial"):
        count_layers(axial)
    with pytest.raises(ValueError, match="layer 3"):
        compute_attention(build("vit"), draw_images(build("vit")), 3)
    with pytest.raises(ValueError, match="head -1"):
        check_numbers("head", (0, -1), 2)


def test_maps_without_all_patches_are_rejected() -> None:
    config = build("oblong").config  # 18 patches and a class token
    check_full_grid(torch.zeros(1, 2, 19, 19), config)
    with pytest.raises(ValueError, match="3 x 6"):
        read_query(torch.zeros(1, 2, 12, 12), config, "class")
    with pytest.raises(ValueError, match="3 x 6"):
        DistanceMeter(config, 1).add(0, torch.zeros(1, 2, 12, 12))

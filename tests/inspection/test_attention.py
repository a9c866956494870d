"""Maps against a plain softmax(QK') of the tokens that each layer gets, and whose attention is read from them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.inspection.networks import NETWORKS, RESNET, build, draw_images
from vitrine.inspection.attention import (
    choose_query,
    compute_attention,
    compute_stride,
    count_layers,
    read_query,
    require_numbers,
    stream_attention,
)
from vitrine.models.model import Model
from vitrine.models.registry import build_model, resolve_config


def compute_plainly(model: Model[Any], tokens: Tensor, layer: int) -> tuple[Tensor, Tensor]:
    """Maps (B, H, T, T), and what comes out of the attention by them (B, T, D), from the weights written out."""
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
        places = torch.arange(q.shape[2])
        table = offsets[places[:, None] - places[None, :] + len(offsets) // 2]  # (T, T, K)
        logits = logits + torch.einsum("bhqk,qtk->bhqt", q, table) / q.shape[-1] ** 0.5
    maps = logits.softmax(dim=-1)
    out = (maps @ v).transpose(1, 2).flatten(2)
    return maps, out @ state[f"{prefix}out.weight"].T + state[f"{prefix}out.bias"]


@pytest.mark.parametrize("kind", NETWORKS)
def test_maps_are_a_plain_softmax_and_explain_what_comes_out(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    names = [name for name in model.intermediates if name.startswith("blocks")]
    kept = model.encode(images, keep=("embedding", *names)).kept
    found: dict[int, Tensor] = {}
    stream_attention(model, images, lambda layer, maps: found.update({layer: maps.clone()}))
    assert list(found) == list(range(3))
    for layer, maps in found.items():
        tokens = kept["embedding"] if layer == 0 else kept[f"blocks.{layer - 1}.output"]
        expected, _ = compute_plainly(model, tokens, layer)
        torch.testing.assert_close(maps.double(), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(compute_attention(model, images, layer), maps)


@pytest.mark.parametrize("kind", NETWORKS)
def test_logits_are_the_same_while_someone_looks(kind: str) -> None:
    model = build(kind)
    images = draw_images(model)
    with torch.no_grad():
        plain = model(images)
        watched = model.forward_heads(stream_attention(model, images, lambda layer, maps: None))
    watched = watched[0] if len(watched) == 1 else torch.stack(watched).mean(dim=0)
    assert torch.equal(watched, plain)


@pytest.mark.parametrize("kind", ["vit", "oblong", "registers", "mean pooled"])
def test_a_query_reads_its_own_row_from_the_patches(kind: str) -> None:
    config = build(kind).config
    rows, columns = config.grid
    maps = torch.arange(2 * config.num_tokens**2, dtype=torch.float64).reshape(2, config.num_tokens, config.num_tokens)
    first = config.num_prefix_tokens
    found = read_query(maps, config, f"1,{columns - 1}")
    assert torch.equal(found, maps[:, first + 2 * columns - 1, first:].reshape(2, rows, columns))
    assert torch.equal(read_query(maps, config, "mean"), maps[:, first:, first:].mean(dim=1).reshape(2, rows, columns))
    if config.has_class_token:
        assert torch.equal(read_query(maps, config, "class"), maps[:, 0, first:].reshape(2, rows, columns))


def test_queries_that_cannot_be_had_cost_a_sentence() -> None:
    with_class, without = build("oblong").config, build("mean pooled").config
    assert (choose_query(with_class), choose_query(without)) == ("class", "mean")
    assert choose_query(with_class, "2,5") == "2,5"
    for query, config, sentence in (
        ("class", without, "query='class' needs a class token"),
        ("3,0", with_class, r"query='3,0' lies outside of the 3 x 6 patches"),
        ("0,6", with_class, r"query='0,6' lies outside of the 3 x 6 patches"),
        ("here", with_class, r"query='here' must be class, mean, or ROW,COLUMN"),
        ("-1,2", with_class, r"query='-1,2' must be class, mean, or ROW,COLUMN"),
    ):
        with pytest.raises(ValueError, match=sentence):
            choose_query(config, query)


def test_models_without_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="A ResNet has no attention"):
        count_layers(build_model("R50x1", num_classes=0, **RESNET))
    axial = build_model("Axial-ViT-Ti/8", width=16, depth=1, num_heads=2, mlp_dim=32, image_size=16, num_classes=0)
    with pytest.raises(ValueError, match="An axial model attends along lines"):
        count_layers(axial)
    with pytest.raises(ValueError, match=r"layer 3 does not exist: the model has 3, numbered 0 to 2"):
        compute_attention(build("vit"), draw_images(build("vit")), 3)
    with pytest.raises(ValueError, match=r"head -1 does not exist"):
        require_numbers("head", (0, -1), 2)


@pytest.mark.parametrize(
    ("name", "stride"), [("ViT-B/16", 16), ("ViT-H/14", 14), ("R50+ViT-B/16", 16), ("R50+ViT-L/32", 32), ("R+ViT-Ti/16", 32)]
)
def test_the_stride_of_a_hybrid_is_its_stem_s(name: str, stride: int) -> None:
    config = resolve_config(name)
    assert compute_stride(config) == stride
    assert config.grid[0] * stride == config.image_size[0]

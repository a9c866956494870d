"""Positions against scipy's zoom, Hugging Face, Pillow, a plain double loop, and the formula of big_vision."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import ViTConfig as TransformersViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings

from tests.filling import build_filled, fill_randomly
from vitrine.models.attention import SelfAttention
from vitrine.models.config import POSITION_INSERTIONS, ViTConfig
from vitrine.models.model import PatchSubset
from vitrine.models.positions import RelativePositions, SinCos2d, compute_offset_weights, resize_positions
from vitrine.models.registry import build_model

SIDES = st.integers(min_value=1, max_value=24)


def small_config(**changes: object) -> ViTConfig:
    sizes: dict[str, object] = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "image_size": (48, 64)}
    return ViTConfig(**{**sizes, **changes})


@settings(deadline=None, max_examples=200)
@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_interpolation_is_scipys_zoom(old: tuple[int, int], new: tuple[int, int]) -> None:
    positions = torch.randn(old[0] * old[1], 3, generator=torch.Generator().manual_seed(0))
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    # By default scipy returns 0 where rounding puts the last coordinate slightly outside, e.g. from 24 to 22.
    expected = scipy.ndimage.zoom(positions.view(*old, 3).double().numpy(), zoom, order=1, mode="nearest")
    resized = resize_positions(positions, old, new).view(*new, 3)
    np.testing.assert_allclose(resized.numpy(), expected, rtol=0, atol=1e-6)


def test_interpolation_is_bilinear_with_aligned_corners() -> None:
    positions = torch.randn(14 * 14, 8, dtype=torch.float64)
    grid = positions.view(1, 14, 14, 8).permute(0, 3, 1, 2)
    expected = torch.nn.functional.interpolate(grid, (24, 32), mode="bilinear", align_corners=True)
    resized = resize_positions(positions, (14, 14), (24, 32))
    torch.testing.assert_close(resized, expected[0].permute(1, 2, 0).reshape(-1, 8))


@pytest.mark.parametrize(("old", "new"), [((6, 6), (9, 9)), ((6, 6), (8, 3)), ((14, 14), (24, 24)), ((9, 9), (2, 4))])
def test_method_hf_equals_hugging_face(old: tuple[int, int], new: tuple[int, int]) -> None:
    config = TransformersViTConfig(hidden_size=8, num_attention_heads=2, image_size=(old[0] * 4, old[1] * 4), patch_size=4)
    embeddings = ViTEmbeddings(config)
    torch.nn.init.normal_(embeddings.position_embeddings)
    tokens = torch.zeros(1, 1 + new[0] * new[1], 8)
    expected = embeddings.interpolate_pos_encoding(tokens, new[0] * 4, new[1] * 4)[0, 1:]
    actual = resize_positions(embeddings.position_embeddings[0, 1:], old, new, "hf")
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("old", "new"), [((6, 6), (9, 9)), ((5, 7), (8, 3)), ((14, 14), (8, 8)), ((24, 20), (6, 5))])
def test_method_timm_is_antialiased_bicubic(old: tuple[int, int], new: tuple[int, int]) -> None:
    """Compare with Pillow, whose filter also widens when it scales down."""
    positions = torch.randn(old[0] * old[1], 3)
    planes = [Image.fromarray(positions[:, index].view(old).numpy()) for index in range(3)]
    expected = [np.asarray(plane.resize((new[1], new[0]), Image.Resampling.BICUBIC)).ravel() for plane in planes]
    actual = resize_positions(positions, old, new, "timm")
    np.testing.assert_allclose(actual.T.numpy(), np.stack(expected), rtol=1e-5, atol=1e-5)


def test_resizing_is_differentiable() -> None:
    positions = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda table: resize_positions(table, (3, 4), (5, 2)), positions)


def test_resizing_exports() -> None:
    class Resize(torch.nn.Module):
        def forward(self, positions: torch.Tensor) -> torch.Tensor:
            return resize_positions(positions, (3, 4), (5, 2))

    positions = torch.randn(12, 3)
    exported = torch.export.export(Resize(), (positions,)).module()
    torch.testing.assert_close(exported(positions), resize_positions(positions, (3, 4), (5, 2)))


def test_other_methods_are_for_learned_1d_only() -> None:
    model = build_model("ViT-Ti/16", depth=1, position="learned-2d", image_size=32)
    with pytest.raises(ValueError, match=r"'timm'.*learned-2d"):
        model.resize(64, "timm")


def test_a_class_row_among_grid_positions_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"197 positions.*14 x 14 grid.*196.*positions\[1:\]"):
        resize_positions(torch.zeros(197, 4), (14, 14), (24, 24))


# Every cell of table 8, with and without a position for the class token where the kind can have one.
CELLS = [
    (kind, insertion, class_position)
    for kind, insertions in POSITION_INSERTIONS.items()
    for insertion in insertions
    for class_position in ([False] if kind in ("none", "sincos-2d") else [False, True])
]


@pytest.mark.parametrize(("position", "insertion", "class_position"), CELLS)
@torch.no_grad()
def test_every_cell_of_table_8_runs_resizes_and_has_an_effect(position: str, insertion: str, class_position: bool) -> None:
    changes = {"position": position, "position_insertion": insertion, "class_position": class_position}
    model = build_filled(small_config(num_registers=2, num_classes=5, **changes))
    image = torch.randn(1, 3, 48, 64)
    logits = model(image)
    without = build_filled(small_config(num_registers=2, num_classes=5, position="none"))
    without.load_state_dict(model.state_dict(), strict=False)
    assert torch.allclose(logits, without(image), atol=1e-6) == (position == "none")
    # Without positions the model sees a bag of patches: flipping whole patches changes nothing.
    patches_flipped = image.unflatten(2, (3, 16)).flip(2).flatten(2, 3)
    assert torch.allclose(logits, model(patches_flipped), atol=1e-5) == (position == "none")
    model.resize((64, 96))
    assert model(torch.randn(1, 3, 64, 96)).isfinite().all()


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative"])
def test_frozen_positions_stay_frozen_when_resized(position: str) -> None:
    for trainable in (False, True):
        model = build_filled(small_config(position=position)).requires_grad_(trainable)
        model.resize((64, 96))
        assert all(parameter.requires_grad is trainable for parameter in model.parameters())


@torch.no_grad()
def test_tables_are_added_where_the_insertion_says() -> None:
    image = torch.randn(1, 3, 48, 64)
    for insertion, num_tables in (("stem", 1), ("every-layer", 2), ("shared", 1)):
        model = build_filled(small_config(position_insertion=insertion))
        assert len(model.positions) == num_tables
        kept = model.encode(image, keep=("embedding", "blocks.0.output", "blocks.1.output")).kept
        tokens = torch.cat([model.class_token[None], model.embed(image)[0]], dim=1)
        tables = [table.table for table in model.positions]
        if insertion == "stem":
            torch.testing.assert_close(kept["embedding"], tokens + tables[0])
            expected = model.blocks[1](kept["blocks.0.output"])
        else:
            torch.testing.assert_close(kept["embedding"], tokens)
            torch.testing.assert_close(kept["blocks.0.output"], model.blocks[0](tokens + tables[0]))
            expected = model.blocks[1](kept["blocks.0.output"] + tables[-1])
        torch.testing.assert_close(kept["blocks.1.output"], expected)


@pytest.mark.parametrize(("position", "insertion"), [(k, i) for k, ways in POSITION_INSERTIONS.items() for i in ways])
@pytest.mark.parametrize("prefix", [{"num_registers": 2}, {"class_position": False}, {"pool": "mean"}])
@torch.no_grad()
def test_patches_left_get_their_own_positions(position: str, insertion: str, prefix: dict[str, object]) -> None:
    """Compare with a network of the same weights that masks the dropped patches in its attention instead."""
    if position == "relative" or (position in ("none", "sincos-2d") and "class_position" in prefix):
        return
    model = build_filled(small_config(position=position, position_insertion=insertion, num_classes=5, **prefix))
    images, left = torch.randn(2, 3, 48, 64), torch.tensor([[7, 0, 11, 4, 2], [1, 2, 3, 10, 9]])
    encoded = model.encode(images, edit=lambda tokens: PatchSubset(tokens[torch.arange(2)[:, None], left], left))
    first = model.config.num_prefix_tokens
    is_read = torch.zeros(2, model.config.num_tokens, dtype=torch.bool)
    is_read[:, :first] = True
    is_read.scatter_(1, left + first, True)
    for block in model.blocks:  # the reference: all patches are computed, those dropped are never read
        block.attention.forward = partial(attend_masked, block.attention, is_read)
    whole = model.encode(images).tokens
    expected = torch.cat([whole[:, :first], whole[:, first:][torch.arange(2)[:, None], left]], dim=1)
    torch.testing.assert_close(encoded.tokens, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(encoded.patch_indices, left)


def attend_masked(attention: SelfAttention, is_read: torch.Tensor, x: torch.Tensor, recorder: None) -> torch.Tensor:
    b, t, d = x.shape
    q, k, v = (part.view(b, t, 4, d // 4).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=-1))
    logits = q @ k.transpose(-2, -1) / (d // 4) ** 0.5
    maps = logits.masked_fill(~is_read[:, None, None, :], -math.inf).softmax(dim=-1)
    return attention.out((maps @ v).transpose(1, 2).reshape(b, t, d))


@torch.no_grad()
def test_learned_2d_is_column_then_row() -> None:
    model = build_filled(small_config(position="learned-2d"))
    positions = model.positions[0]
    table = positions.compute_table(torch.empty(0))
    assert table.shape == (1 + 12, 32)
    for row, column in itertools.product(range(3), range(4)):
        expected = torch.cat([positions.x_table[column], positions.y_table[row]])
        assert torch.equal(table[1 + 4 * row + column], expected)
    assert torch.equal(table[0], positions.readout[0])


def test_sin_cos_follows_big_vision() -> None:
    table = SinCos2d(small_config(position="sincos-2d")).compute_table(torch.empty(0))
    frequencies = [10_000 ** -(i / 7) for i in range(8)]
    for row, column in itertools.product(range(3), range(4)):
        angles = [column * f for f in frequencies], [row * f for f in frequencies]
        expected = [function(a) for axis in angles for function in (math.sin, math.cos) for a in axis]
        torch.testing.assert_close(table[4 * row + column], torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("class_position", [True, False])
@torch.no_grad()
def test_relative_logits_equal_a_double_loop(class_position: bool) -> None:
    config = small_config(position="relative", class_position=class_position, distillation_token=True, num_registers=1)
    relative = RelativePositions(config)
    fill_randomly(relative)
    q = torch.randn(2, 4, config.num_tokens, 8)
    logits = relative(q)
    # Class, distillation, one register, patches: the register never has a position.
    positions = [0, 1, None, *range(2, 14)] if class_position else [None, None, None, *range(12)]
    num_positions = 14 if class_position else 12
    for t, u in itertools.product(range(config.num_tokens), repeat=2):
        expected = torch.zeros(2, 4)
        if positions[t] is not None and positions[u] is not None:
            embedding = relative.offsets[positions[t] - positions[u] + num_positions - 1]
            expected = q[:, :, t] @ embedding / 8**0.5
        torch.testing.assert_close(logits[:, :, t, u], expected)


@torch.no_grad()
def test_relative_positions_keep_maps_equal_to_a_plain_softmax() -> None:
    model = build_filled(small_config(position="relative"))
    block = model.blocks[0]
    image = torch.randn(2, 3, 48, 64)
    kept = model.encode(image, keep=("embedding", "blocks.0.attention")).kept
    x = block.norm_attention(kept["embedding"])
    q, k, v = (part.view(2, 13, 4, 8).transpose(1, 2) for part in block.attention.qkv(x).chunk(3, dim=-1))
    maps = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5 + block.attention.relative(q), dim=-1)
    torch.testing.assert_close(kept["blocks.0.attention"], maps, rtol=0, atol=1e-6)
    expected = block.attention.out((maps @ v).transpose(1, 2).reshape(2, 13, 32))
    torch.testing.assert_close(block.attention(x), expected)


@settings(deadline=None, max_examples=40)
@given(st.tuples(SIDES, SIDES), st.tuples(SIDES, SIDES))
def test_offset_weights_interpolate_and_keep_the_same_grid(old: tuple[int, int], new: tuple[int, int]) -> None:
    weights = compute_offset_weights(old, new)
    assert weights.shape == (2 * new[0] * new[1] - 1, 2 * old[0] * old[1] - 1)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(weights.shape[0], dtype=torch.float64))
    assert (weights >= 0).all()
    same = compute_offset_weights(old, old)
    assert torch.equal(same, torch.eye(same.shape[0], dtype=torch.float64))


def test_a_doubled_row_of_patches_halves_the_offsets() -> None:
    """Check one row of patches, where the offset is the distance in columns and interpolation is linear."""
    weights = compute_offset_weights((1, 3), (1, 5))
    distances = weights @ torch.arange(-2, 3, dtype=torch.float64)
    torch.testing.assert_close(distances, torch.arange(-4, 5, dtype=torch.float64) / 2)

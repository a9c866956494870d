"""Axial blocks against plain attention within each row and column."""

import pytest
import torch

from tests.filling import build_filled
from vitrine.models.attention import SelfAttention
from vitrine.models.axial import AxialAttention
from vitrine.models.registry import build_model


@torch.no_grad()
def test_axial_attention_equals_attention_within_each_line() -> None:
    model = build_filled("Axial-ViT-B/32", depth=1, image_size=(96, 64))
    x = torch.randn(2, 6, 768)
    for axis, lines in (("rows", x.view(2, 3, 2, 768)), ("columns", x.view(2, 3, 2, 768).transpose(1, 2))):
        attention = getattr(model.blocks[0], axis).attention
        assert isinstance(attention, AxialAttention)
        plain = SelfAttention(768, 12)
        plain.load_state_dict(attention.state_dict())
        expected = torch.stack([plain(lines[:, index]) for index in range(lines.shape[1])], dim=1)
        if axis == "columns":
            expected = expected.transpose(1, 2)
        torch.testing.assert_close(attention(x), expected.reshape(2, 6, 768), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_patch_reaches_its_row_then_the_whole_image() -> None:
    model = build_filled("Axial-ViT-B/32", depth=1, image_size=(96, 64))
    image = torch.randn(1, 3, 96, 64)
    changed = image.clone()
    changed[:, :, 32:64, :32] += 1.0  # the patch at row 1, column 0
    kept = [model.encode(each, keep=("blocks.0.*.output",)).kept for each in (image, changed)]
    after_rows = (kept[0]["blocks.0.rows.output"] - kept[1]["blocks.0.rows.output"]).abs().amax(dim=-1)[0] > 1e-6
    after_columns = (kept[0]["blocks.0.columns.output"] - kept[1]["blocks.0.columns.output"]).abs().amax(dim=-1)[0] > 1e-6
    assert after_rows.tolist() == [False, False, True, True, False, False]
    assert after_columns.all()


@torch.no_grad()
def test_attention_maps_are_per_row_and_column() -> None:
    model = build_filled("Axial-ViT-B/32", depth=1, image_size=(96, 64))
    kept = model.encode(torch.randn(2, 3, 96, 64), keep=("*.attention",)).kept
    assert kept["blocks.0.rows.attention"].shape == (2 * 3, 12, 2, 2)
    assert kept["blocks.0.columns.attention"].shape == (2 * 2, 12, 3, 3)


@pytest.mark.parametrize("changes", [{"pool": "class"}, {"num_registers": 1}, {"class_token": True}, {"position": "relative"}])
def test_prefix_tokens_and_relative_positions_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Axial models"):
        build_model("Axial-ViT-B/32", **changes)

"""Axial-ViT: attention along rows, then along columns, each with its MLP (arXiv:2010.11929, appendix D.6).

Shapes: B batch, R rows and S columns of the grid, N = R * S patches, D width, H heads.
"""

from typing import Literal

from torch import Tensor, nn

from vitrine.models.attention import SelfAttention
from vitrine.models.blocks import EncoderBlock
from vitrine.models.config import ViTConfig
from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.vit import VisionTransformer


class AxialAttention(SelfAttention):
    """Self-attention within each row, or within each column; its maps are (B * R, H, S, S) or (B * S, H, R, R)."""

    def __init__(self, config: ViTConfig, axis: Literal["row", "column"]) -> None:
        super().__init__(config.width, config.num_heads, qkv_bias=config.qkv_bias)
        self.axis = axis
        self.grid = config.grid

    def forward(self, x: Tensor, recorder: IntermediateRecorder | None = None) -> Tensor:
        """Attend among the patches (B, N, D) of each row or column."""
        grid = x.unflatten(1, self.grid)  # (B, R, S, D)
        if self.axis == "row":
            return super().forward(grid.flatten(0, 1), recorder).view_as(x)
        lines = grid.transpose(1, 2)  # (B, S, R, D)
        y = super().forward(lines.flatten(0, 1), recorder)
        return y.view_as(lines).transpose(1, 2).flatten(1, 2)

    def resize(self, grid: tuple[int, int]) -> None:
        self.grid = grid


class AxialBlock(nn.Module):
    """Two encoder blocks: one attends along rows, the other along columns."""

    intermediates = ("rows.attention", "rows.output", "columns.attention", "columns.output")

    def __init__(self, config: ViTConfig, index: int) -> None:
        super().__init__()
        self.rows = EncoderBlock(config, index, AxialAttention(config, "row"))
        self.columns = EncoderBlock(config, index, AxialAttention(config, "column"))

    def forward(self, x: Tensor, recorder: IntermediateRecorder | None = None) -> Tensor:
        x = self.rows(x, None if recorder is None else recorder.under("rows"))
        return self.columns(x, None if recorder is None else recorder.under("columns"))

    def resize(self, grid: tuple[int, int]) -> None:
        self.rows.resize(grid)
        self.columns.resize(grid)


class AxialTransformer(VisionTransformer):
    """A ViT with axial blocks."""

    block_intermediates = AxialBlock.intermediates

    def build_block(self, index: int) -> nn.Module:
        return AxialBlock(self.config, index)

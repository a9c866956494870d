"""Position embeddings and their change of resolution (arXiv:2010.11929, sections 3.1 and 3.2, appendix D.4).

Shapes: N patches on a grid of R rows and S columns, T tokens (prefix and patches), D width, H heads, K = D // H.

Class and distillation tokens come first and may have positions of their own; registers seldom have one.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.models.config import ResizeMethod, ViTConfig
from vitrine.models.weight_init import init_positions

Grid = tuple[int, int]


class AddedPositions(nn.Module):
    """Positions that are added to the tokens, at the stem or at the start of each layer."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid = config.grid
        self.num_rows = config.num_position_rows
        self.num_prefix_tokens = config.num_prefix_tokens

    def forward(self, tokens: Tensor, patch_indices: Tensor | None = None) -> Tensor:
        """Add positions to tokens (B, T, D); `patch_indices` (B, N') are the patches left, where some were dropped."""
        table = self.compute_table(tokens)
        if patch_indices is not None:
            b, rows = tokens.shape[0], self.num_rows
            prefix = F.pad(table[:rows], (0, 0, 0, self.num_prefix_tokens - rows)).expand(b, -1, -1)
            return tokens + torch.cat([prefix, table[rows:][patch_indices]], dim=1)
        if self.num_prefix_tokens > self.num_rows:
            zeros = table.new_zeros(self.num_prefix_tokens - self.num_rows, table.shape[1])
            table = torch.cat([table[: self.num_rows], zeros, table[self.num_rows :]])  # (T, D)
        return tokens + table

    def compute_table(self, like: Tensor) -> Tensor:
        """Return one row per token that has a position, class and distillation tokens first, on the device of `like`."""
        raise NotImplementedError

    def resize(self, grid: Grid, method: ResizeMethod) -> None:
        """Interpolate the positions to another grid."""
        raise NotImplementedError


class Learned1d(AddedPositions):
    """Learned 1-D positions: one row per token in raster order, the paper's default (eq. 1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(self.num_rows + config.num_patches, config.width))
        init_positions(self.table)

    def compute_table(self, like: Tensor) -> Tensor:
        return self.table

    def resize(self, grid: Grid, method: ResizeMethod) -> None:
        """Interpolate the table to another grid, for `Model.resize`."""
        readout, patches = self.table.detach().split([self.num_rows, self.grid[0] * self.grid[1]])
        resized = resize_positions(patches, self.grid, grid, method)
        self.table = replace_parameter(self.table, torch.cat([readout, resized]))
        self.grid = grid


class Learned2d(AddedPositions):
    """Learned 2-D positions: a table for grid columns and one for grid rows, each D / 2 wide, concatenated (appendix D.4)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows, columns = config.grid
        self.x_table = nn.Parameter(torch.empty(columns, config.width // 2))
        self.y_table = nn.Parameter(torch.empty(rows, config.width // 2))
        init_positions(self.x_table)
        init_positions(self.y_table)
        self.readout: nn.Parameter | None = None
        if self.num_rows > 0:
            self.readout = nn.Parameter(torch.empty(self.num_rows, config.width))
            init_positions(self.readout)

    def compute_table(self, like: Tensor) -> Tensor:
        table = join_axes(self.x_table, self.y_table)
        return table if self.readout is None else torch.cat([self.readout, table])

    def resize(self, grid: Grid, method: ResizeMethod) -> None:
        """Interpolate the tables of both axes to another grid, for `Model.resize`."""
        self.x_table = replace_parameter(self.x_table, resize_axis(self.x_table.detach(), grid[1]))
        self.y_table = replace_parameter(self.y_table, resize_axis(self.y_table.detach(), grid[0]))
        self.grid = grid


class SinCos2d(AddedPositions):
    """Fixed sines and cosines of the grid coordinates (big_vision's `posemb_sincos_2d`). Nothing to learn or store."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.num_frequencies = config.width // 4

    def compute_table(self, like: Tensor) -> Tensor:
        rows, columns = self.grid
        return join_axes(self._encode(columns, like.device), self._encode(rows, like.device)).to(like.dtype)

    def _encode(self, length: int, device: torch.device) -> Tensor:
        """Return (length, D / 2): sines, then cosines, of each coordinate along one axis."""
        # The -1 makes the longest wavelength exactly 10,000 * 2 pi; other sin-cos embeddings divide by the full count.
        exponent = torch.arange(self.num_frequencies, device=device, dtype=torch.float32) / (self.num_frequencies - 1)
        angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * 10_000.0**-exponent
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    def resize(self, grid: Grid, method: ResizeMethod) -> None:
        self.grid = grid


class RelativePositions(nn.Module):
    """Relative positions: one embedding per offset of query and key, added to the attention logits (appendix D.4).

    The paper does not say how heads, scale and class token are treated. Here each layer has its own embeddings, shared by
    its heads, and query times embedding is scaled like query times key (both as in arXiv:1803.02155). Class and distillation
    tokens with a position come before the first patch, as in the sequence; a token without a position adds no logits, neither
    as query nor as key.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid = config.grid
        self.num_rows = config.num_position_rows
        self.num_prefix_tokens = config.num_prefix_tokens
        num_positions = self.num_rows + config.num_patches
        self.offsets = nn.Parameter(torch.empty(2 * num_positions - 1, config.width // config.num_heads))
        init_positions(self.offsets)

    def forward(self, q: Tensor) -> Tensor:
        """Compute the logits (B, H, T, T) to add before the softmax, from queries (B, H, T, K)."""
        b, h, t, k = q.shape
        table = torch.cat([self.offsets, self.offsets.new_zeros(1, k)])
        logits = (q * k**-0.5) @ table.T  # (B, H, T, number of embeddings)
        return logits.gather(-1, self.compute_index(q.device).expand(b, h, t, t))

    def compute_index(self, device: torch.device) -> Tensor:
        """Return (T, T): which embedding is for query t and key u; the last, always zero, is for pairs without one."""
        num_patches = self.grid[0] * self.grid[1]
        num_tokens = self.num_prefix_tokens + num_patches
        num_positions = self.num_rows + num_patches
        position = torch.arange(num_positions, device=device)
        # Tokens without a position, such as registers, lie between the class token and the patches.
        token = torch.where(position < self.num_rows, position, position - num_positions + num_tokens)
        index = torch.full((num_tokens, num_tokens), 2 * num_positions - 1, device=device)
        index[token[:, None], token[None, :]] = position[:, None] - position[None, :] + num_positions - 1
        return index

    def resize(self, grid: Grid) -> None:
        """Interpolate the table of offsets to another grid, for `Model.resize`."""
        # The outermost offsets are only between a class token and the end of the image, on any grid.
        first, patches, last = self.offsets.detach().tensor_split((self.num_rows, len(self.offsets) - self.num_rows))
        weights = compute_offset_weights(self.grid, grid).to(patches)
        self.offsets = replace_parameter(self.offsets, torch.cat([first, weights @ patches, last]))
        self.grid = grid


ADDED_POSITIONS: dict[str, type[AddedPositions]] = {
    "learned-1d": Learned1d,
    "learned-2d": Learned2d,
    "sincos-2d": SinCos2d,
}


def build_positions(config: ViTConfig) -> nn.ModuleList:
    """Build the position tables that are added to the tokens: none, one, or one for each layer."""
    kind = ADDED_POSITIONS.get(config.position)
    if kind is None:
        return nn.ModuleList()
    num_tables = config.depth if config.position_insertion == "every-layer" else 1
    return nn.ModuleList(kind(config) for _ in range(num_tables))


def replace_parameter(old: nn.Parameter, values: Tensor) -> nn.Parameter:
    """Return a parameter with new values that is frozen if the old one was."""
    return nn.Parameter(values, requires_grad=old.requires_grad)


def join_axes(x_table: Tensor, y_table: Tensor) -> Tensor:
    """Combine tables of columns (S, E) and rows (R, E) to one row per patch (R * S, 2E) in raster order, columns first."""
    rows, columns = y_table.shape[0], x_table.shape[0]
    return torch.cat([x_table.repeat(rows, 1), y_table.repeat_interleave(columns, dim=0)], dim=1)


def resize_positions(positions: Tensor, old_grid: Grid, new_grid: Grid, method: ResizeMethod = "paper") -> Tensor:
    """Interpolate grid positions (N, D) from `old_grid` to `new_grid`, both (rows, columns).

    Fine-tuning at a higher resolution keeps the patch size, so there are more patches, and interpolation gives them the
    positions of the same parts of the image. The class token has no coordinates: split its row off before calling.
    """
    rows, columns = old_grid
    if positions.shape[0] != rows * columns:
        found = f"{positions.shape[0]} positions do not fill a {rows} x {columns} grid, expected {rows * columns}"
        raise ValueError(f"{found}. If the first row belongs to the class token, pass positions[1:].")
    grid = positions.view(rows, columns, -1)  # (R, S, D)
    if method != "paper":
        planes = grid.permute(2, 0, 1)[None]  # (1, D, R, S)
        resized = F.interpolate(planes, new_grid, mode="bicubic", align_corners=False, antialias=method == "timm")
        return resized[0].permute(1, 2, 0).reshape(-1, positions.shape[1])
    down = compute_corner_weights(rows, new_grid[0]).to(positions)
    across = compute_corner_weights(columns, new_grid[1]).to(positions)
    # Two small matrix products equal scipy's zoom(order=1), which the released code uses, for any pair of grids.
    return torch.einsum("ri,cj,ijd->rcd", down, across, grid).reshape(-1, positions.shape[1])


def resize_axis(table: Tensor, length: int) -> Tensor:
    """Interpolate a table of one grid axis (rows or columns) to another length."""
    return compute_corner_weights(table.shape[0], length).to(table) @ table


def compute_corner_weights(old: int, new: int) -> Tensor:
    """Return the matrix (new, old) of linear interpolation along one axis, with first and last coordinates aligned."""
    source = torch.linspace(0, old - 1, new, dtype=torch.float64) if new > 1 else torch.zeros(1, dtype=torch.float64)
    return (1 - (source[:, None] - torch.arange(old)[None, :]).abs()).clamp(min=0)


def compute_offset_weights(old_grid: Grid, new_grid: Grid) -> Tensor:
    """Return the matrix (2N' - 1, 2N - 1) that interpolates relative embeddings from an old to a new grid.

    An offset in raster order is a step of some rows and some columns, but several steps share an offset. The one with the
    fewest columns is taken, scaled to the old grid, and interpolated bilinearly between the four old steps around it.
    """
    (rows, columns), (new_rows, new_columns) = old_grid, new_grid
    old, new = rows * columns, new_rows * new_columns
    offsets = torch.arange(-(new - 1), new, dtype=torch.float64)
    down = (offsets / new_columns).round().clamp(1 - new_rows, new_rows - 1)
    across = offsets - down * new_columns
    weights = torch.zeros(2 * new - 1, 2 * old - 1, dtype=torch.float64)
    for row, row_weight in mix_neighbours(down, rows, new_rows):
        for column, column_weight in mix_neighbours(across, columns, new_columns):
            source = (row * columns + column + old - 1).long()
            weights[torch.arange(2 * new - 1), source] += row_weight * column_weight
    return weights


def mix_neighbours(step: Tensor, old: int, new: int) -> list[tuple[Tensor, Tensor]]:
    """Scale a step along an axis of `new` cells to `old` cells; return the two whole steps around it with their weights."""
    scaled = step * (old - 1) / max(1, new - 1)
    floor = scaled.floor()
    above = scaled - floor
    return [(floor, 1 - above), ((floor + 1).clamp(max=old - 1), above)]

"""Patch embedding (arXiv:2010.11929, section 3.1, eq. 1).

Shapes: B batch, C channels, P patch size, R rows and S columns of the grid, N = R * S patches, D width.
"""

from torch import Tensor, nn

from vitrine.models.weight_init import init_lecun_normal


class PatchEmbedding(nn.Module):
    """Cut an image into patches and project each by a linear layer.

    A convolution of stride and kernel P computes the same, but takes up to 2.7 times as long in training on CPUs (docs/log.md).
    """

    def __init__(self, num_channels: int, patch_size: int, width: int, bias: bool = True) -> None:
        super().__init__()
        self.patch_size = patch_size
        # Columns in the order (channel, row, column), so that a convolution's kernel loads as kernel.flatten(1).
        self.projection = nn.Linear(num_channels * patch_size * patch_size, width, bias=bias)
        init_lecun_normal(self.projection)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(cut_patches(images, self.patch_size))  # (B, N, D)


def compute_stride(patch_size: int, stem_stages: tuple[int, ...] | None) -> int:
    """Return the pixels from one patch to the next; `stem_stages` is None for a model without a ResNet stem."""
    return patch_size if stem_stages is None else patch_size * 2 ** (2 + max(0, len(stem_stages) - 1))


def cut_patches(images: Tensor, patch_size: int) -> Tensor:
    """Cut images (B, C, H, W) into patches (B, N, C * P * P) in raster order; incomplete ones at the edges are dropped."""
    b, c, height, width = images.shape
    rows, columns = height // patch_size, width // patch_size
    if (rows * patch_size, columns * patch_size) != (height, width):
        images = images[:, :, : rows * patch_size, : columns * patch_size]
    cells = images.reshape(b, c, rows, patch_size, columns, patch_size)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(b, rows * columns, c * patch_size * patch_size)


def join_patches(patches: Tensor, grid: tuple[int, int], patch_size: int) -> Tensor:
    """Join patches (B, N, C * P * P) to images (B, C, H, W): the inverse of `cut_patches`."""
    b, (rows, columns) = len(patches), grid
    cells = patches.reshape(b, rows, columns, -1, patch_size, patch_size)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(b, -1, rows * patch_size, columns * patch_size)

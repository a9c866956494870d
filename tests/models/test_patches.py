"""Patch embedding against torch's convolution, which the released code uses."""

import pytest
import torch
from torch.nn import functional as F

from tests.filling import fill_randomly
from vitrine.models.patches import PatchEmbedding, cut_patches, join_patches


@pytest.mark.parametrize(("size", "patch_size"), [((48, 80), 16), ((45, 30), 14), ((7, 9), 1), ((5, 5), 5)])
@torch.no_grad()
def test_embedding_equals_a_valid_convolution(size: tuple[int, int], patch_size: int) -> None:
    embedding = PatchEmbedding(3, patch_size, 8)
    fill_randomly(embedding)
    images = torch.randn(2, 3, *size)
    kernel = embedding.projection.weight.view(8, 3, patch_size, patch_size)
    convolved = F.conv2d(images, kernel, embedding.projection.bias, stride=patch_size)
    torch.testing.assert_close(embedding(images), convolved.flatten(2).transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_patches_are_cut_in_raster_order() -> None:
    images = torch.arange(2 * 4 * 6.0).view(1, 2, 4, 6)
    patches = cut_patches(images, 2)
    assert patches.shape == (1, 6, 8)
    assert torch.equal(patches[0, 4], images[0, :, 2:4, 2:4].flatten())


def test_joined_patches_are_the_image() -> None:
    images = torch.rand(2, 3, 8, 12)
    assert torch.equal(join_patches(cut_patches(images, 4), (2, 3), 4), images)

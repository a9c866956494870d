"""Masked patch prediction: each patch of the images against its definition; the figure."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.objectives.test_masked_patches import TARGETS, build, draw_batch
from vitrine.inspection.report import draw_masked_patches, predict_masked_patches
from vitrine.objectives.config import PatchTarget


@pytest.mark.parametrize("target", TARGETS)
def test_masked_replaced_and_kept_patches(target: PatchTarget) -> None:
    torch.manual_seed(0)
    objective, batch = build(target).eval(), draw_batch(3, step=5)
    batch = objective.add_draws(batch)
    masked = predict_masked_patches(objective, batch)
    corruption = objective.read_corruption(batch)
    for image in range(3):
        cells = [
            each[image].reshape(4, 8, 4, 8, 3).swapaxes(1, 2).reshape(16, 8, 8, 3)
            for each in (masked.image, masked.shown, masked.target, masked.prediction)
        ]
        original, shown, expected, predicted = cells
        np.testing.assert_array_equal(masked.image[image], batch.image[image].permute(1, 2, 0))
        corrupted = corruption.index[image].tolist()
        for patch in range(16):
            if patch not in corrupted:
                assert all(np.array_equal(each[patch], original[patch]) for each in cells)
        for patch in corrupted[: corruption.num_masked]:
            assert (shown[patch] == 127).all()
        replaced = corrupted[corruption.num_masked : corruption.num_masked + corruption.replacements.shape[1]]
        for patch, other in zip(replaced, corruption.replacements[image].tolist(), strict=True):
            np.testing.assert_array_equal(shown[patch], original[other])
        for patch in corrupted[corruption.num_masked + len(replaced) :]:
            np.testing.assert_array_equal(shown[patch], original[patch])
        if target == "pixels":
            np.testing.assert_array_equal(expected, original)
        if target == "mean-colour":  # one colour each
            assert all(np.ptp(cell[patch], axis=(0, 1)).max() == 0 for cell in (expected, predicted) for patch in corrupted)
        assert not np.array_equal(predicted[corrupted], original[corrupted])


@pytest.mark.parametrize("num_channels", [1, 3])
def test_figure_has_a_row_for_each_image(num_channels: int, tmp_path: Path) -> None:
    objective = build(num_channels=num_channels).eval()
    sizes = []
    for num_images in (1, 3):
        masked = predict_masked_patches(objective, objective.add_draws(draw_batch(num_images, num_channels)))
        draw_masked_patches(masked, tmp_path / "drawn.png", [f"$image {number}" for number in range(num_images)])
        with Image.open(tmp_path / "drawn.png") as drawn:
            sizes.append(drawn.size)
    assert sizes[0][0] == sizes[1][0] > 800
    assert sizes[1][1] > 2.5 * sizes[0][1]

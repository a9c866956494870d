"""What is drawn of masked patches, against the patches themselves."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.objectives.test_masked_patches import TARGETS, build, draw_batch
from vitrine.inspection.report import draw_masked_patches, picture_masked_patches
from vitrine.objectives.config import PatchTarget


@pytest.mark.parametrize("target", TARGETS)
def test_each_patch_is_what_became_of_it(target: PatchTarget) -> None:
    torch.manual_seed(0)
    objective, batch = build(target).eval(), draw_batch(3, step=5)
    pictures = picture_masked_patches(objective, batch)
    corruption = objective.draw(batch)
    for image in range(3):
        cells = [
            each[image].reshape(4, 8, 4, 8, 3).swapaxes(1, 2).reshape(16, 8, 8, 3)
            for each in (pictures.image, pictures.shown, pictures.target, pictures.prediction)
        ]
        original, shown, wanted, predicted = cells
        np.testing.assert_array_equal(pictures.image[image], batch.image[image].permute(1, 2, 0))
        places = corruption.places[image].tolist()
        for place in range(16):
            if place not in places:
                assert all(np.array_equal(each[place], original[place]) for each in cells)
        for place in places[: corruption.num_masked]:
            assert (shown[place] == 127).all()
        replaced = places[corruption.num_masked : corruption.num_masked + corruption.replacements.shape[1]]
        for place, other in zip(replaced, corruption.replacements[image].tolist(), strict=True):
            np.testing.assert_array_equal(shown[place], original[other])
        for place in places[corruption.num_masked + len(replaced) :]:
            np.testing.assert_array_equal(shown[place], original[place])
        if target == "pixels":
            np.testing.assert_array_equal(wanted, original)
        if target == "mean-colour":  # one colour each
            assert all(np.ptp(cell[place], axis=(0, 1)).max() == 0 for cell in (wanted, predicted) for place in places)
        assert not np.array_equal(predicted[places], original[places])


@pytest.mark.parametrize("num_channels", [1, 3])
def test_a_row_for_each_image_is_drawn(num_channels: int, tmp_path: Path) -> None:
    objective = build(num_channels=num_channels).eval()
    sizes = []
    for num_images in (1, 3):
        pictures = picture_masked_patches(objective, draw_batch(num_images, num_channels))
        draw_masked_patches(pictures, tmp_path / "drawn.png", [f"$image {number}" for number in range(num_images)])
        with Image.open(tmp_path / "drawn.png") as drawn:
            sizes.append(drawn.size)
    assert sizes[0][0] == sizes[1][0] > 800
    assert sizes[1][1] > 2.5 * sizes[0][1]

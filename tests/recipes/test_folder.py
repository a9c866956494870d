"""The rule for folders: what it gives for any number of images."""

import pytest

from vitrine.recipe import Recipe
from vitrine.recipes.finetune import Transfer
from vitrine.recipes.folder import EPOCHS, LARGEST_PART, LEAST_STEPS, folder
from vitrine.train.schedule import compute_rate

NUMBERS = [1, 20, 100, 740, 1_020, 1_999, 2_000, 10_000, 49_999, 50_000, 200_000, 1_281_167]


def build(num_images: int) -> Recipe:
    return folder(Transfer("checkpoint", "images", num_images=num_images, image_area=500 * 375, num_classes=10))


@pytest.mark.parametrize("num_images", NUMBERS)
def test_every_run_warms_up_for_a_tenth_and_ends(num_images: int) -> None:
    recipe = build(num_images)
    steps = recipe.compute_total_steps(num_images)
    assert steps >= LEAST_STEPS
    assert recipe.optim.warmup_steps == pytest.approx(steps / 10, abs=1)
    assert compute_rate(recipe.optim, recipe.optim.warmup_steps, steps) == recipe.optim.learning_rate
    assert recipe.loader.batch_size / recipe.machine.accumulation_steps <= LARGEST_PART


def test_more_images_come_in_larger_batches() -> None:
    batches = [build(number).loader.batch_size for number in NUMBERS]
    assert batches == sorted(batches)
    assert (batches[0], batches[-1]) == (32, 256)


def test_few_images_are_seen_more_often() -> None:
    assert [build(number).epochs for number in (740, 1_281_167)] == [EPOCHS, EPOCHS]
    assert build(100).compute_total_steps(100) == LEAST_STEPS


def test_the_checkpoint_keeps_its_resolution() -> None:
    assert build(740).model.changes == {}

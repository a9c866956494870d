"""Tests of recipes/finetune.py.

Fine-tuning against table 4 and appendix B.1.1 of arXiv:2010.11929, written out here.
The rule for folders: what it gives for any number of images.
"""

import pytest

from vitrine.recipe import Recipe
from vitrine.recipes.finetune import EPOCHS, FINETUNING, LARGEST_PART, LEAST_STEPS, FinetuneTask, folder
from vitrine.recipes.registry import summarise_recipe
from vitrine.training.schedule import compute_lr

TRANSFER = FinetuneTask("checkpoint", "images", num_images=50_000, image_area=32 * 32, num_classes=10)

# Steps, rates, side of the images, share held out to choose a rate, and warm-up, which is of the released code.
TABLE_4 = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 384, 0.01, 500),
    "imagenet-polyak": (20_000, (0.003, 0.01, 0.03, 0.06), 512, 0.01, 500),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 384, 0.02, 500),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 384, 0.02, 500),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 384, 0.1, 100),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), 384, 0.1, 100),
    "vtab": (2_500, (0.01,), 384, 0.0, 500),
}

# Of models pre-trained on ImageNet-21k: ViT-B/16 in table 5, ViT-L/16 in table 2 where the first has no figure.
ACCURACIES = {
    "imagenet": "83.97",
    "imagenet-polyak": "85.30",
    "cifar100": "91.67",
    "cifar10": "98.95",
    "pets": "94.43",
    "flowers": "99.38",
    "vtab": "72.72",
}


def test_every_row_is_there() -> None:
    assert set(FINETUNING) == set(TABLE_4) == set(ACCURACIES)


@pytest.mark.parametrize("name", TABLE_4)
def test_settings_are_those_of_table_4(name: str) -> None:
    entry = FINETUNING[name]
    recipe = entry.build(TRANSFER)
    optim = recipe.optim
    found = (recipe.total_steps, entry.rates, recipe.model.image_size, entry.held_out, optim.warmup_steps)
    assert found == TABLE_4[name]
    assert (optim.kind, optim.momentum, optim.weight_decay, optim.decay) == ("sgd", 0.9, 0.0, "cosine")
    assert (recipe.loader.batch_size, optim.max_grad_norm) == (512, 1.0)
    assert (recipe.head_init, recipe.supervised.loss) == ("zero", "softmax")
    assert (recipe.augment.crop, recipe.augment.crop_area, recipe.augment.flip) == ("inception", (0.05, 1.0), True)


def test_only_table_2_s_imagenet_is_averaged() -> None:
    factors = {name: entry.build(TRANSFER).polyak_factor for name, entry in FINETUNING.items()}
    assert factors.pop("imagenet-polyak") == 0.9999
    assert set(factors.values()) == {None}


@pytest.mark.parametrize("name", ACCURACIES)
def test_the_expectation_is_the_paper_s(name: str) -> None:
    assert ACCURACIES[name] in summarise_recipe(FINETUNING[name].build)[1]


NUMBERS = [1, 20, 100, 740, 1_020, 1_999, 2_000, 10_000, 49_999, 50_000, 200_000, 1_281_167]


def build(num_images: int) -> Recipe:
    return folder(FinetuneTask("checkpoint", "images", num_images=num_images, image_area=500 * 375, num_classes=10))


@pytest.mark.parametrize("num_images", NUMBERS)
def test_every_run_warms_up_for_a_tenth_and_ends(num_images: int) -> None:
    recipe = build(num_images)
    steps = recipe.compute_total_steps(num_images)
    assert steps >= LEAST_STEPS
    assert recipe.optim.warmup_steps == pytest.approx(steps / 10, abs=1)
    assert compute_lr(recipe.optim, recipe.optim.warmup_steps, steps) == recipe.optim.learning_rate
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

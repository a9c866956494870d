"""Recipes of fine-tuning: table 4 of arXiv:2010.11929 and BiT's HyperRule typed in by hand, and the rule for any folder."""

import pytest

from vitrine.recipe import Recipe
from vitrine.recipes.finetune import TABLE_4_RECIPES, FinetuneTask, folder, hyperrule
from vitrine.recipes.registry import summarise_recipe
from vitrine.training.schedule import compute_lr

TASK = FinetuneTask("checkpoint", "images", num_images=50_000, num_classes=10, measure_area=lambda: 32 * 32)

# Steps, learning rates, image size, fraction held out to choose a learning rate, and the released code's warm-up steps.
SETTINGS = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 384, 0.01, 500),
    "imagenet-polyak": (20_000, (0.003, 0.01, 0.03, 0.06), 512, 0.01, 500),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 384, 0.02, 500),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 384, 0.02, 500),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 384, 0.1, 100),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), 384, 0.1, 100),
    "vtab": (2_500, (0.01,), 384, 0.0, 500),
}

# Pre-trained on ImageNet-21k: ViT-B/16 in table 5, or else ViT-L/16 in table 2.
ACCURACIES = {
    "imagenet": "83.97",
    "imagenet-polyak": "85.30",
    "cifar100": "91.67",
    "cifar10": "98.95",
    "pets": "94.43",
    "flowers": "99.38",
    "vtab": "72.72",
}


def test_every_row_of_table_4_has_a_recipe() -> None:
    assert set(TABLE_4_RECIPES) == set(SETTINGS) == set(ACCURACIES)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_table_4(name: str) -> None:
    entry = TABLE_4_RECIPES[name]
    recipe = entry.build(TASK)
    optim = recipe.optim
    settings = (recipe.total_steps, entry.learning_rates, recipe.model.image_size, entry.held_out, optim.warmup_steps)
    assert settings == SETTINGS[name]
    assert (optim.kind, optim.momentum, optim.weight_decay, optim.decay) == ("sgd", 0.9, 0.0, "cosine")
    assert (recipe.loader.batch_size, optim.max_grad_norm) == (512, 1.0)
    assert (recipe.head_init, recipe.supervised.loss) == ("zero", "softmax")
    assert (recipe.augment.crop, recipe.augment.crop_area, recipe.augment.flip) == ("inception", (0.05, 1.0), True)


def test_only_imagenet_polyak_averages_weights() -> None:
    factors = {name: entry.build(TASK).polyak_factor for name, entry in TABLE_4_RECIPES.items()}
    assert factors.pop("imagenet-polyak") == 0.9999
    assert set(factors.values()) == {None}


@pytest.mark.parametrize("name", ACCURACIES)
def test_expected_accuracy_is_the_paper_s(name: str) -> None:
    assert ACCURACIES[name] in summarise_recipe(TABLE_4_RECIPES[name].build)[1]


NUMBERS = [1, 20, 100, 740, 1_020, 1_999, 2_000, 10_000, 49_999, 50_000, 200_000, 1_281_167]


def build_folder(num_images: int) -> Recipe:
    return folder(FinetuneTask("checkpoint", "images", num_images=num_images, num_classes=10, measure_area=lambda: 500 * 375))


@pytest.mark.parametrize("num_images", NUMBERS)
def test_folder_warms_up_for_a_tenth_of_the_run(num_images: int) -> None:
    recipe = build_folder(num_images)
    steps = recipe.compute_total_steps(num_images)
    assert steps >= 60
    assert recipe.optim.warmup_steps == pytest.approx(steps / 10, abs=1)
    assert compute_lr(recipe.optim, recipe.optim.warmup_steps, steps) == recipe.optim.learning_rate
    assert recipe.loader.batch_size / recipe.machine.accumulation_steps <= 64


def test_folder_has_larger_batches_for_more_images() -> None:
    batches = [build_folder(number).loader.batch_size for number in NUMBERS]
    assert batches == sorted(batches)
    assert (batches[0], batches[-1]) == (32, 256)


def test_folder_trains_for_7_epochs_or_60_steps() -> None:
    assert [build_folder(number).epochs for number in (740, 1_281_167)] == [7, 7]
    assert build_folder(100).compute_total_steps(100) == 60


def test_folder_keeps_the_checkpoint_s_resolution() -> None:
    assert build_folder(740).model.changes == {}


# Fewest and most images of each rule: steps, warm-up steps, steps at which the learning rate falls to a tenth, mixup.
RULE = {
    (1, 19_999): (500, 100, (200, 300, 400), 0.0),
    (20_000, 499_999): (10_000, 500, (3_000, 6_000, 9_000), 0.1),
    (500_000, 1_281_167): (20_000, 500, (6_000, 12_000, 18_000), 0.1),
}
CASES = [(num_images, *row) for bounds, row in RULE.items() for num_images in bounds]


def make_task(num_images: int = 1000, image_area: int = 500 * 375) -> FinetuneTask:
    return FinetuneTask("checkpoint", "images", num_images=num_images, num_classes=10, measure_area=lambda: image_area)


@pytest.mark.parametrize(("num_images", "steps", "warmup", "falls", "mixup"), CASES)
def test_hyperrule_has_the_schedule_of_the_released_code(
    num_images: int, steps: int, warmup: int, falls: tuple[int, ...], mixup: float
) -> None:
    recipe = hyperrule(make_task(num_images))
    assert (recipe.total_steps, recipe.mixing.mixup) == (steps, mixup)
    learning_rates = [compute_lr(recipe.optim, step, steps) for step in range(steps)]
    assert learning_rates[:warmup] == pytest.approx([0.003 * step / warmup for step in range(warmup)])
    start = warmup
    for i, end in enumerate((*falls, steps)):
        assert learning_rates[start:end] == pytest.approx([0.003 / 10**i] * (end - start))
        start = end


@pytest.mark.parametrize(
    ("image_area", "resize", "image_size"),
    [(32 * 32, 160, 128), (96 * 96 - 1, 160, 128), (96 * 96, 448, 384), (500 * 375, 448, 384)],
)
def test_hyperrule_chooses_the_resolution_by_image_size(image_area: int, resize: int, image_size: int) -> None:
    recipe = hyperrule(make_task(image_area=image_area))
    assert (recipe.augment.crop, recipe.augment.resize, recipe.model.image_size) == ("random", resize, image_size)
    assert recipe.augment.flip


def test_other_settings_of_hyperrule() -> None:
    recipe = hyperrule(make_task())
    assert (recipe.optim.kind, recipe.optim.momentum, recipe.optim.weight_decay) == ("sgd", 0.9, 0.0)
    assert recipe.loader.batch_size == 512
    assert recipe.optim.max_grad_norm is None

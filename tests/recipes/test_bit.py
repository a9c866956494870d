"""BiT's rule against the breakpoints of its released code, and its SGD against the figures of its paper."""

from dataclasses import replace

import pytest

from vitrine.recipes.bit import BIT_PRETRAINING, hyperrule
from vitrine.recipes.finetune import Transfer
from vitrine.recipes.pretrain import PRETRAINING
from vitrine.train.schedule import compute_rate

# Images up to and from which the rule changes: steps, warm-up, where the rate falls to a tenth, mixup.
RULE = {
    (1, 19_999): (500, 100, (200, 300, 400), 0.0),
    (20_000, 499_999): (10_000, 500, (3_000, 6_000, 9_000), 0.1),
    (500_000, 1_281_167): (20_000, 500, (6_000, 12_000, 18_000), 0.1),
}
CASES = [(num_images, *row) for bounds, row in RULE.items() for num_images in bounds]


def make_transfer(num_images: int = 1000, image_area: int = 500 * 375) -> Transfer:
    return Transfer("checkpoint", "images", num_images=num_images, image_area=image_area, num_classes=10)


@pytest.mark.parametrize(("num_images", "steps", "warmup", "falls", "mixup"), CASES)
def test_the_schedule_is_that_of_the_released_code(
    num_images: int, steps: int, warmup: int, falls: tuple[int, ...], mixup: float
) -> None:
    recipe = hyperrule(make_transfer(num_images))
    assert (recipe.total_steps, recipe.mixing.mixup) == (steps, mixup)
    rates = [compute_rate(recipe.optim, step, steps) for step in range(steps)]
    assert rates[:warmup] == pytest.approx([0.003 * step / warmup for step in range(warmup)])
    start = warmup
    for i, end in enumerate((*falls, steps)):
        assert rates[start:end] == pytest.approx([0.003 / 10**i] * (end - start))
        start = end


@pytest.mark.parametrize(
    ("image_area", "resize", "image_size"),
    [(32 * 32, 160, 128), (96 * 96 - 1, 160, 128), (96 * 96, 448, 384), (500 * 375, 448, 384)],
)
def test_the_resolution_follows_from_the_images(image_area: int, resize: int, image_size: int) -> None:
    recipe = hyperrule(make_transfer(image_area=image_area))
    assert (recipe.augment.crop, recipe.augment.resize, recipe.model.image_size) == ("random", resize, image_size)
    assert recipe.augment.flip


def test_the_rest_of_the_rule() -> None:
    recipe = hyperrule(make_transfer())
    assert (recipe.optim.kind, recipe.optim.momentum, recipe.optim.weight_decay) == ("sgd", 0.9, 0.0)
    assert recipe.loader.batch_size == 512
    assert recipe.optim.max_grad_norm is None


@pytest.mark.parametrize(("name", "model"), [("jft-r50x1-sgd", "R50x1"), ("jft-r152x2-sgd", "R152x2")])
def test_sgd_is_that_of_bit(name: str, model: str) -> None:
    recipe = BIT_PRETRAINING[name]()
    optim = recipe.optim
    assert (recipe.model.name, recipe.data.source, recipe.epochs) == (model, "jft", 7)
    assert (optim.kind, optim.momentum, optim.weight_decay, optim.warmup_steps) == ("sgd", 0.9, 1e-4, 5_000)
    assert optim.learning_rate == pytest.approx(0.48)  # 0.03 for every 256 of 4096
    assert recipe.loader.batch_size == 4096
    assert (optim.decay, optim.max_grad_norm) == ("piecewise", None)


def test_both_runs_of_table_7_differ_in_the_optimizer_alone() -> None:

    for name, build in BIT_PRETRAINING.items():
        adam = PRETRAINING[name.removesuffix("-sgd")]()
        assert replace(build(), optim=adam.optim) == adam

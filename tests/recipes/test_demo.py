"""The demo's recipes compare networks of about equal cost on the same images, and take minutes together."""

import pytest

from vitrine.data.open_data import open_train_data
from vitrine.models.cost import compute_cost
from vitrine.recipe import Recipe
from vitrine.recipes.demo import DEMO_FINETUNE_RECIPES, DEMO_RECIPES
from vitrine.recipes.finetune import FinetuneTask

COMPARED = ("demo-vit", "demo-resnet", "demo-hybrid")
# Multiply-accumulates of the forward passes: one CPU core trains such small networks at 5e9 per second.
MAX_MACS = 1.8e12


def build_transfer() -> Recipe:
    return DEMO_FINETUNE_RECIPES["demo-transfer"].build(FinetuneTask("checkpoint", "digits", 100, num_classes=10))


@pytest.mark.parametrize("name", COMPARED)
def test_costs_differ_by_at_most_a_quarter(name: str) -> None:
    macs = {each: compute_cost(DEMO_RECIPES[each]().model.resolve(10)).macs for each in COMPARED}
    assert macs[name] == pytest.approx(macs["demo-vit"], rel=0.25)


def test_every_step_of_the_pretraining_has_fresh_images() -> None:
    for name in ("demo-glyphs-vit", "demo-glyphs-resnet", "demo-glyphs-hybrid"):
        recipe = DEMO_RECIPES[name]()
        assert f"images={(recipe.total_steps or 0) * recipe.loader.batch_size}," in recipe.data.source


def test_recipes_differ_only_in_the_network() -> None:
    transfer = build_transfer()
    for name in COMPARED:
        recipe = DEMO_RECIPES[name]()
        for field in ("loader", "augment", "mixing", "supervised", "total_steps", "seed"):
            assert getattr(recipe, field) == getattr(transfer, field)


@pytest.mark.parametrize("family", ["vit", "resnet", "hybrid"])
def test_the_pretrained_network_is_compared_at_a_higher_resolution(family: str) -> None:
    before, after = (DEMO_RECIPES[name]().model.resolve(10) for name in (f"demo-glyphs-{family}", f"demo-{family}"))
    same = {name: value for name, value in vars(before).items() if name != "image_size"}
    assert same == {name: value for name, value in vars(after).items() if name != "image_size"}
    assert after.image_size[0] == build_transfer().model.image_size
    assert after.image_size[0] > before.image_size[0]


def test_ten_training_images_of_each_digit() -> None:
    train, held_out = open_train_data(DEMO_RECIPES["demo-vit"]().data)
    assert held_out is None
    assert [train.labels.values.tolist().count(label) for label in range(10)] == [10] * 10


def test_all_runs_take_minutes() -> None:
    runs = [build() for build in (*DEMO_RECIPES.values(), *(DEMO_RECIPES[name] for name in COMPARED))]  # transfers cost as much
    macs = [compute_cost(run.model.resolve(10)).macs * (run.total_steps or 0) * run.loader.batch_size for run in runs]
    assert sum(macs) < MAX_MACS

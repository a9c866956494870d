"""The demo's recipes: networks of like cost, the same images and lengths, and a run of minutes in all."""

import pytest

from vitrine.data.open_data import open_train_data
from vitrine.models.cost import compute_cost
from vitrine.recipe import Recipe
from vitrine.recipes.demo import DEMO, DEMO_TRANSFERS
from vitrine.recipes.finetune import FinetuneTask

COMPARED = ("demo-vit", "demo-resnet", "demo-hybrid")
# Multiply-accumulates, forwards: two processor cores make 6e9 of so small networks in a second of training.
MOST_MACS = 9e11


def build_transfer() -> Recipe:
    return DEMO_TRANSFERS["demo-transfer"].build(FinetuneTask("checkpoint", "digits", 100, image_area=64, num_classes=10))


@pytest.mark.parametrize("name", COMPARED)
def test_costs_are_within_a_quarter(name: str) -> None:
    """Of multiply-accumulates for an image, as section 4.4 of the paper compares."""
    macs = {each: compute_cost(DEMO[each]().model.resolve(10)).macs for each in COMPARED}
    assert macs[name] == pytest.approx(macs["demo-vit"], rel=0.25)


def test_they_differ_in_nothing_but_the_network() -> None:
    transfer = build_transfer()
    for name in COMPARED:
        recipe = DEMO[name]()
        for field in ("loader", "augment", "mixing", "supervised", "total_steps", "seed"):
            assert getattr(recipe, field) == getattr(transfer, field)


def test_what_is_pretrained_is_what_is_compared_at_a_higher_resolution() -> None:
    before, after = (DEMO[name]().model.resolve(10) for name in ("demo-shapes", "demo-vit"))
    same = {name: value for name, value in vars(before).items() if name != "image_size"}
    assert same == {name: value for name, value in vars(after).items() if name != "image_size"}
    assert after.image_size[0] == build_transfer().model.image_size
    assert after.image_size[0] > before.image_size[0]


def test_ten_digits_of_each_kind() -> None:
    train, held_out = open_train_data(DEMO["demo-vit"]().data)
    assert held_out is None
    assert [train.labels.values.tolist().count(label) for label in range(10)] == [10] * 10


def test_all_of_it_takes_minutes() -> None:
    runs = [*(build() for build in DEMO.values()), DEMO["demo-vit"]()]  # the transfer costs as much as the last
    macs = [compute_cost(run.model.resolve(10)).macs * (run.total_steps or 0) * run.loader.batch_size for run in runs]
    assert sum(macs) < MOST_MACS

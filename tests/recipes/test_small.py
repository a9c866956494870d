"""Recipes of small models fit their data and take minutes."""

import numpy as np
import pytest

from vitrine.data.open_data import open_data
from vitrine.models.config import HybridConfig
from vitrine.models.cost import compute_cost
from vitrine.recipe import with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.small import SMALL_MASKED_RECIPES, SMALL_RECIPES, cifar10_masked, cifar10_small, cifar10_vit, tiny_vit

# Side and channels of the images, and the number of training images; for CIFAR-10, a fifth of them.
DATA = {
    "digits": (8, 1, 1_437),
    "shapes": (32, 3, 20_000),
    "fashion-mnist": (28, 1, 60_000),
    "cifar10-vit": (32, 3, 10_000),
    "cifar10-hybrid": (32, 3, 10_000),
}
# Multiply-accumulates of the forward passes of a run that takes minutes on two cores.
MAX_MACS = {"digits": 5e11, "shapes": 2e12}
MAX_MACS_OF_OTHERS = 2e13


@pytest.mark.parametrize("name", SMALL_RECIPES)
def test_images_are_used_at_their_own_size(name: str) -> None:
    recipe = SMALL_RECIPES[name]()
    side, num_channels, _ = DATA[name]
    config = recipe.model.resolve(10)
    assert (config.image_size, config.num_channels) == ((side, side), num_channels)
    assert side % (4 if isinstance(config, HybridConfig) else config.patch_size) == 0  # patches cover all pixels
    assert recipe.data.in_memory


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_built_in_data_has_the_expected_size(name: str) -> None:
    recipe = SMALL_RECIPES[name]()
    source = open_data(recipe.data.source, "train")
    side, num_channels, num_images = DATA[name]
    assert (len(source), np.shape(source.fetch(0))) == (num_images, (side, side, num_channels))
    assert not recipe.augment.flip  # it would change labels


@pytest.mark.parametrize("name", SMALL_RECIPES)
def test_small_runs_take_minutes(name: str) -> None:
    recipe = SMALL_RECIPES[name]()
    num_seen = recipe.compute_total_steps(DATA[name][2]) * recipe.loader.batch_size
    assert compute_cost(recipe.model.resolve(10)).macs * num_seen < MAX_MACS.get(name, MAX_MACS_OF_OTHERS)
    assert recipe.model.gelu == "erf"  # faster on CPUs


@pytest.mark.parametrize("name", SMALL_MASKED_RECIPES)
def test_masked_runs_take_minutes_and_need_no_labels(name: str) -> None:
    recipe = SMALL_MASKED_RECIPES[name]()
    num_seen = recipe.compute_total_steps(740) * recipe.loader.batch_size
    assert recipe.objective == "masked-patches"
    assert compute_cost(recipe.model.resolve(0)).macs * num_seen < 2e13
    assert recipe.model.gelu == "erf"


def test_tiny_vit_takes_changes() -> None:
    config = tiny_vit(24, width=32, patch_size=4, depth=2, position=None).resolve(10)
    assert (config.image_size, config.width, config.mlp_dim, config.depth) == ((24, 24), 32, 64, 2)
    assert config.position == "learned-1d"


def test_fine_tuning_on_cifar10_differs_from_scratch_only_in_the_start() -> None:
    task = FinetuneTask("checkpoint", "cifar10", num_images=10_000, num_classes=10)
    scratch = with_changes(cifar10_vit(), total_steps=2_000)
    finetuned = cifar10_small(task)
    assert finetuned.model.checkpoint == "checkpoint"
    assert with_changes(scratch, model=finetuned.model) == finetuned
    assert cifar10_masked().model == scratch.model

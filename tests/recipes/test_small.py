"""Tests of recipes/small.py.

Small runs fit the data they are for, as its own makers have it, and stay small.
The paper's self-supervision as appendix B.1.2 of arXiv:2010.11929 has it, and miniatures of it.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitrine.data.open_data import open_data
from vitrine.models.config import HybridConfig
from vitrine.models.cost import compute_cost
from vitrine.recipe import with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.pretrain import jft_masked_vit_b16
from vitrine.recipes.small import MASKED, MINIATURES, cifar10_small, cifar10_vit
from vitrine.training.schedule import compute_lr

# Side and channels of the images, and how many there are for training; of CIFAR-10, a fifth of it.
DATA = {
    "digits": (8, 1, 1_437),
    "shapes": (32, 3, 20_000),
    "fashion-mnist": (28, 1, 60_000),
    "cifar10-vit": (32, 3, 10_000),
    "cifar10-hybrid": (32, 3, 10_000),
}
# Multiply-accumulates of a run that two cores make in minutes; forward and backward are three times as many.
MOST_MACS = {"digits": 5e11, "shapes": 2e12}
MOST_MACS_OF_OTHERS = 2e13


@pytest.mark.parametrize("name", MINIATURES)
def test_images_come_at_their_own_size(name: str) -> None:
    recipe = MINIATURES[name]()
    side, num_channels, _ = DATA[name]
    config = recipe.model.resolve(10)
    assert (config.image_size, config.num_channels) == ((side, side), num_channels)
    assert side % (4 if isinstance(config, HybridConfig) else config.patch_size) == 0  # no pixel is dropped
    assert recipe.data.in_memory


@pytest.mark.parametrize("name", ["digits", "shapes"])
def test_built_in_data_is_as_the_recipe_has_it(name: str) -> None:
    recipe = MINIATURES[name]()
    source = open_data(recipe.data.source, "train")
    side, num_channels, num_images = DATA[name]
    assert (len(source), np.shape(source.fetch(0))) == (num_images, (side, side, num_channels))


def test_digits_are_scikit_learn_s() -> None:
    config = MINIATURES["digits"]().model.resolve(10)
    assert load_digits().images.shape[1:] == config.image_size


@pytest.mark.parametrize("name", MINIATURES)
def test_a_run_takes_minutes(name: str) -> None:
    recipe = MINIATURES[name]()
    num_seen = recipe.compute_total_steps(DATA[name][2]) * recipe.loader.batch_size
    assert compute_cost(recipe.model.resolve(10)).macs * num_seen < MOST_MACS.get(name, MOST_MACS_OF_OTHERS)


@pytest.mark.parametrize("name", MINIATURES)
def test_processors_get_the_quick_gelu(name: str) -> None:
    assert MINIATURES[name]().model.gelu == "erf"


def test_digits_and_tasks_of_shapes_are_not_mirrored() -> None:
    assert not MINIATURES["digits"]().augment.flip
    assert not MINIATURES["shapes"]().augment.flip


def test_the_paper_s_run() -> None:
    recipe = jft_masked_vit_b16()
    assert recipe.model.resolve(0).num_classes == 0
    assert (recipe.model.name, recipe.total_steps, recipe.loader.batch_size) == ("ViT-B/16", 1_000_000, 4096)
    assert recipe.optim.kind == "adamw"
    assert recipe.masked_patches.target == "mean-colour"
    assert recipe.masked_patches.count(196) == (98, 78, 10)
    assert pytest.approx(13.5, abs=0.1) == 1_000_000 * 4096 / 303_000_000  # epochs
    assert compute_lr(recipe.optim, 9_999, 1_000_000) == pytest.approx(2e-4, rel=1e-3)
    assert compute_lr(recipe.optim, 4_999, 1_000_000) == pytest.approx(1e-4, rel=1e-3)
    assert compute_lr(recipe.optim, 505_000, 1_000_000) == pytest.approx(1e-4, rel=1e-3)  # half a cosine
    assert recipe.augment.crop == "inception"
    assert recipe.augment.flip


@pytest.mark.parametrize("name", MASKED)
def test_every_one_learns_without_labels(name: str) -> None:
    assert MASKED[name]().objective == "masked-patches"


def test_fine_tuning_is_the_training_from_scratch_but_for_where_it_begins() -> None:
    transfer = FinetuneTask("checkpoint", "cifar10", num_images=10_000, image_area=32 * 32, num_classes=10)
    scratch = with_changes(cifar10_vit(), total_steps=2_000)
    tuned = cifar10_small(transfer)
    assert tuned.model.checkpoint == "checkpoint"
    assert with_changes(scratch, model=tuned.model) == tuned


def test_the_pre_trained_network_is_that_of_the_classifier() -> None:
    assert MASKED["cifar10-masked"]().model == cifar10_vit().model


@pytest.mark.parametrize("name", ["cifar10-masked", "folder-masked"])
def test_miniatures_take_minutes(name: str) -> None:
    recipe = MASKED[name]()
    num_seen = recipe.compute_total_steps(740) * recipe.loader.batch_size
    assert compute_cost(recipe.model.resolve(0)).macs * num_seen < 2e13
    assert recipe.model.gelu == "erf"

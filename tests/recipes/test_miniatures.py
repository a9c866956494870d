"""Small runs fit the data they are for, as its own makers have it, and stay small."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vitrine.data.opening import open_data
from vitrine.models.config import HybridConfig
from vitrine.models.cost import compute_cost
from vitrine.recipes.miniatures import MINIATURES

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

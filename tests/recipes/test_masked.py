"""The paper's self-supervision as appendix B.1.2 of arXiv:2010.11929 has it, and miniatures of it."""

import pytest

from vitrine.models.cost import compute_cost
from vitrine.recipe import with_changes
from vitrine.recipes.finetune import Transfer
from vitrine.recipes.masked import MASKED, cifar10_small, jft_masked_vit_b16
from vitrine.recipes.miniatures import cifar10_vit
from vitrine.train.schedule import compute_rate


def test_the_paper_s_run() -> None:
    recipe = jft_masked_vit_b16()
    assert recipe.model.resolve(0).num_classes == 0
    assert (recipe.model.name, recipe.total_steps, recipe.loader.batch_size) == ("ViT-B/16", 1_000_000, 4096)
    assert recipe.optim.kind == "adamw"
    assert recipe.masked_patches.target == "mean-colour"
    assert recipe.masked_patches.count(196) == (98, 78, 10)
    assert pytest.approx(13.5, abs=0.1) == 1_000_000 * 4096 / 303_000_000  # epochs
    assert compute_rate(recipe.optim, 9_999, 1_000_000) == pytest.approx(2e-4, rel=1e-3)
    assert compute_rate(recipe.optim, 4_999, 1_000_000) == pytest.approx(1e-4, rel=1e-3)
    assert compute_rate(recipe.optim, 505_000, 1_000_000) == pytest.approx(1e-4, rel=1e-3)  # half a cosine
    assert recipe.augment.crop == "inception"
    assert recipe.augment.flip


@pytest.mark.parametrize("name", MASKED)
def test_every_one_learns_without_labels(name: str) -> None:
    assert MASKED[name]().objective == "masked-patches"


def test_fine_tuning_is_the_training_from_scratch_but_for_where_it_begins() -> None:
    transfer = Transfer("checkpoint", "cifar10", num_images=10_000, image_area=32 * 32, num_classes=10)
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

"""What every recipe keeps to by being listed, and names that are not."""

import inspect
import json
import subprocess
import sys

import pytest

from vitrine.recipe import Recipe, parse_recipe
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES, Transfer, find_finetune_recipe, find_recipe, summarise_recipe

TRANSFER = Transfer(checkpoint="checkpoint", source="images", num_images=3680, image_area=500 * 375, num_classes=37)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def as_written_and_read(recipe: Recipe) -> Recipe:
    return parse_recipe(json.loads(json.dumps(recipe.to_json())), "recipe.json")


def test_every_recipe_builds_a_network_and_survives_a_file(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.model.resolve(10).num_classes == 10
    assert as_written_and_read(recipe) == recipe


@pytest.mark.parametrize("transfer", FINETUNE_RECIPES)
def test_every_transfer_is_of_its_checkpoint_and_data(transfer: str) -> None:
    recipe = FINETUNE_RECIPES[transfer].build(TRANSFER)
    assert (recipe.model.checkpoint, recipe.data.source) == ("checkpoint", "images")
    assert as_written_and_read(recipe) == recipe


@pytest.mark.parametrize("transfer", FINETUNE_RECIPES)
def test_the_rate_of_a_transfer_is_among_those_to_choose_from(transfer: str) -> None:
    entry = FINETUNE_RECIPES[transfer]
    assert entry.build(TRANSFER).optim.learning_rate in entry.rates
    assert list(entry.rates) == sorted(set(entry.rates))
    assert (len(entry.rates) > 1) == (entry.held_out > 0)


def test_every_recipe_says_what_it_is(name: str) -> None:
    function = RECIPES[name]
    summary, expectation = summarise_recipe(function)
    assert summary.endswith(".")
    assert len(summary) <= 128
    assert any(length in summary for length in ("epochs", "steps"))
    assert expectation
    assert "PENDING" not in expectation  # a figure comes from a run
    assert f"    vitrine train {name}" in (inspect.getdoc(function) or "").splitlines()[-1]


@pytest.mark.parametrize("transfer", FINETUNE_RECIPES)
def test_every_transfer_says_what_it_is(transfer: str) -> None:
    function = FINETUNE_RECIPES[transfer].build
    summary, expectation = summarise_recipe(function)
    assert summary.startswith(("A checkpoint on ", "A small checkpoint on "))
    assert any(length in summary for length in ("epochs", "steps"))
    assert expectation
    assert "PENDING" not in expectation
    assert (inspect.getdoc(function) or "").splitlines()[-1] == f"    vitrine finetune MODEL DATA --recipe {transfer}"


def test_a_description_is_two_lines_of_the_docstring() -> None:
    def recipe() -> Recipe:
        """A network on data for 3 epochs.

        Expect 90 % accuracy.
        Cost: nothing.
        """
        return Recipe(epochs=3)

    assert summarise_recipe(recipe) == ("A network on data for 3 epochs.", "90 % accuracy.")


def test_names_are_found() -> None:
    assert find_recipe("jft-vit-b16")().model.name == "ViT-B/16"
    assert find_finetune_recipe("pets") is FINETUNE_RECIPES["pets"]
    assert not set(RECIPES) & set(FINETUNE_RECIPES)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"Unknown recipe 'JFT-ViT-B/16'\. Nearest: jft-vit-b16, .*`vitrine train --list`"):
        find_recipe("JFT-ViT-B/16")
    with pytest.raises(ValueError, match=r"Unknown recipe 'flower'\. Nearest: flowers, "):
        find_finetune_recipe("flower")


def test_a_name_of_the_other_kind_gets_its_command() -> None:
    with pytest.raises(ValueError, match=r"use `vitrine finetune MODEL DATA --recipe pets`"):
        find_recipe("pets")
    with pytest.raises(ValueError, match=r"use `vitrine train digits`"):
        find_finetune_recipe("digits")


def test_recipes_are_listed_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from vitrine.recipes.registry import RECIPES, FINETUNE_RECIPES, describe
print(len([describe(function) for function in RECIPES.values()]), len([recipe() for recipe in RECIPES.values()]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"{len(RECIPES)} {len(RECIPES)}\n"), result.stderr

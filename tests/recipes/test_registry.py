"""Rules that every listed recipe follows, unknown names, and recipes built for a dataset."""

import inspect
import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitrine.core.console import VitrineWarning
from vitrine.data.config import DataConfig
from vitrine.data.image import LazyImage
from vitrine.recipe import Recipe, parse_recipe
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import (
    FINETUNE_RECIPES,
    RECIPES,
    build_finetune_recipe,
    find_data_once,
    find_finetune_recipe,
    find_recipe,
    short_model_name,
    summarise_recipe,
)

TASK = FinetuneTask(checkpoint="checkpoint", source="images", num_images=3680, num_classes=37, measure_area=lambda: 500 * 375)


@pytest.fixture(params=RECIPES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def as_written_and_read(recipe: Recipe) -> Recipe:
    return parse_recipe(json.loads(json.dumps(recipe.to_json())), "recipe.json")


def test_every_recipe_builds_a_model_and_is_restored_from_json(name: str) -> None:
    recipe = RECIPES[name]()
    assert recipe.model.resolve(10).num_classes == 10
    assert as_written_and_read(recipe) == recipe


@pytest.mark.parametrize("recipe_name", FINETUNE_RECIPES)
def test_every_finetune_recipe_has_the_checkpoint_and_data_of_its_task(recipe_name: str) -> None:
    recipe = FINETUNE_RECIPES[recipe_name].build(TASK)
    assert (recipe.model.checkpoint, recipe.data.source) == ("checkpoint", "images")
    assert as_written_and_read(recipe) == recipe


@pytest.mark.parametrize("recipe_name", FINETUNE_RECIPES)
def test_the_learning_rate_is_one_of_those_to_choose_from(recipe_name: str) -> None:
    entry = FINETUNE_RECIPES[recipe_name]
    assert entry.build(TASK).optim.learning_rate in entry.learning_rates
    assert list(entry.learning_rates) == sorted(set(entry.learning_rates))
    assert (len(entry.learning_rates) > 1) == (entry.held_out > 0)


def test_every_recipe_is_documented(name: str) -> None:
    function = RECIPES[name]
    summary, expectation = summarise_recipe(function)
    assert summary.endswith(".")
    assert len(summary) <= 128
    assert any(length in summary for length in ("epochs", "steps"))
    assert expectation
    assert "PENDING" not in expectation  # a figure comes from a run
    assert f"    vitrine train {name}" in (inspect.getdoc(function) or "").splitlines()[-1]


@pytest.mark.parametrize("recipe_name", FINETUNE_RECIPES)
def test_every_finetune_recipe_is_documented(recipe_name: str) -> None:
    function = FINETUNE_RECIPES[recipe_name].build
    summary, expectation = summarise_recipe(function)
    assert any(length in summary for length in ("epochs", "steps"))
    assert expectation
    assert "PENDING" not in expectation
    assert (inspect.getdoc(function) or "").splitlines()[-1] == f"    vitrine finetune MODEL DATA --recipe {recipe_name}"


def test_a_summary_is_two_lines_of_the_docstring() -> None:
    def recipe() -> Recipe:
        """A model on data for 3 epochs.

        Expect 90 % accuracy.
        Cost: nothing.
        """
        return Recipe(epochs=3)

    assert summarise_recipe(recipe) == ("A model on data for 3 epochs.", "90 % accuracy.")


def test_names_are_found() -> None:
    assert find_recipe("jft-vit-b16")().model.name == "ViT-B/16"
    assert find_finetune_recipe("pets") is FINETUNE_RECIPES["pets"]
    assert not set(RECIPES) & set(FINETUNE_RECIPES)


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(ValueError, match="jft-vit-b16"):
        find_recipe("JFT-ViT-B/16")
    with pytest.raises(ValueError, match="flowers"):
        find_finetune_recipe("flower")


def test_a_name_of_the_other_command_gets_that_command() -> None:
    with pytest.raises(ValueError, match="vitrine finetune"):
        find_recipe("pets")
    with pytest.raises(ValueError, match="vitrine train digits"):
        find_finetune_recipe("digits")


def test_recipes_are_listed_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None
from vitrine.recipes.registry import RECIPES, FINETUNE_RECIPES, summarise_recipe
print(len([summarise_recipe(function) for function in RECIPES.values()]), len([recipe() for recipe in RECIPES.values()]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, f"{len(RECIPES)} {len(RECIPES)}\n"), result.stderr


def write_arrays(path: Path, num_images: int, **splits: int) -> str:
    arrays = {"images": np.zeros((num_images, 8, 8), np.uint8), "labels": np.arange(num_images) % 2}
    for name, count in splits.items():
        arrays |= {f"x_{name}": np.zeros((count, 8, 8), np.uint8), f"y_{name}": np.arange(count) % 2}
    np.savez(path, **({name: array for name, array in arrays.items() if "_" in name} or arrays))
    return str(path)


@pytest.mark.parametrize(("num_images", "held_out"), [(30, 0.1), (20, 0.1), (19, 0.0)])
def test_a_tenth_of_data_without_splits_is_held_out_unless_it_is_tiny(num_images: int, held_out: float, tmp_path: Path) -> None:
    dataset = find_data_once(write_arrays(tmp_path / "made.npz", num_images))
    with nullcontext() if held_out else pytest.warns(VitrineWarning, match=r"19 images, too few .*at least 20"):
        recipe = build_finetune_recipe("folder", "checkpoint", dataset)
    assert recipe.data == DataConfig(source=dataset.name, held_out=held_out)


def test_data_with_splits_is_not_held_out(tmp_path: Path) -> None:
    dataset = find_data_once(write_arrays(tmp_path / "made.npz", 0, train=30, test=30))
    assert build_finetune_recipe("folder", "checkpoint", dataset).data.held_out == 0


def test_rules_see_the_images_that_are_left_by_the_settings(tmp_path: Path) -> None:
    dataset = find_data_once(write_arrays(tmp_path / "made.npz", 100))
    config = DataConfig(source=dataset.name, subset="40")
    built = build_finetune_recipe("folder", "checkpoint", dataset, config)
    task = FinetuneTask("checkpoint", dataset.name, num_images=40, num_classes=2)
    assert built.epochs == FINETUNE_RECIPES["folder"].build(task).epochs


def test_images_are_opened_for_their_area_only_by_the_rule_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = find_data_once(write_arrays(tmp_path / "made.npz", 500))
    source, reads = dataset.open(), []
    monkeypatch.setattr(type(source), "read", lambda self, index: reads.append(index) or (LazyImage(PIXELS, "made"), 0))
    build_finetune_recipe("folder", "checkpoint", dataset)
    assert reads == []
    recipe = build_finetune_recipe("hyperrule", "checkpoint", dataset)
    assert reads == list(range(0, 500, 5))
    assert recipe.model.image_size == 384  # images of 200 x 100 pixels are large


PIXELS = np.zeros((200, 100, 3), np.uint8)


def test_each_split_is_opened_once(tmp_path: Path) -> None:
    dataset = find_data_once(write_arrays(tmp_path / "made.npz", 0, train=30, test=30))
    assert dataset.open("train") is dataset.open("train")
    assert dataset.open("test") is not dataset.open("train")
    assert replace(dataset).open_train() is dataset.open("train")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("runs/first/model", "first"),
        ("runs/first/best", "first"),
        ("deit-tiny/model.safetensors", "deit-tiny"),
        ("B_16.npz", "B_16"),
        ("vit-v1.2", "vit-v1.2"),
        ("hf://org/name", "name"),
    ],
)
def test_runs_are_named_after_their_model(model: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("B_16.npz").write_bytes(b"")
    assert short_model_name(model) == name

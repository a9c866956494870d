"""The recipes of data-size: models of equal cost, growing subsets, and recipes that differ in nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.studies.test_data_size_grid import write_data
from vitrine.data.config import DataConfig
from vitrine.data.open_data import open_train_data
from vitrine.field_effects import resolve_unused
from vitrine.models.cost import compute_cost
from vitrine.recipe import list_fields
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import (
    GRIDS,
    HYBRID_EQUAL,
    REGULARISATIONS,
    RESNET_EQUAL,
    VIT_LARGE,
    Cell,
    DataFacts,
    find_facts,
    list_cells,
    list_sizes,
)
from vitrine.studies.data_size_recipes import build_finetune_recipe, build_recipe, count_evaluated

SCALES = get_args(Scale)
GENERATED = ("tiny", "small")
# Fields that may differ between the runs of a study.
FREE = ("model.", "optim.learning_rate", "data.subset", "data.subset_seed", "seed")


def count_macs(scale: Scale, facts: DataFacts) -> dict[str, int]:
    grid = GRIDS[scale]
    recipes = {
        model.name: build_recipe(grid, facts, Cell(model=model, num_images=facts.num_images, seed=0)) for model in grid.models
    }
    return {name: compute_cost(recipe.model.resolve(facts.num_classes)).macs for name, recipe in recipes.items()}


@pytest.mark.parametrize("scale", GENERATED)
def test_models_have_equal_cost(scale: Scale) -> None:
    macs = count_macs(scale, find_facts(GRIDS[scale], None))
    equal = [macs[name] for name in (VIT_LARGE, RESNET_EQUAL, HYBRID_EQUAL)]
    assert max(equal) <= 1.1 * min(equal)
    assert macs["ViT, half width"] < 0.5 * macs[VIT_LARGE]


def test_the_compared_models_of_the_paper_have_equal_cost() -> None:
    macs = count_macs("paper", find_facts(GRIDS["paper"], None))
    vit, resnet = (macs[name] for name in GRIDS["paper"].compared)
    assert max(vit, resnet) <= 1.1 * min(vit, resnet)


def test_the_grid_of_the_paper_is_that_of_figure_4() -> None:
    grid = GRIDS["paper"]
    facts = find_facts(grid, None)
    assert list_sizes(grid, facts) == (9_000_000, 30_000_000, 90_000_000, 303_000_000)
    recipe = build_recipe(grid, facts, Cell(model=grid.models[1], num_images=9_000_000, seed=0))
    assert (recipe.model.name, recipe.optim.learning_rate, recipe.loader.batch_size) == ("ViT-B/32", 8e-4, 4096)
    assert recipe.total_steps == round(7 * 303e6 / 4096)
    assert recipe.evaluation.patience == 0


@pytest.mark.parametrize("scale", SCALES)
def test_runs_differ_only_in_model_rate_images_and_seed(scale: Scale) -> None:
    grid = GRIDS[scale]
    facts = find_facts(grid, None)
    recipes = [build_recipe(grid, facts, cell) for cell in list_cells(grid, facts, (0, 1))]
    assert len(recipes) == 2 * len(grid.models) * (len(grid.sizes) + 1)
    fields = [{name: value for name, value in list_fields(recipe.to_json()) if not name.startswith(FREE)} for recipe in recipes]
    assert all(each == fields[0] for each in fields)
    assert not any(recipe.report.page for recipe in recipes)
    for recipe in recipes:
        resolve_unused(recipe)  # raises if a field has no effect


@pytest.mark.parametrize("scale", GENERATED)
def test_both_models_of_a_pair_see_the_same_images_and_smaller_sets_lie_in_larger_ones(scale: Scale) -> None:
    grid = GRIDS[scale]
    facts = find_facts(grid, None)
    configs = [
        [build_recipe(grid, facts, Cell(model=model, num_images=size, seed=3)).data for model in grid.models]
        for size in list_sizes(grid, facts)[:2]
    ]
    for same in configs:
        assert all(config == same[0] for config in same)
    small, large = (list_names(config[0]) for config in configs)
    assert len(small) == grid.sizes[0]
    assert small < large
    assert list_names(replace(configs[0][0], subset_seed=4)) != small


def list_names(config: DataConfig) -> set[str]:
    train, _ = open_train_data(config)
    return {train.name(index) for index in range(len(train))}


@pytest.mark.parametrize(("channels", "splits"), [(1, ("train", "test")), (3, ("train", "val"))])
def test_own_data_holds_images_out_to_choose_the_best_weights(channels: int, splits: tuple[str, ...], tmp_path: Path) -> None:
    grid = GRIDS["tiny"]
    facts = find_facts(grid, write_data(tmp_path / "own.npz", splits, channels=channels))
    assert (facts.num_channels, facts.num_images, facts.num_classes, facts.num_test) == (channels, 300, 3, 300)
    assert not facts.is_fresh
    recipe = build_recipe(grid, facts, Cell(model=grid.models[0], num_images=100, seed=5))
    assert (recipe.data.held_out, recipe.data.subset, recipe.data.subset_seed) == (0.1, "100", 5)
    assert recipe.model.num_channels == channels
    assert count_evaluated(grid, facts, 100) == grid.num_times * 10 + 2 * 300


def test_own_data_with_all_splits_holds_nothing_out(tmp_path: Path) -> None:
    grid = GRIDS["tiny"]
    facts = find_facts(grid, write_data(tmp_path / "own.npz", ("train", "val", "test")))
    recipe = build_recipe(grid, facts, Cell(model=grid.models[0], num_images=facts.num_images, seed=5))
    assert (recipe.data.held_out, recipe.data.subset, recipe.data.subset_seed) == (0.0, "all", 0)
    assert count_evaluated(grid, facts, 100) == grid.num_times * 300 + 2 * 300


def test_regularisation_is_weight_decay_dropout_and_smoothing() -> None:
    grid = GRIDS["small"]
    facts = find_facts(grid, None)
    for model in grid.models:
        for name, chosen in REGULARISATIONS.items():
            recipe = build_recipe(grid, facts, Cell(model=model, num_images=512, seed=0, regularisation=name))
            assert recipe.optim.weight_decay == chosen.weight_decay
            assert recipe.supervised.label_smoothing == chosen.label_smoothing
            expected = None if model.name == RESNET_EQUAL or chosen.dropout_rate == 0 else chosen.dropout_rate
            assert recipe.model.dropout_rate == expected
            resolve_unused(recipe)


def test_a_model_is_fine_tuned_on_ten_of_each_digit() -> None:
    grid = GRIDS["small"]
    cell = Cell(model=grid.models[0], num_images=512, seed=2)
    recipe = build_finetune_recipe(grid, cell)
    resolve_unused(recipe)
    train, held_out = open_train_data(recipe.data)
    assert (len(train), held_out) == (100, None)
    assert recipe.model.checkpoint == cell.folder
    other = build_finetune_recipe(grid, replace(cell, seed=3))
    assert [train.name(index) for index in range(100)] != [open_train_data(other.data)[0].name(index) for index in range(100)]

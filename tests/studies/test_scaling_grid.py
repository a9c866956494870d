"""The grid of scaling: families that cover the same range of compute, and the paper's runs."""

from itertools import pairwise
from typing import get_args

import pytest

from vitrine.field_effects import resolve_unused
from vitrine.models.cost import compute_cost
from vitrine.recipe import list_fields
from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import find_facts
from vitrine.studies.data_size_recipes import build_recipe
from vitrine.studies.scaling_grid import COMPARED, FAMILIES, GRIDS, STYLES, list_cells

GENERATED = ("tiny", "small")
FREE = ("model.", "optim.learning_rate", "seed")  # fields that may differ between runs


def count_macs(scale: Scale) -> dict[str, list[int]]:
    """Return the multiply-accumulates of all models of each family."""
    grid = GRIDS[scale]
    facts = find_facts(grid, None)
    found: dict[str, list[int]] = {family: [] for family in FAMILIES}
    for model, cell in list_cells(grid, facts, (0,)):
        recipe = build_recipe(grid, facts, cell)
        found[model.family].append(compute_cost(recipe.model.resolve(facts.num_classes)).macs)
    return found


def test_small_families_cover_the_same_decade_and_a_half() -> None:
    macs = count_macs("small")
    assert [len(macs[family]) for family in FAMILIES] == [6, 6, 3]
    ends = [(min(each), max(each)) for each in macs.values()]
    for end in zip(*ends, strict=True):
        assert max(end) <= 1.25 * min(end)
    lows, highs = zip(*ends, strict=True)
    assert max(highs) >= 10**1.5 * min(lows)


@pytest.mark.parametrize("family", COMPARED)
def test_steps_between_small_models_are_even(family: str) -> None:
    """No neighbours are further apart than twice the even step of the range, so that lines are fitted to spread points."""
    macs = sorted(count_macs("small")[family])
    even = (macs[-1] / macs[0]) ** (1 / (len(macs) - 1))
    assert max(high / low for low, high in pairwise(macs)) < 2 * even


def test_tiny_families_have_a_frontier_to_fit() -> None:
    assert [len(each) for each in count_macs("tiny").values()] == [3, 3, 1]


@pytest.mark.parametrize("scale", get_args(Scale))
def test_models_of_a_family_differ_in_cost_and_name(scale: Scale) -> None:
    grid = GRIDS[scale]
    assert len({model.name for model in grid.models}) == len(grid.models)
    cells = [cell for _, cell in list_cells(grid, find_facts(grid, None), (0, 1))]
    assert len({cell.folder for cell in cells}) == 2 * len(grid.models)
    assert {(model.colour, model.marker) for model in grid.models} == set(STYLES.values())
    if scale != "paper":
        assert all(len(set(each)) == len(each) for each in count_macs(scale).values())


@pytest.mark.parametrize("scale", GENERATED)
def test_runs_differ_only_in_model_rate_and_seed(scale: Scale) -> None:
    grid = GRIDS[scale]
    facts = find_facts(grid, None)
    recipes = [build_recipe(grid, facts, cell) for _, cell in list_cells(grid, facts, (0, 1))]
    fields = [{name: value for name, value in list_fields(recipe.to_json()) if not name.startswith(FREE)} for recipe in recipes]
    assert all(each == fields[0] for each in fields)
    for recipe in recipes:
        resolve_unused(recipe)  # raises if a field has no effect


def test_the_paper_s_runs_have_the_rates_of_table_3_and_the_compute_of_table_6() -> None:
    """The paper's exaFLOPs are right to 3 %, those of ResNets to 5 % (their padding counts or not)."""
    grid = GRIDS["paper"]
    facts = find_facts(grid, None)
    found = {}
    for model, cell in list_cells(grid, facts, ()):
        recipe = build_recipe(grid, facts, cell)
        assert recipe.total_steps is not None
        images = recipe.total_steps * recipe.loader.batch_size
        exaflops = compute_cost(recipe.model.resolve(facts.num_classes)).compute_exaflops(images, 1)
        found[model.name] = (recipe.optim.learning_rate, exaflops)
    table = {
        "ViT-B/32": (8e-4, 55),
        "ViT-L/16, 14 epochs": (4e-4, 1567),
        "ViT-H/14, 14 epochs": (3e-4, 4262),
        "R50x2": (1e-3, 199),
        "R152x2": (6e-4, 563),
        "R50+ViT-L/32": (2e-4, 246),
        "R50+ViT-L/16, 14 epochs": (4e-4, 1668),
    }
    assert len(found) == 16
    for name, (rate, exaflops) in table.items():
        assert found[name] == (rate, pytest.approx(exaflops, rel=0.05))
    assert "R152x2 with 14 epochs" in grid.remark
    assert "R200x3" in grid.remark

"""How the settings of `data-size` are chosen, on held-out images: `vitrine study data-size --search`.

Learning rates: the highest mean accuracy over some numbers of images, with one seed. Regularisation: for each number of images,
from at most four. Learning rates of fine-tuning: on the training digits that are not among the ten of each.
"""

from collections.abc import Sequence
from dataclasses import replace

from vitrine.studies.config import Scale
from vitrine.studies.data_size_grid import (
    GRIDS,
    REAL_SET,
    REGULARISATIONS,
    BaseGrid,
    Cell,
    DataFacts,
    Grid,
    GridModel,
    find_facts,
    find_regularisation,
    list_sizes,
)
from vitrine.studies.data_size_recipes import build_finetune_recipe, build_recipe, count_evaluated
from vitrine.studies.runner import StudyRun
from vitrine.studies.search import FACTOR, Choice, build_trial, list_first_rates, measure_once
from vitrine.studies.study import SearchPlan, TriedSetting

HELD_OUT_DIGITS = 0.93  # of the training digits: seven in a hundred are as many as the study fine-tunes on


def build_search(scale: Scale, data: str | None) -> SearchPlan:
    """Build what `--search` chooses at a scale."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    sizes = [size for size in list_sizes(grid, facts) if size in (*grid.searched, facts.num_images)]
    choices = [build_rate_choice(grid, facts, model, sizes) for model in grid.models]
    if facts.is_fresh:
        regularised = [model for model in grid.models if model.name in grid.compared]
        choices += [build_regularisation_choice(grid, facts, model, size) for model in regularised for size in grid.sizes]
        choices += [build_finetune_choice(grid, facts, model) for model in grid.models] if grid.finetune_steps else []
    return SearchPlan(source=facts.source, num_classes=facts.num_classes, choices=tuple(choices))


def name_rate(model: GridModel) -> str:
    return f"learning rate of {model.name}"


def name_regularisation(model: GridModel, num_images: int) -> str:
    return f"regularisation of {model.name} on {num_images:,} images"


def name_finetune_rate(model: GridModel) -> str:
    return f"learning rate of {model.name} on {REAL_SET}"


def build_rate_choice(grid: BaseGrid, facts: DataFacts, model: GridModel, sizes: Sequence[int]) -> Choice:
    """Build the choice of a model's learning rate, by its mean accuracy on some numbers of images."""
    assert model.learning_rate is not None

    def build(rate: float) -> tuple[StudyRun, ...]:
        changed = replace(model, learning_rate=rate)
        return tuple(build_cell_trial(grid, facts, Cell(model=changed, num_images=size, seed=0)) for size in sizes)

    return Choice(
        name=name_rate(model),
        values=list_first_rates(model.learning_rate),
        committed=model.learning_rate,
        build=build,
        factor=FACTOR,
    )


def build_regularisation_choice(grid: Grid, facts: DataFacts, model: GridModel, num_images: int) -> Choice:
    """Build the choice of a model's regularisation on one number of images."""

    def build(name: str) -> tuple[StudyRun, ...]:
        return (build_cell_trial(grid, facts, Cell(model=model, num_images=num_images, seed=0, regularisation=name)),)

    return Choice(
        name=name_regularisation(model, num_images),
        values=tuple(REGULARISATIONS),
        committed=find_regularisation(grid, facts, model, num_images),
        build=build,
        describe=str,
    )


def build_finetune_choice(grid: Grid, facts: DataFacts, model: GridModel) -> Choice:
    """Build the choice of a model's learning rate of fine-tuning, after pre-training on the second largest number of images."""
    cell = Cell(model=model, num_images=grid.sizes[-1], seed=0)
    first = build_cell_trial(grid, facts, cell)

    def build(rate: float) -> tuple[StudyRun, ...]:
        recipe = build_finetune_recipe(grid, replace(cell, model=replace(model, finetune_rate=rate)))
        data = replace(recipe.data, subset="all", held_out=HELD_OUT_DIGITS)
        recipe = replace(recipe, model=replace(recipe.model, checkpoint=first.folder), data=data)
        columns = {**first.columns, "num_evaluated": 0}
        return (build_trial(f"{first.folder}-on-{REAL_SET}-lr-{rate:g}", measure_once(recipe), columns, first.folder),)

    return Choice(
        name=name_finetune_rate(model),
        values=list_first_rates(model.finetune_rate),
        committed=model.finetune_rate,
        build=build,
        prepare=(first,),
        factor=FACTOR,
    )


def build_cell_trial(grid: BaseGrid, facts: DataFacts, cell: Cell) -> StudyRun:
    """Build a run of the grid that is measured on held-out images alone."""
    recipe = build_recipe(grid, facts, cell)
    recipe = replace(recipe, evaluation=replace(recipe.evaluation, test=False))
    columns = {
        "model": cell.model.name,
        "num_evaluated": count_evaluated(grid, replace(facts, num_test=0), cell.num_images),
    }
    return build_trial(f"{cell.folder}-lr-{recipe.optim.learning_rate:g}", recipe, columns)


def list_tried(grid: Grid, facts: DataFacts) -> tuple[TriedSetting, ...]:
    """Return the settings that a search has chosen on the glyphs, with all values that it tried; none for other images."""
    tried: list[TriedSetting] = []
    for model in grid.models if facts.is_fresh else ():
        tried += describe_tried_rates(name_rate(model), model.learning_rate, model.rates_tried)
        tried += describe_tried_rates(name_finetune_rate(model), model.finetune_rate, model.finetune_rates_tried)
        if model.regularised:
            tried += [
                TriedSetting(name=name_regularisation(model, size), chosen=name, tried=tuple(REGULARISATIONS))
                for size, name in zip(grid.sizes, model.regularised, strict=True)
            ]
    return tuple(tried)


def describe_tried_rates(name: str, chosen: float | None, values: Sequence[float]) -> list[TriedSetting]:
    """Return a learning rate with all values that a search tried; nothing if there was no search."""
    if chosen is None or not values:
        return []
    return [TriedSetting(name=name, chosen=f"{chosen:g}", tried=tuple(f"{value:g}" for value in values))]

"""How the settings of `self-supervision` are chosen, on held-out images: `vitrine study self-supervision --search`.

Every value, also of pre-training, is judged by the accuracy after fine-tuning: the mean over the numbers of labelled images,
with one seed, on training images that were held out. The two rates of pre-training are chosen from the same values, and so are
the three rates of fine-tuning: no start is searched more closely than another.
"""

from collections.abc import Callable
from dataclasses import replace

from vitrine.data.config import DataConfig
from vitrine.studies.config import Scale
from vitrine.studies.runner import StudyRun
from vitrine.studies.search import FACTOR, Choice, build_trial, list_first_rates, measure_once
from vitrine.studies.self_supervision_grid import (
    GRIDS,
    MASKED,
    TARGETS,
    Cell,
    Grid,
    LabelledFacts,
    Rate,
    Start,
    find_facts,
    list_cells,
)
from vitrine.studies.self_supervision_recipes import build_finetune_recipe, build_glyph_recipe, count_evaluated
from vitrine.studies.study import SearchPlan, TriedSetting

MAX_HELD_OUT = 2_000  # of large labelled sets; of the digits, all that are not trained on are held out
TARGET = "target of masked patches"


def build_search(scale: Scale, data: str | None) -> SearchPlan:
    """Build what `--search` chooses at a scale."""
    grid = GRIDS[scale]
    facts = find_facts(grid, data)
    pretrained = [start for start in grid.starts if start.pretrain_rate is not None]
    choices = [
        *(build_pretrain_choice(grid, facts, start) for start in pretrained),
        build_target_choice(grid, facts),
        *(build_finetune_choice(grid, facts, start) for start in grid.starts),
    ]
    return SearchPlan(source=facts.source, num_classes=facts.num_classes, choices=tuple(choices))


def name_pretrain_rate(start: Start) -> str:
    return f"learning rate of pre-training, {start.name}"


def name_finetune_rate(start: Start) -> str:
    return f"learning rate of fine-tuning, {start.name}"


def build_pretrain_choice(grid: Grid, facts: LabelledFacts, start: Start) -> Choice:
    """Build the choice of a start's learning rate of pre-training; each value is fine-tuned on all numbers of images."""

    def build(rate: float) -> tuple[StudyRun, ...]:
        return build_trials(grid, facts, replace(start, pretrain_rate=Rate(value=rate)))

    assert start.pretrain_rate is not None
    return Choice(
        name=name_pretrain_rate(start),
        values=list_first_rates(*(each.pretrain_rate.value for each in grid.starts if each.pretrain_rate is not None)),
        committed=start.pretrain_rate.value,
        build=build,
        factor=FACTOR,
        family="pre-training",
    )


def build_target_choice(grid: Grid, facts: LabelledFacts) -> Choice:
    """Build the choice of what is predicted for a masked patch."""
    (start,) = [start for start in grid.starts if start.name == MASKED]
    return Choice(
        name=TARGET,
        values=TARGETS,
        committed=grid.target,
        build=lambda target: build_trials(replace(grid, target=target), facts, start),
        describe=str,
    )


def build_finetune_choice(grid: Grid, facts: LabelledFacts, start: Start) -> Choice:
    """Build the choice of a start's learning rate of fine-tuning, after pre-training with the committed settings."""

    def build(rate: float) -> tuple[StudyRun, ...]:
        return build_trials(grid, facts, replace(start, finetune_rate=Rate(value=rate)))

    assert start.finetune_rate is not None
    return Choice(
        name=name_finetune_rate(start),
        values=list_first_rates(*(each.finetune_rate.value for each in grid.starts if each.finetune_rate is not None)),
        committed=start.finetune_rate.value,
        build=build,
        factor=FACTOR,
        family="fine-tuning",
    )


def build_trials(grid: Grid, facts: LabelledFacts, start: Start) -> tuple[StudyRun, ...]:
    """Build pre-training, if there is any, and fine-tuning on every number of images, measured on held-out images alone."""
    first = None if start.pretrain_rate is None else build_pretrain_trial(grid, start, start.pretrain_rate.value)
    cells = list_cells(replace(grid, starts=(start,)), facts, (0,))
    tuned = (build_finetune_trial(grid, facts, cell, first) for cell in cells)
    return (*(() if first is None else (first,)), *tuned)


def build_pretrain_trial(grid: Grid, start: Start, rate: float) -> StudyRun:
    """Build a run of pre-training; trials with the same settings share it."""
    target = f"-{grid.target}" if start.name == MASKED else ""
    columns = {"model": start.name, "num_evaluated": 0}
    return build_trial(f"{start.folder}{target}-lr-{rate:g}", build_glyph_recipe(grid, start, 0), columns)


def build_finetune_trial(grid: Grid, facts: LabelledFacts, cell: Cell, first: StudyRun | None) -> StudyRun:
    """Build a run of fine-tuning that starts from a trial of pre-training, or from fresh weights."""
    recipe = build_finetune_recipe(grid, facts, cell)
    recipe = measure_once(replace(recipe, data=hold_out_others(facts, recipe.data, cell.num_images)))
    before = cell.start.folder if first is None else first.folder
    folder = f"{before}-on-{cell.num_images}-lr-{recipe.optim.learning_rate:g}"
    columns = {"model": "fine-tuning", "num_evaluated": count_evaluated(replace(facts, num_test=0), recipe)}
    if first is None:
        return build_trial(folder, recipe, columns)
    recipe = replace(recipe, model=replace(recipe.model, checkpoint=first.folder))
    return build_trial(folder, recipe, columns, first.folder)


def hold_out_others(facts: LabelledFacts, data: DataConfig, num_images: int) -> DataConfig:
    """Return a data config with as many training images, and others of the training images held out."""
    num_held = min(facts.num_images - num_images, MAX_HELD_OUT)
    if num_held <= 0:
        raise ValueError(
            f"{facts.source} has {facts.num_images:,} training images; expected more than {num_images:,}, the most to train "
            "on, to hold some out: use larger data."
        )
    total = num_images + num_held
    subset = "all" if total == facts.num_images else str(total)
    return replace(data, subset=subset, held_out=num_held / total)


def list_tried(grid: Grid, facts: LabelledFacts) -> tuple[TriedSetting, ...]:
    """Return the settings that were chosen by a search, with all values that it tried."""
    if not facts.is_default:
        return ()
    name: Callable[[float], str] = "{:g}".format
    named = [
        *((name_pretrain_rate(start), start.pretrain_rate) for start in grid.starts),
        *((name_finetune_rate(start), start.finetune_rate) for start in grid.starts),
    ]
    rates = [
        TriedSetting(name=words, chosen=name(rate.value), tried=tuple(map(name, rate.tried)))
        for words, rate in named
        if rate is not None and rate.tried
    ]
    targets = [TriedSetting(name=TARGET, chosen=grid.target, tried=grid.targets_tried)] if grid.targets_tried else []
    return (*rates, *targets)

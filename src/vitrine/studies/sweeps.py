"""`vitrine.train` and `vitrine.finetune`: one run, several seeds, or a learning-rate search first.

The paper chose learning rates from a grid, on a held-out part of train (appendix B.1.1 of arXiv:2010.11929), and reports the
mean and spread over three seeds (table 2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrine.core.console import name_setting, summarise_error, warn_user
from vitrine.core.runtime import start_runtime
from vitrine.data.open_data import DataLike, DatasetHandle, find_data, open_train_data
from vitrine.formats.checkpoint import Checkpoint
from vitrine.recipe import Recipe, shorten_warmup, with_changes
from vitrine.recipes.registry import build_finetune_recipe, find_data_once, find_finetune_recipe, find_recipe, name_finetune_run
from vitrine.run.folder import RunSummary
from vitrine.run.run import Diverged, run_recipe
from vitrine.studies.runner import RunOutcome, StudyRun, run_here

HELD_OUT = 0.1  # fraction of train that learning rates are compared on


@dataclass(frozen=True)
class LearningRateSearch:
    """Result of `search_learning_rate`."""

    summaries: dict[float, RunSummary]
    """Runs by learning rate, without those that diverged; fewer than requested if it was interrupted."""
    interrupted_by: int | None = None
    """The signal."""

    @property
    def best(self) -> float:
        """The learning rate with the highest held-out accuracy; of equal ones, the lowest."""
        return max(sorted(self.summaries), key=lambda lr: self.summaries[lr].best or 0.0)


@dataclass(frozen=True)
class TrainResult:
    """Result of `train` and `finetune`: one run, or one for each seed."""

    recipe: Recipe
    """Recipe of the runs, with the learning rate that was chosen."""
    runs: list[RunSummary]
    """Summaries of the runs; fewer than seeds if they were interrupted."""
    folders: list[Path]
    """Folders of these runs, with the trained model in `model` and its curves in curves.png."""
    is_finished: bool
    search: LearningRateSearch | None = None
    interrupted_by: int | None = None
    """The signal, which may have come with the last step of all."""


def train(
    recipe: Recipe | str,
    out: str | Path | None = None,
    *,
    seeds: Sequence[int] = (),
    learning_rates: Sequence[float] | None = None,
    held_out: float = HELD_OUT,
    title: str | None = None,
    dataset: DatasetHandle | None = None,
    checkpoint: Checkpoint | None = None,
    base: Recipe | None = None,
    **changes: Any,
) -> TrainResult:
    """Train a recipe, given as an object or by name; an interrupted run in the same folder is resumed.

    Args:
        recipe: A recipe, or a name from `vitrine train --list`.
        out: Folder of the run (default: runs/ and the recipe's name).
        seeds: Train once with each of these seeds; several have a folder each.
        learning_rates: Choose the learning rate from these first, on a held-out part of the training images.
        held_out: That part of the training images, unless the recipe holds out some itself.
        title: What progress and figures call the run.
        dataset: The recipe's data, if it was found already.
        checkpoint: The recipe's checkpoint, if it is loaded already.
        base: The recipe that this one was made from: if its warm-up does not fit into the run, it is shortened.
        changes: Changed fields of the recipe, e.g. seed=1 or optim={"learning_rate": 0.1}.
    """
    name = recipe if isinstance(recipe, str) else "training"
    recipe = find_recipe(recipe)() if isinstance(recipe, str) else recipe
    base = recipe if base is None else base
    recipe = with_changes(recipe, **changes) if changes else recipe
    title = name if title is None else title
    folder = Path("runs") / name if out is None else Path(out)
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds={tuple(seeds)} must be distinct.")
    search = None
    with start_runtime(recipe.device) as runtime:  # once for all runs: the processes of torchrun can meet only once
        if recipe != base and recipe.total_steps is None and recipe.optim.warmup_steps + recipe.optim.cooldown_steps > 0:
            with runtime.main_first():  # rank 0 downloads and indexes; the other ranks reuse it
                dataset = find_data_once(recipe.data.source) if dataset is None else dataset
                images, _ = open_train_data(replace(recipe.data, in_memory=False), dataset)
            recipe = shorten_warmup(recipe, base, recipe.compute_total_steps(len(images)))
        if learning_rates is not None:
            search = search_learning_rate(recipe, learning_rates, held_out, folder, title, dataset, checkpoint)
            if search.interrupted_by is not None:
                return TrainResult(recipe, [], [], False, search, search.interrupted_by)
            final_held_out = choose_final_held_out(recipe, dataset)
            recipe = with_changes(recipe, optim={"learning_rate": search.best}, data={"held_out": final_held_out})
            folder = folder / "chosen"
        if len(seeds) > 1:
            runs = run_seeds(recipe, seeds, folder, title, dataset, checkpoint)
            folders = [folder / f"seed-{run.seed}" for run in runs]
        else:
            recipe = replace(recipe, seed=seeds[0]) if seeds else recipe
            runs, folders = [run_recipe(recipe, folder, title, dataset, checkpoint)], [folder]
    is_finished = runs[-1].is_finished and len(runs) >= len(seeds)
    return TrainResult(recipe, runs, folders, is_finished, search, runs[-1].interrupted_by)


def finetune(
    model: str | Path | Checkpoint,
    data: DataLike,
    /,  # so that `changes` may have the recipe's fields `model` and `data`
    out: str | Path | None = None,
    *,
    recipe: str = "folder",
    seeds: Sequence[int] = (),
    select_rate: bool = False,
    title: str | None = None,
    **changes: Any,
) -> TrainResult:
    """Fine-tune a checkpoint on images; an interrupted run in the same folder is resumed.

    Args:
        model: A folder or file in any known format, hf://org/name, or a loaded checkpoint.
        data: Path or name of a dataset, or a map-style dataset of (PIL image, label).
        out: Folder of the run (default: below runs/, named after model, data and recipe).
        recipe: Name of a fine-tuning recipe: folder, which suits a laptop, or one of the paper's, e.g. pets.
        seeds: Train once with each of these seeds; several have a folder each.
        select_rate: Choose the learning rate first, from the recipe's own list, on a held-out part of the training images.
        title: What progress and figures call the run.
        changes: Changed fields of the recipe, e.g. epochs=3 or optim={"learning_rate": 1e-4}.
    """
    rule = find_finetune_recipe(recipe)
    dataset = find_data_once(data)
    checkpoint = model if isinstance(model, Checkpoint) else None
    name = str(model) if checkpoint is None else str(checkpoint.provenance.get("source", "checkpoint"))
    title = name_finetune_run(name, dataset.name, recipe) if title is None else title
    return train(
        build_finetune_recipe(recipe, name, dataset),
        Path("runs") / title if out is None else out,
        seeds=seeds,
        learning_rates=rule.learning_rates if select_rate else None,
        held_out=rule.held_out,
        title=title,
        dataset=dataset,
        checkpoint=checkpoint,
        **changes,
    )


def search_learning_rate(
    recipe: Recipe,
    learning_rates: Sequence[float],
    held_out: float,
    out: Path,
    title: str,
    dataset: DatasetHandle | None = None,
    checkpoint: Checkpoint | None = None,
) -> LearningRateSearch:
    """Train with each learning rate on part of train and measure once, at the end, on the rest; test images are not used."""
    trials = build_trials(recipe, learning_rates, recipe.data.held_out or held_out)
    runs = [
        StudyRun(
            label=f"{lr:g}",
            recipe=trial,
            folder=f"rate-{lr:g}",
            title=f"{title}, lr {lr:g}",
            dataset=dataset,
            checkpoint=checkpoint,
        )
        for lr, trial in trials.items()
    ]
    table = run_here(runs, out, (Diverged,), warn_if_diverged)
    summaries = {
        outcome.run.recipe.optim.learning_rate: outcome.summary
        for outcome in table.outcomes
        if outcome.summary is not None and outcome.summary.is_finished
    }
    if not summaries and table.interrupted_by is None:
        raise ValueError(f"All learning rates {tuple(learning_rates)} are too high: give lower ones.")
    return LearningRateSearch(summaries, table.interrupted_by)


def warn_if_diverged(outcome: RunOutcome) -> None:
    """Warn that the learning rate of a run was too high, if it failed."""
    if outcome.error is not None:
        lr = outcome.run.recipe.optim.learning_rate
        warn_user(f"Learning rate {lr:g} is too high: {summarise_error(outcome.error)}.")


def choose_final_held_out(recipe: Recipe, dataset: DatasetHandle | None) -> float:
    """Return the held-out fraction of the run after a search: 0, unless no split can measure its accuracy."""
    dataset = find_data(recipe.data.source) if dataset is None else dataset
    if {"val", "test"} & set(dataset.splits) or recipe.data.held_out == 0:
        return 0.0
    warn_user(
        f"{dataset.name} has no test images: the final run is measured on the images that the learning rate was chosen on, "
        "so its accuracy is slightly too high."
    )
    return recipe.data.held_out


def build_trials(recipe: Recipe, learning_rates: Sequence[float], held_out: float) -> dict[float, Recipe]:
    """Build the recipes of a search, all of them, so that a mistake in one is found before the first is run."""
    if len(learning_rates) < 2:
        given = tuple(learning_rates)
        name = name_setting("select_rate")
        raise ValueError(f"{name} needs at least two learning rates, not {given}: give more of them, or leave it out.")
    if len({f"{lr:g}" for lr in learning_rates}) != len(learning_rates):
        raise ValueError(f"rates={tuple(learning_rates)} has equal or nearly equal ones: give each once.")
    if held_out == 0:
        raise ValueError(
            f"data.held_out=0 leaves no images to compare learning rates on: set e.g. {name_setting('data.held_out', 0.1)}."
        )
    evaluation = {"num_times": 1, "test": False, "patience": None}
    return {
        lr: with_changes(recipe, optim={"learning_rate": lr}, data={"held_out": held_out}, evaluation=evaluation)
        for lr in learning_rates
    }


def run_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    out: Path,
    title: str,
    dataset: DatasetHandle | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[RunSummary]:
    """Run a recipe with each seed in a folder of its own; finished runs are only read, and an interruption ends the list."""
    runs = [build_seed_run(recipe, seed, title, dataset, checkpoint) for seed in seeds]
    return run_here(runs, out).summaries


def build_seed_run(
    recipe: Recipe,
    seed: int,
    title: str,
    dataset: DatasetHandle | None = None,
    checkpoint: Checkpoint | None = None,
    folder: str = "",
) -> StudyRun:
    """Build a run of a recipe with another seed, in a folder below `folder`."""
    return StudyRun(
        label=f"{title}, seed {seed}",
        recipe=replace(recipe, seed=seed),
        folder=f"{folder}seed-{seed}",
        title=f"{title}, seed {seed}",
        dataset=dataset,
        checkpoint=checkpoint,
    )

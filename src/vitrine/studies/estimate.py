"""What a study costs: compute from the models' configs, and time from ten measured steps of each model on this machine."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrine.core.console import warn_user
from vitrine.core.runtime import find_default_device
from vitrine.evaluation.config import EvaluationConfig
from vitrine.models.cost import Cost, compute_cost
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.studies.children import run_in_children
from vitrine.studies.runner import StudyRun
from vitrine.training.config import ReportConfig, SavingConfig
from vitrine.training.metrics_log import read_records

FIRST_STEPS, MEASURED_STEPS = 5, 10  # the first steps are slower
PASSES = 3  # a training step costs as much as three forward passes
MAX_MACS = 3e12  # of the measured steps of a model on a CPU, about two minutes: larger models are not measured
START_S = 3.0  # of a run before its first and after its last step: opening the data, saving, its report


@dataclass(frozen=True, kw_only=True)
class RunCost:
    """Cost of a run."""

    run: StudyRun
    macs: int
    """Multiply-accumulates of one forward pass."""
    exaflops: float
    """Training compute, counted as in table 6 of the paper."""
    seconds: float | None
    """None where no steps were measured."""


def estimate_costs(runs: Sequence[StudyRun], num_classes: int, jobs: int, is_measured: bool) -> list[RunCost]:
    """Return the cost of every run; times only if steps of its model are measured here, `jobs` models at a time."""
    settings = find_networks(runs)
    costs = {run.folder: compute_cost(settings[run.folder].resolve(num_classes)) for run in runs}
    speeds = measure_speeds(runs, costs, jobs) if is_measured else {}
    return [estimate_run(run, costs[run.folder], speeds.get(run.columns["model"])) for run in runs]


def find_networks(runs: Sequence[StudyRun]) -> dict[str, ModelSettings]:
    """Return the network of each run by its folder: its own, or at its image size that of the run which it starts from."""
    found: dict[str, ModelSettings] = {}
    for run in runs:
        model = run.recipe.model
        if run.start is None:
            found[run.folder] = model
        else:
            first = found[run.start]
            found[run.folder] = replace(first, image_size=model.image_size or first.image_size)
    return found


def estimate_run(run: StudyRun, cost: Cost, macs_per_s: float | None) -> RunCost:
    """Return the cost of a run whose model computes so many multiply-accumulates of forward passes a second in training."""
    assert run.recipe.total_steps is not None
    num_images = run.recipe.total_steps * run.recipe.loader.batch_size
    seconds = None
    if macs_per_s is not None:
        seconds = START_S + (num_images + run.columns["num_evaluated"] / PASSES) * cost.macs / macs_per_s
    return RunCost(run=run, macs=cost.macs, exaflops=cost.compute_exaflops(num_images, 1), seconds=seconds)


def measure_speeds(runs: Sequence[StudyRun], costs: Mapping[str, Cost], jobs: int) -> dict[str, float]:
    """Return how many multiply-accumulates of forward passes each model trains a second, by its name.

    Models that are too large to measure here are left out.
    """
    probes: dict[str, StudyRun] = {}
    for run in reversed(runs):  # the last runs have the most images
        num_images = (FIRST_STEPS + MEASURED_STEPS) * run.recipe.loader.batch_size
        is_large = PASSES * costs[run.folder].macs * num_images > MAX_MACS and find_default_device() == "cpu"
        name = run.columns["model"]
        if run.start is None and not is_large and name not in probes:
            columns = {"macs": costs[run.folder].macs}
            probes[name] = replace(
                run, recipe=shorten(run.recipe), folder=f"probe-{len(probes)}", label=name, title=name, columns=columns
            )
    with tempfile.TemporaryDirectory() as folder:
        table = run_in_children([*probes.values()], Path(folder), jobs, read_speed, lambda outcome: None)
    if table.interrupted_by is not None:
        raise KeyboardInterrupt
    for failure in table.failures:
        warn_user(f"The speed of {failure.run.label} was not measured. {failure.error}")
    return {each.run.label: each.reading["macs_per_s"] for each in table.outcomes if each.reading is not None}


def shorten(recipe: Recipe) -> Recipe:
    """Return a recipe of some steps of the same kind, which measures nothing but its speed."""
    return replace(
        recipe,
        total_steps=FIRST_STEPS + MEASURED_STEPS,
        epochs=None,
        optim=replace(recipe.optim, warmup_steps=0, cooldown_steps=0),
        evaluation=EvaluationConfig(num_times=0, test=False),
        report=ReportConfig(every_steps=FIRST_STEPS),
        saving=SavingConfig(),
    )


def read_speed(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Return the speed of the measured steps of a run."""
    speeds = [
        1 / record["images_per_s"]
        for record in read_records(RunFolder(folder).metrics)
        if record["step"] > FIRST_STEPS and "images_per_s" in record
    ]
    return {"macs_per_s": run.columns["macs"] / fmean(speeds)}

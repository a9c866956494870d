"""`vitrine.run_demo`: make the runs of the demo, measure their models, and write the report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.core.console import print_notice
from vitrine.core.files import atomic_file, make_folder
from vitrine.core.runtime import choose_device
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, Step, plan_demo
from vitrine.demo.report import write_demo_report
from vitrine.demo.results import StepResult
from vitrine.evaluation.few_shot import few_shot
from vitrine.evaluation.intervals import wilson_interval
from vitrine.formats.load import load_checkpoint
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.inspect_model import Inspection, inspect
from vitrine.inspection.report import write_inspection
from vitrine.models.cost import compute_cost
from vitrine.recipe import Recipe
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.studies.children import run_in_children
from vitrine.studies.run_study import is_stopped, report_progress
from vitrine.studies.runner import RunOutcome, RunTable, StudyRun

MAX_SIDE, MAX_IMAGES = 480, 256  # of the test images that are written for the inspection


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of `run_demo`."""

    config: DemoConfig
    model: str
    """The ViT that was transferred."""
    num_train_images: int
    num_test_images: int
    steps: list[StepResult]
    """Results of the steps; none if the demo was interrupted."""
    report: Path | None
    """The HTML page; None if the demo was interrupted."""
    interrupted_by: int | None = None
    """The signal; the same call continues."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of `vitrine demo --json`."""
        return {
            "data": self.config.data,
            "num_train_images": self.num_train_images,
            "num_test_images": self.num_test_images,
            "model": self.model,
            "seed": self.config.seed,
            "quick": self.config.quick,
            "results": [asdict(step) for step in self.steps],
        }


def run_demo(config: DemoConfig | None = None) -> DemoResult:
    """Pre-train small models, transfer them, train them from scratch, inspect the ViT, and write a report.

    Finished runs in the same folder are only read, and interrupted ones are resumed.
    """
    config = DemoConfig() if config is None else config
    choose_device(config.device)  # an unknown device is an error before anything is opened
    plan = plan_demo(config)
    check_folders(plan)
    jobs = config.jobs or count_cpus()
    print_notice(
        f"{config.data}: {len(plan.train):,} training and {len(plan.test):,} test images. {len(plan.runs)} runs, {jobs} at a "
        f"time, about {max(1, round(plan.minutes))} min on two CPU cores. Results go to {config.out}."
    )
    table = run_in_children(plan.runs, config.out, jobs, read, report_progress(len(plan.runs)))
    require_success(table)
    steps, report = [], None
    interrupted_by = table.interrupted_by if is_stopped(table, len(plan.runs)) else None
    if interrupted_by is None:
        steps, inspection = collect_results(plan, table)
        report = write_demo_report(plan, steps, inspection)
    return DemoResult(
        config=config,
        model=plan.checkpoint,
        num_train_images=len(plan.train),
        num_test_images=len(plan.test),
        steps=steps,
        report=report,
        interrupted_by=interrupted_by,
    )


def check_folders(plan: Plan) -> None:
    """Raise an error, before anything is trained, if a folder holds the run of another recipe, e.g. with other data."""
    for run in plan.runs:
        RunFolder(plan.config.out / run.folder).check(run.recipe)


def require_success(table: RunTable) -> None:
    """Raise ValueError with the error of the first run that failed; others that have finished are kept."""
    for outcome in table.failures:
        raise ValueError(f"{outcome.run.label} failed: {outcome.error}")


def read(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Measure a finished run, in its process: accuracy, cost and, before a transfer, the frozen features it starts from."""
    # Data without splits has no test images: the held-out ones were evaluated once, at the end.
    accuracy = summary.best if summary.test_top1 is None else summary.test_top1
    reading = {"accuracy": accuracy, "macs": compute_cost(load_checkpoint(folder / "model").model.config).macs}
    if run.columns["kind"] == "transfer":
        reading["few_shot"] = read_few_shot(RunFolder(folder).read_recipe())
    return reading


def read_few_shot(recipe: Recipe) -> dict[str, Any]:
    """Measure a linear classifier on frozen features of a recipe's checkpoint, fitted to the images that it trains on."""
    start_s = time.monotonic()
    assert recipe.model.checkpoint is not None
    checkpoint, data = load_checkpoint(recipe.model.checkpoint), recipe.data
    held_out = data.held_out or None
    (result,) = few_shot(
        checkpoint, data.source, (None,), held_out=held_out, subset=data.subset, device=recipe.device, use_cache=False
    )
    cost = compute_cost(checkpoint.model.config)
    return {
        "accuracy": result.mean,
        "num_test_images": result.num_test_images,
        "num_parameters": cost.num_parameters,
        "macs": cost.macs,
        "seconds": time.monotonic() - start_s,
    }


def collect_results(plan: Plan, table: RunTable) -> tuple[list[StepResult], Inspection]:
    """Return the results of all steps in the order of the plan, and the inspection, which is made now."""
    outcomes = {outcome.run.folder: outcome for outcome in table.outcomes}
    *steps, last = plan.steps
    results = [
        build_few_shot_result(plan, step, outcomes[f"{step.family}-transfer"])
        if step.recipe is None
        else build_result(plan, step, outcomes[step.key])
        for step in steps
    ]
    print_notice(f"Last: {last.title}")
    with limit_threads(plan):
        result, inspection = run_inspection(plan, last)
    return [*results, result], inspection


def build_result(plan: Plan, step: Step, outcome: RunOutcome) -> StepResult:
    """Return the result of a training run."""
    summary, reading = outcome.summary, outcome.reading
    assert summary is not None
    assert reading is not None
    num_images = len(plan.test) if summary.num_test_images is None else summary.num_test_images
    return StepResult(
        **describe_step(step),
        seconds=3600 * summary.device_hours,
        accuracy=wilson_interval(reading["accuracy"], num_images),
        num_test_images=num_images,
        num_parameters=summary.num_parameters,
        macs=reading["macs"],
        num_images=summary.images,
        exaflops=summary.exaflops,
    )


def build_few_shot_result(plan: Plan, step: Step, outcome: RunOutcome) -> StepResult:
    """Return the result of the linear classifier that was fitted before a transfer."""
    assert outcome.reading is not None
    reading = outcome.reading["few_shot"]
    return StepResult(
        **describe_step(step),
        seconds=reading["seconds"],
        accuracy=wilson_interval(reading["accuracy"], reading["num_test_images"]),
        num_test_images=reading["num_test_images"],
        num_parameters=reading["num_parameters"],
        macs=reading["macs"],
        num_images=len(plan.train),
        exaflops=2 * reading["macs"] * len(plan.train) / 1e18,  # forward only
    )


def describe_step(step: Step) -> dict[str, Any]:
    """Return what a result repeats of its step."""
    return {"key": step.key, "family": step.family, "kind": step.kind, "title": step.title, "command": step.command}


@contextmanager
def limit_threads(plan: Plan) -> Iterator[None]:
    """Use one thread for the demo's own models, which are so small that two are slower."""
    num_threads = torch.get_num_threads()
    if plan.config.model is None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def run_inspection(plan: Plan, step: Step) -> tuple[StepResult, Inspection]:
    """Inspect the transferred ViT on test images, which are written as files first."""
    start_s = time.monotonic()
    config, out = plan.config, plan.config.out
    model = RunFolder(out / "vit-transfer").model
    save_test_images(plan.test, out / "images", max(config.num_drawn, config.num_measured))
    settings = InspectConfig(num_drawn=config.num_drawn, num_measured=config.num_measured)
    inspection = inspect(
        load_checkpoint(model), [out / "images"], settings, RolloutConfig(), device=choose_device(config.device)
    )
    write_inspection(inspection, out / "inspect", str(model), command=step.command)
    return StepResult(**describe_step(step), seconds=time.monotonic() - start_s), inspection


def save_test_images(source: Source, folder: Path, count: int) -> None:
    """Write test images as PNG files for `inspect`, large ones reduced: the first of each class, then the second, ..."""
    make_folder(folder)
    for number, index in enumerate(order_by_turns(source.labels.values)[: min(count, MAX_IMAGES)]):
        image = source.read(int(index))[0].to_pil()
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        with atomic_file(folder / f"{number:03d}.png") as partial:
            image.save(partial, format="PNG")


def order_by_turns(labels: np.ndarray) -> np.ndarray:
    """Return indices of images: the first of each class, then the second of each, and so on."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    turns = np.empty(len(labels), dtype=np.int64)
    turns[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return np.lexsort((labels, turns))

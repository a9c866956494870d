"""`vitrine.run_demo`: run the steps of the demo, and write its report."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.core.console import print_notice
from vitrine.core.files import atomic_file, make_folder, read_json, write_json
from vitrine.core.runtime import choose_device
from vitrine.data.source import Source
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, Step, StepResult, plan_demo
from vitrine.demo.report import write_demo_report
from vitrine.evaluation.features import FeatureSplit
from vitrine.evaluation.few_shot import evaluate_few_shot
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.load import load_checkpoint
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.inspect_model import Inspection, inspect
from vitrine.inspection.report import write_inspection
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunSummary
from vitrine.run.run import run_recipe

MAX_SIDE, MAX_IMAGES = 480, 256  # of the test images that are written for the inspection


class Interrupted(Exception):
    """A run of the demo was interrupted; it is saved."""

    def __init__(self, summary: RunSummary) -> None:
        super().__init__(f"step {summary.steps} of {summary.total_steps}")
        self.summary = summary


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Result of `run_demo`."""

    config: DemoConfig
    model: str
    """The checkpoint that was transferred."""
    num_train_images: int
    num_test_images: int
    steps: list[StepResult]
    """Results of the steps; none if a run was interrupted."""
    report: Path | None
    """The HTML page; None if a run was interrupted."""
    interrupted_by: RunSummary | None = None
    """The run that was interrupted, if any; the same call resumes it."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of `vitrine demo --json`."""
        return {
            "data": self.config.data,
            "num_train_images": self.num_train_images,
            "num_test_images": self.num_test_images,
            "model": self.model,
            "seed": self.config.seed,
            "results": [asdict(step) for step in self.steps],
        }


def run_demo(config: DemoConfig | None = None) -> DemoResult:
    """Pre-train a small ViT, transfer it, compare it with other models, inspect it, and write a report.

    Finished steps in the same folder are only read, and an interrupted one is resumed.
    """
    config = DemoConfig() if config is None else config
    choose_device(config.device)  # an unknown device is an error before anything is opened
    plan = plan_demo(config)
    print_notice(
        f"{config.data}: {len(plan.train):,} training and {len(plan.test):,} test images. {len(plan.steps)} steps "
        f"({', '.join(step.key for step in plan.steps)}), about {max(1, round(plan.minutes))} min on two CPU cores. Results go "
        f"to {config.out}."
    )
    steps, report, interrupted_by = [], None, None
    try:
        steps, inspection = run_steps(plan)
        report = write_demo_report(plan, steps, inspection)
    except Interrupted as error:
        interrupted_by = error.summary
    return DemoResult(
        config=config,
        model=plan.checkpoint,
        num_train_images=len(plan.train),
        num_test_images=len(plan.test),
        steps=steps,
        report=report,
        interrupted_by=interrupted_by,
    )


def run_steps(plan: Plan) -> tuple[list[StepResult], Inspection]:
    """Run every step of a plan, the inspection last; finished runs are only read."""
    results = []
    *steps, last = plan.steps
    with limit_threads(plan):
        for number, step in enumerate(steps, start=1):
            print_notice(f"{number}/{len(plan.steps)}  {step.title}")
            results.append((run_few_shot if step.key == "few-shot" else run_training)(plan, step))
        print_notice(f"{len(plan.steps)}/{len(plan.steps)}  {last.title}")
        result, inspection = run_inspection(plan, last)
    return [*results, result], inspection


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


def run_training(plan: Plan, step: Step) -> StepResult:
    """Train a step's recipe in its folder, or read the finished run."""
    assert step.recipe is not None
    out = plan.config.out / step.key
    summary = run_recipe(step.recipe, out, step.key)
    if summary.interrupted_by is not None or not summary.is_finished:
        raise Interrupted(summary)
    # Data without splits has no test images: the held-out ones were evaluated once, at the end.
    top1, num_images = summary.test_top1, summary.num_test_images
    if top1 is None:
        top1, num_images = summary.best, len(plan.test)
    assert top1 is not None
    assert num_images is not None
    return StepResult(
        key=step.key,
        title=step.title,
        command=step.command,
        seconds=3600 * summary.device_hours,
        accuracy=wilson_interval(top1, num_images),
        num_test_images=num_images,
        num_parameters=summary.num_parameters,
        macs=compute_cost(load_checkpoint(out / "model").model.config).macs,
        num_images=summary.images,
        exaflops=summary.exaflops,
    )


def run_few_shot(plan: Plan, step: Step) -> StepResult:
    """Evaluate a linear classifier on features of the pre-trained checkpoint; its result is kept in few-shot.json."""
    path, asked = plan.config.out / "few-shot.json", {"command": step.command}
    if path.is_file():
        kept = read_json(path)
        if kept.get("asked") == asked:
            return StepResult(**{**kept["result"], "accuracy": Estimate(**kept["result"]["accuracy"])})
    start_s = time.monotonic()
    checkpoint = load_checkpoint(plan.checkpoint, image_size=plan.image_size)
    predictor = Predictor(checkpoint, choose_device(plan.config.device), show_progress=True)
    train, test = (predictor.features(source) for source in (plan.train, plan.test))
    accuracy = evaluate_few_shot(FeatureSplit(train, test, len(plan.train.class_names)), None).mean
    cost = compute_cost(checkpoint.model.config)
    result = StepResult(
        key=step.key,
        title=step.title,
        command=step.command,
        seconds=time.monotonic() - start_s,
        accuracy=wilson_interval(accuracy, len(plan.test)),
        num_test_images=len(plan.test),
        num_parameters=cost.num_parameters,
        macs=cost.macs,
        num_images=len(plan.train),
        exaflops=2 * cost.macs * len(plan.train) / 1e18,  # forward only
    )
    write_json(path, {"asked": asked, "result": asdict(result)})
    return result


def run_inspection(plan: Plan, step: Step) -> tuple[StepResult, Inspection]:
    """Inspect the transferred model on test images, which are written as files first."""
    start_s = time.monotonic()
    config, out = plan.config, plan.config.out
    save_test_images(plan.test, out / "images", max(config.num_drawn, config.num_measured))
    checkpoint = load_checkpoint(out / "transfer" / "model")
    settings = InspectConfig(num_drawn=config.num_drawn, num_measured=config.num_measured)
    inspection = inspect(checkpoint, [out / "images"], settings, RolloutConfig(), device=choose_device(config.device))
    write_inspection(inspection, out / "inspect", str(out / "transfer" / "model"), command=step.command)
    seconds = time.monotonic() - start_s
    return StepResult(key=step.key, title=step.title, command=step.command, seconds=seconds), inspection


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

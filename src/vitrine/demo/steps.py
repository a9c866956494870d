"""The story, told: what each step of a plan came to, and what it cost."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrine.core.files import atomic_file, make_folder, read_json, write_json
from vitrine.core.runtime import choose_device
from vitrine.data.source import Source
from vitrine.demo.plan import Plan, Step, StepResult
from vitrine.demo.report import draw_distances
from vitrine.evaluation.features import FeatureSplit
from vitrine.evaluation.few_shot import evaluate_few_shot
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.evaluation.predictor import Predictor
from vitrine.formats.load import load_checkpoint
from vitrine.inspection.config import InspectConfig, RolloutConfig
from vitrine.inspection.inspect_model import inspect
from vitrine.inspection.report import write_inspection
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunSummary
from vitrine.run.run import run_recipe

LARGEST_SIDE = 480  # of an image that is kept to look at
NUM_KEPT = 256  # at most


class Interrupted(Exception):
    """Someone stopped a run of the story, which is saved."""

    def __init__(self, summary: RunSummary) -> None:
        super().__init__(f"step {summary.steps} of {summary.total_steps}")
        self.summary = summary


def run_demo(plan: Plan) -> list[StepResult]:
    """Every step, announced; a run that was stopped is resumed, one that is finished is read."""
    tell: Mapping[str, Callable[[Plan, Step], StepResult]] = {"few-shot": measure_few_shot, "inspect": look_inside}
    results = []
    with few_threads(plan):
        for number, step in enumerate(plan.steps, start=1):
            print(f"{number}/{len(plan.steps)}  {step.title}", file=sys.stderr, flush=True)
            results.append(tell.get(step.key, train)(plan, step))
    return results


@contextmanager
def few_threads(plan: Plan) -> Iterator[None]:
    """One, for networks as small as the demo's own, which two make slower; as many as usual for anyone's checkpoint."""
    num_threads = torch.get_num_threads()
    if plan.config.model is None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def train(plan: Plan, step: Step) -> StepResult:
    assert step.recipe is not None
    out = plan.config.out / step.key
    summary = run_recipe(step.recipe, out, step.key)
    if summary.interrupted_by is not None or not summary.is_finished:
        raise Interrupted(summary)
    # Of what is not divided, the held-out images were looked at once, at the end.
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


def measure_few_shot(plan: Plan, step: Step) -> StepResult:
    """A linear classifier in closed form on what the transferred checkpoint makes of the same images; kept as JSON."""
    kept, asked = plan.config.out / "few-shot.json", {"command": step.command}
    if kept.is_file():
        found = read_json(kept)
        if found.get("asked") == asked:
            return build_result(found["result"])
    start_s = time.monotonic()
    device = choose_device(plan.config.device)
    checkpoint = load_checkpoint(plan.checkpoint, image_size=plan.image_size)
    predictor = Predictor(checkpoint, device, show_progress=True)
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
        exaflops=2 * cost.macs * len(plan.train) / 1e18,  # forwards only
    )
    write_json(kept, {"asked": asked, "result": asdict(result)})
    return result


def build_result(content: dict[str, Any]) -> StepResult:
    return StepResult(**{**content, "accuracy": Estimate(**content["accuracy"])})


def look_inside(plan: Plan, step: Step) -> StepResult:
    """The inspection's figures of the transferred model, on test images that are written as files first."""
    start_s = time.monotonic()
    config, out = plan.config, plan.config.out
    keep_images(plan.test, out / "images", max(config.num_drawn, config.num_measured))
    checkpoint = load_checkpoint(out / "transfer" / "model")
    wanted = InspectConfig(num_drawn=config.num_drawn, num_measured=config.num_measured)
    found = inspect(checkpoint, [out / "images"], wanted, RolloutConfig(), device=choose_device(config.device))
    write_inspection(found, out / "inspect", str(out / "transfer" / "model"))
    assert found.attention is not None  # a ViT has attention
    draw_distances(found.attention.distances.among_patches, out / "distances.png")
    return StepResult(key=step.key, title=step.title, command=step.command, seconds=time.monotonic() - start_s)


def keep_images(source: Source, folder: Path, count: int) -> None:
    """The first of each class, then the second, and so on, as PNG, reduced where they are large."""
    make_folder(folder)
    for number, index in enumerate(order_by_turns(source.labels.values)[: min(count, NUM_KEPT)]):
        image = source.read(int(index))[0].to_pil()
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        with atomic_file(folder / f"{number:03d}.png") as partial:
            image.save(partial, format="PNG")


def order_by_turns(labels: np.ndarray) -> np.ndarray:
    """Indices: of each class its first image, then of each its second."""
    order = np.argsort(labels, kind="stable")
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    turns = np.empty(len(labels), dtype=np.int64)
    turns[order] = np.arange(len(labels)) - np.repeat(starts, sizes)
    return np.lexsort((labels, turns))

"""report.html and curves.png of a run: accuracy with its interval, learning curves, classes, confusions, mistakes, commands."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.console import format_bytes, format_number, summarise_error, warn_user
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Chart
from vitrine.core.page_parts import Commands, Details, Headline, Note, Part, Table, format_short_percent
from vitrine.data.fingerprint import DataFingerprint
from vitrine.evaluation.classification_report import EvaluationResult, find_mistakes
from vitrine.evaluation.evaluation_page import build_interval, build_result_sections, describe_expectation, shows_top5
from vitrine.evaluation.intervals import wilson_interval
from vitrine.objectives.config import OBJECTIVES
from vitrine.recipe import Recipe, join_command
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.training.metrics_log import (
    CurveRecord,
    MetricNames,
    TestPoint,
    build_panels,
    build_rate_panels,
    draw_panels,
    find_metric_names,
    plot_curves,
    read_records,
    thin_panel,
)


@dataclass(frozen=True)
class FinishedRun:
    """Everything that the report of a run shows."""

    folder: RunFolder
    recipe: Recipe
    summary: RunSummary
    title: str
    names: MetricNames
    records: list[CurveRecord]
    data: DataFingerprint | None
    """The images of the run; None for a run without a record of them."""
    result: EvaluationResult | None
    """Predictions of the final weights on the test images, else on the validation images; None if they were not kept."""

    @property
    def tested_step(self) -> int:
        """The step whose weights are kept and tested: with patience the best, else the last."""
        has_patience = self.recipe.evaluation.patience is not None
        return self.summary.best_step or self.summary.steps if has_patience else self.summary.steps

    @property
    def num_classes(self) -> int:
        return 0 if self.data is None else len(self.data.splits["train"].class_names)


def write_run_report(
    folder: RunFolder,
    recipe: Recipe,
    summary: RunSummary,
    title: str,
    names: MetricNames | None = None,
    build_result: Callable[[], EvaluationResult | None] = lambda: None,
) -> None:
    """Write curves.png and report.html of a finished run. An error becomes a warning: the run's results must not be lost.

    Without `names` and the predictions, of a run by a former version, the report is made of its files alone.
    """
    try:
        records: list[CurveRecord] = [*read_records(folder.metrics)] if folder.metrics.is_file() else []
        data = folder.read_data() if folder.data.is_file() else None
        run = FinishedRun(folder, recipe, summary, title, names or find_metric_names(records), records, data, build_result())
        point = build_test_point(run)
        if names is not None or not folder.curves.is_file():
            plot_curves(records, folder.curves, title, run.names, point)
        write_page(folder.report, build_page(run, point))
    except Exception as error:
        warn_user(f"{folder.report} was not written ({summarise_error(error)}); model and results of the run are complete.")


def build_page(run: FinishedRun, point: TestPoint | None) -> Page:
    """Build the page of a run."""
    headline, title, lede = describe_answer(run)
    sections = [*build_curve_section(run, point)]
    if run.result is not None:
        sections += build_result_sections(run.result, run.folder.report)
    return Page(
        kind="Training",
        title=title,
        lede=lede,
        answer=headline,
        facts=list_facts(run),
        sections=[*sections, build_cost_section(run), build_command_section(run)],
        command=None,
        remarks=[
            f"run {run.title}",
            f"seed {run.summary.seed}",
            "numbers in summary.json and metrics.jsonl beside this page, settings in recipe.json",
        ],
    )


def describe_answer(run: FinishedRun) -> tuple[Headline | None, str, str]:
    """Return headline, title and lede: the test accuracy, else that on the validation images, else the loss."""
    summary, chosen = run.summary, describe_best(run)
    if summary.test_top1 is not None and summary.num_test_images:
        return describe_accuracy(run, summary.test_top1, summary.num_test_images, "test", chosen)
    last = find_last_values(run.records)
    split = summary.watched_on
    top1, num_images = last.get(f"{split}_top1"), count_images(run, split)
    if top1 is not None and num_images:
        value = summary.best if run.recipe.evaluation.patience is not None and summary.best is not None else top1
        caution = "These images were watched during the run, so new ones may do a little worse."
        return describe_accuracy(run, value, num_images, f"validation ({name_split(split)})", caution)
    name, loss = next(((name, last[name]) for name in (f"{split}_loss", "loss") if name in last), ("loss", None))
    if loss is None:
        return None, f"{run.title} ended after {summary.steps:,} steps", ""
    images = "training" if name == "loss" else f"validation ({name_split(split)})"
    lede = "" if OBJECTIVES[run.recipe.objective].needs_labels else "It learned without labels, so there is no accuracy."
    headline = Headline(f"{loss:.3g}", "", f"{images} loss at step {summary.steps:,}")
    return headline, f"The {images} loss ended at {loss:.3g}", lede


def describe_accuracy(run: FinishedRun, value: float, num_images: int, images: str, remark: str) -> tuple[Headline, str, str]:
    """Return headline, title and lede of an accuracy on some images."""
    accuracy, num_hits = wilson_interval(value, num_images), round(value * num_images)
    has_one_label = run.result is None or not run.result.source.labels.has_several
    guessing = 1 / run.num_classes if run.num_classes > 1 and has_one_label else None
    headline = Headline(
        f"{100 * value:.1f}",
        "%",
        f"{num_hits:,} of {num_images:,} {images} images right",
        build_interval(accuracy, guessing),
        "" if guessing is None else f"{format_short_percent(guessing)} guessing",
    )
    title = f"The model is right on {num_hits:,} of {num_images:,} {images} images"
    return headline, title, f"{describe_expectation(accuracy)} {remark}".strip()


def describe_best(run: FinishedRun) -> str:
    """Return the best result on the validation images as a sentence; empty if there is none."""
    summary = run.summary
    if summary.best is None or f"{summary.watched_on}_top1" not in run.names.evaluation:
        return ""
    best = (
        f"Best on {name_split(summary.watched_on)} images: {format_short_percent(summary.best)} at step {summary.best_step:,}"
    )
    return f"{best}, where training stopped early." if summary.stopped_early else f"{best}."


def list_facts(run: FinishedRun) -> list[tuple[str, str]]:
    """List at most six facts about a run."""
    summary = run.summary
    length = f"{summary.steps:,} steps, {summary.images / max(1, summary.num_train_images):.1f} epochs"
    facts = [
        ("Model", f"{summary.model}, {format_number(summary.num_parameters / 1e6)} M parameters"),
        ("Data", f"{run.recipe.data.source}, {summary.num_train_images:,} training images"),
        ("Length", length),
        ("Learning rate", f"{summary.learning_rate:g}"),
        ("Time", format_hours(summary.device_hours, summary.device)),
    ]
    if summary.test_top5 is not None and shows_top5(run.num_classes):
        facts.append(("Test top-5", format_short_percent(summary.test_top5)))
    elif summary.test_loss is not None:
        facts.append(("Test loss", f"{summary.test_loss:.3f}"))
    return facts


def build_curve_section(run: FinishedRun, point: TestPoint | None) -> list[Section]:
    """Build the section of learning curves; none if nothing was recorded."""
    panels = [thin_panel(panel) for panel in build_panels(run.records, run.names, point)]
    if not panels:
        return []
    rates = [thin_panel(panel) for panel in build_rate_panels(run.records)]
    ends = describe_ends(run)
    chart = Chart(
        lambda figure: draw_panels(figure, panels, run.names, point),
        alt=f"Learning curves. {ends}",
        look=f"Look at the distance between training and {'validation' if run.names.evaluation else 'the test'}.",
        caption="Training is measured on augmented batches while the weights change, validation on whole images in between."
        + (" The diamond is the test, made once, with its 95 % interval." if point is not None else ""),
        height=2.9,
        narrow_height=2.5 * len(panels),
    )
    parts: list[Part] = [chart]
    if rates:
        rate_chart = Chart(lambda figure: draw_panels(figure, rates, run.names), alt="Learning rate by step.", height=2.2)
        parts.append(Details("Learning rate", [rate_chart]))
    return [Section(describe_training(run), "Learning curves", ends, parts)]


def describe_training(run: FinishedRun) -> str:
    """Return the course of the training loss as the title of the curves."""
    losses = [record["loss"] for record in run.records if record.get("loss") is not None]
    if len(losses) < 2:
        return f"Training took {run.summary.steps:,} steps"
    verb = "fell" if losses[-1] < losses[0] else "rose"
    return f"The training loss {verb} from {losses[0]:.3g} to {losses[-1]:.3g}"


def describe_ends(run: FinishedRun) -> str:
    """Return the last value of each curve as a sentence."""
    last = find_last_values(run.records)
    labels = {**{name: f"training {name}" for name in run.names.training}, **run.names.evaluation}
    words = [
        f"{label} {format_short_percent(last[name])}"
        for name, label in labels.items()
        if name in last and not name.endswith("loss") and name not in run.names.hidden
    ]
    return f"At the end: {', '.join(words)}." if words else ""


def build_cost_section(run: FinishedRun) -> Section:
    """Build the section of time, compute and memory."""
    summary = run.summary
    speeds = [record["images_per_s"] for record in run.records if record.get("images_per_s") is not None]
    waits = [record["waited"] for record in run.records if record.get("waited") is not None]
    rows = [
        ("time of all attempts, evaluation included", format_hours(summary.device_hours, summary.device)),
        ("images seen in training", f"{summary.images:,}"),
        ("training compute", f"{format_number(summary.exaflops)} exaFLOPs"),
    ]
    if speeds:
        rows.append(("training speed, median", f"{format_number(sorted(speeds)[len(speeds) // 2])} images a second"))
    if waits:
        rows.append(("time spent waiting for data", format_short_percent(sum(waits) / len(waits), 0)))
    memory = measure_peak_memory(summary.device)
    if memory is not None and run.result is not None:  # else this process only wrote the page
        rows.append(("peak memory of the main process", format_bytes(memory)))
    text = "Compute is counted as in table 6 of the paper: forward and backward passes over all training images."
    title = f"It took {format_hours(summary.device_hours, summary.device)}"
    return Section(title, "Time and memory", text, [Table(("", "value"), rows)])


def build_command_section(run: FinishedRun) -> Section:
    """Build the section of commands that repeat the run and go on from it."""
    folder, data = run.folder.path, run.recipe.data.source
    commands = [join_command("vitrine", "train", run.folder.recipe, "--out", f"{folder}-again")]
    if run.num_classes > 0 and run.summary.test_top1 is not None:
        out = f"{folder}-evaluation"
        commands.append(join_command("vitrine", "evaluate", run.folder.model, data, "--out", out))
    image = None if run.result is None else find_inspected_image(run.result)
    if image is not None:
        commands.append(join_command("vitrine", "inspect", run.folder.model, image, "--out", f"{folder}-inspection"))
    parts: list[Part] = [Commands(commands)]
    if run.result is None and run.summary.test_top1 is not None:
        parts.append(Note("The predictions of single images were not kept: evaluate the model to see classes and mistakes."))
    text = "The first command trains the same model again. The model is a normal checkpoint, which every command takes."
    return Section("Run it again, or go on from here", "Commands", text, parts)


def find_inspected_image(test: EvaluationResult) -> Path | None:
    """Return the file of the surest mistake, or else of the first image; None if it is not a file."""
    mistakes = find_mistakes(test.predictions, 1)
    return test.source.image_path(int(mistakes.index[0]) if len(mistakes) else 0)


def build_test_point(run: FinishedRun) -> TestPoint | None:
    """Return the result on the test images as a point of the curves; None if there was no test."""
    summary = run.summary
    if summary.test_top1 is None or not summary.num_test_images:
        return None
    accuracy = wilson_interval(summary.test_top1, summary.num_test_images)
    assert accuracy.low is not None
    assert accuracy.high is not None
    return TestPoint(run.tested_step, accuracy.value, accuracy.low, accuracy.high, summary.test_loss)


def find_last_values(records: list[CurveRecord]) -> dict[str, float]:
    """Return the last value of each metric; values that were not finite are left out."""
    last: dict[str, float] = {}
    for record in records:
        last.update({name: value for name, value in record.items() if value is not None and math.isfinite(value)})
    return last


def count_images(run: FinishedRun, split: str | None) -> int:
    """Return the number of images of a split of the run; 0 if it is not known."""
    fingerprint = None if run.data is None or split is None else run.data.splits.get(split)
    return 0 if fingerprint is None else sum(fingerprint.class_counts)


def name_split(split: str | None) -> str:
    return (split or "").replace("_", " ")


def format_hours(hours: float, device: str) -> str:
    """Format a time of computing, e.g. 41 s, 12.3 min or 5.1 h, with its device."""
    seconds = 3600 * hours
    time = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min" if hours < 2 else f"{hours:.1f} h"
    return f"{time} on {device}"


def measure_peak_memory(device: str) -> int | None:
    """Return the most memory that this process has used on a device, in bytes; None where it is not known."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    if device != "cpu" or sys.platform not in ("linux", "darwin"):
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak

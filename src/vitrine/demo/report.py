"""The demo's results: a table for the terminal, and one HTML page with everything on it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.core.console import format_number
from vitrine.core.figures import HYBRID, RESNET, VIT
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Chart
from vitrine.core.page_parts import Commands, Interval, Ladder, Part, Row, Rung, Table, format_short_percent
from vitrine.demo.plan import Plan, StepResult, name_data
from vitrine.inspection.inspect_model import Inspection
from vitrine.inspection.page import build_distance_section, build_position_section, build_rollout_section
from vitrine.training.metrics_log import label_ends, read_records, thin_curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS = ("step", "accuracy", "95 % interval", "seconds", "exaFLOPs", "parameters", "MMACs per image")
MEANINGS = {
    "pretrain": "a ViT trained from scratch on the orientation of generated shapes",
    "transfer": "the pre-trained ViT, fine-tuned on the data",
    "few-shot": "a linear classifier on features of the pre-trained ViT",
    "scratch": "the same ViT, trained on the data from scratch",
    "resnet": "a ResNet of similar cost, trained from scratch",
    "hybrid": "a small ResNet followed by a ViT, of similar cost, trained from scratch",
    "inspect": "figures of the transferred ViT",
}
# A family keeps its colour; dotted lines are of models that start from scratch.
COLOURS = {"pretrain": VIT, "transfer": VIT, "scratch": VIT, "resnet": RESNET, "hybrid": HYBRID}
FROM_SCRATCH = ("scratch", "resnet", "hybrid")


def format_rows(results: Sequence[StepResult]) -> list[tuple[str, ...]]:
    """Return a row of the results table for each step, in the order of COLUMNS."""
    return [
        (
            result.key,
            *format_accuracy(result),
            f"{result.seconds:.1f}",
            "" if result.exaflops is None else format_number(result.exaflops),
            "" if result.num_parameters is None else f"{result.num_parameters:,}",
            "" if result.macs is None else format_number(result.macs / 1e6),
        )
        for result in results
    ]


def format_accuracy(result: StepResult) -> tuple[str, str]:
    """Return the accuracy of a step and its interval; empty if nothing was tested."""
    accuracy = result.accuracy
    if accuracy is None or accuracy.low is None or accuracy.high is None:
        return "", ""
    return f"{100 * accuracy.value:.2f} %", f"{100 * accuracy.low:.2f} .. {100 * accuracy.high:.2f} %"


def write_demo_report(plan: Plan, results: Sequence[StepResult], inspection: Inspection) -> Path:
    """Write report.html; return its path."""
    path = plan.config.out / "report.html"
    tested = [result for result in results if result.accuracy is not None and result.key != "pretrain"]
    images = "test images" if plan.has_test else "images held out of training"
    start = "shapes" if plan.config.model is None else Path(plan.config.model).name
    lede = (
        f"A Vision Transformer, from {start} to {name_data(plan.config)}. All models learned from the same "
        f"{len(plan.train):,} images of {len(plan.train.class_names)} classes, and were tested once on {len(plan.test):,} "
        f"{images}; lines are 95 % intervals."
    )
    page = Page(
        kind="Demo",
        title=describe_comparison(tested),
        lede=lede,
        answer=build_ladder(tested),
        sections=[
            *describe_curves(plan, results),
            build_rollout_section(inspection, path),
            *([] if inspection.attention is None else [build_distance_section(inspection.attention.distances)]),
            *describe_positions(plan, inspection),
            describe_costs(results),
            describe_commands(results),
        ],
        remarks=[
            f"seed {plan.config.seed}",
            f"{sum(result.seconds for result in results):.0f} seconds in total",
            "each step has a folder beside this page, with a report of its own if it trained",
        ],
    )
    write_page(path, page)
    return path


def describe_comparison(results: Sequence[StepResult]) -> str:
    """Return what pre-training brought as a sentence, decided only if the intervals are apart."""
    accuracies = {result.key: result.accuracy for result in results}
    transfer, scratch = accuracies.get("transfer"), accuracies.get("scratch")
    if transfer is None or scratch is None:
        return "A Vision Transformer, step by step"
    values = f"{format_short_percent(transfer.value)} with pre-training, {format_short_percent(scratch.value)} without"
    ends = (transfer.low, transfer.high, scratch.low, scratch.high)
    low, high, other_low, other_high = (end if end is not None else math.nan for end in ends)
    if low > other_high:
        return f"Pre-training helped: {values}"
    return f"Pre-training did harm: {values}" if high < other_low else f"Pre-training did not surely help: {values}"


def build_ladder(results: Sequence[StepResult]) -> Ladder:
    """Return the accuracies of all models on one axis."""
    rungs = [
        Rung(
            f"{result.seconds:.0f} s",
            result.key,
            MEANINGS[result.key],
            Interval(result.accuracy.value, result.accuracy.low, result.accuracy.high),
            is_kept=result.key == "transfer",
        )
        for result in results
        if result.accuracy is not None
    ]
    return Ladder(rungs)


def describe_curves(plan: Plan, results: Sequence[StepResult]) -> list[Section]:
    """Build the section with the training losses."""
    files = {result.key: plan.config.out / result.key / "metrics.jsonl" for result in results}
    records = {key: read_records(file) for key, file in files.items() if file.is_file()}
    parts: list[Part] = []
    for name, keys in (("pre-training", {"pretrain"}), ("training", set(records) - {"pretrain"})):
        curves = {key: values for key, values in records.items() if key in keys}
        if curves:
            parts.append(build_loss_chart(curves, f"Loss by step, {name}"))
    caption = "Loss on the training images by step"
    if "pretrain" in records:
        caption += ": first the pre-training on shapes, then the runs on the data"
    text = f"{caption}. A low loss on so few images does not mean a high accuracy on others."
    return [Section("How the training losses fell", "Training", text, parts)] if parts else []


def build_loss_chart(curves: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> Chart:
    """Return the figure of the training losses of several runs."""
    losses = {key: [record["loss"] for record in records if record.get("loss") is not None] for key, records in curves.items()}
    words = ", ".join(f"{key} {values[-1]:.3g}" for key, values in losses.items() if values)
    return Chart(lambda figure: draw_losses(figure, curves, title), alt=f"{title}; at the end: {words}.", height=2.8)


def draw_losses(figure: "Figure", curves: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> None:
    """Draw the training loss of several runs from the records of their metrics.jsonl, labelled at their ends."""
    panel = figure.add_subplot()
    ends = []
    for key, records in curves.items():
        points = [(float(record["step"]), record["loss"]) for record in records if record.get("loss") is not None]
        if not points:
            continue
        steps, losses = thin_curve([step for step, _ in points], [loss for _, loss in points])
        style: dict[str, Any] = {"linestyle": ":" if key in FROM_SCRATCH else "-", "marker": "o" if len(steps) == 1 else ""}
        panel.plot(steps, losses, color=COLOURS[key], label=key, **style)
        ends.append((losses[-1], key, COLOURS[key]))
    panel.set_title(title)
    panel.set_xlabel("step")
    panel.set_ylim(bottom=0.0)
    label_ends(panel, ends)


def describe_positions(plan: Plan, inspection: Inspection) -> list[Section]:
    """Build the section of position embeddings, which the demo's own model has at a higher resolution than it learned them."""
    if not inspection.similarities:
        return []
    section = build_position_section(inspection.similarities)
    learned = "The embeddings were learned on fewer patches, and interpolated to the higher resolution."
    return [section if plan.config.model is not None else replace(section, text=f"{section.text} {learned}")]


def describe_costs(results: Sequence[StepResult]) -> Section:
    """Build the section with time, compute and size of each step."""
    caption = (
        "Seconds are of this machine, with evaluation and without the start of the program. exaFLOPs are counted like in table "
        "6 of the paper: forward and backward passes over all training images; few-shot only needs forward passes. MMACs are "
        f"millions of multiply-accumulates per image{compare_costs(results)}."
    )
    total = sum(result.seconds for result in results)
    return Section(f"All steps took {total:.0f} seconds", "Cost", caption, [Table(COLUMNS, format_rows(results))])


def compare_costs(results: Sequence[StepResult]) -> str:
    """Return the cost of ResNet and hybrid relative to the transferred ViT, as the end of a sentence."""
    macs = {result.key: result.macs for result in results if result.macs}
    rivals = [(name, macs[key]) for key, name in (("resnet", "the ResNet"), ("hybrid", "the hybrid")) if key in macs]
    if "transfer" not in macs or not rivals:
        return ""
    fractions = " and ".join(f"{name} has {100 * count / macs['transfer']:.0f} %" for name, count in rivals)
    return f": {fractions} of the ViT's"


def describe_commands(results: Sequence[StepResult]) -> Section:
    """Build the section with the command of each step."""
    caption = "Use them with your own data and checkpoint; the last one runs the whole demo on both."
    rows: list[Part] = [Row(f"{result.key}: {MEANINGS[result.key]}", [Commands([result.command])]) for result in results]
    own = Row("the whole demo on your own images and checkpoint", [Commands(["vitrine demo --data DATA --model MODEL"])])
    return Section("Each step is a command", "Commands", caption, [*rows, own])

"""The demo's results: a table for the terminal, figures, and one HTML page with everything on it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.console import format_number
from vitrine.core.html_report import Commands, Figure, Part, Section, Table, save_figure, write_html_report
from vitrine.demo.plan import Plan, StepResult, name_data
from vitrine.training.metrics_log import read_records

if TYPE_CHECKING:
    from matplotlib import figure as matplotlib_figure
    from matplotlib.axes import Axes

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
COLOURS = {
    "pretrain": "#5b3758",
    "transfer": "#d1495b",
    "few-shot": "#edae49",
    "scratch": "#00798c",
    "resnet": "#5aa469",
    "hybrid": "#2e5fa3",
}
WIDTH, FONT_SIZE = 6.4, 13  # readable on a phone


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


def write_demo_report(plan: Plan, results: Sequence[StepResult]) -> Path:
    """Write report.html, and its figures beside it; return its path."""
    sections = [
        describe_accuracies(plan, results),
        describe_curves(plan, results),
        *describe_inspection(plan),
        describe_costs(results),
        describe_commands(results),
    ]
    path = plan.config.out / "report.html"
    start = "shapes" if plan.config.model is None else Path(plan.config.model).name
    subtitle = (
        f"{len(plan.train):,} training images of {len(plan.train.class_names)} classes, {len(plan.test):,} test images; "
        f"seed {plan.config.seed}; {sum(result.seconds for result in results):.0f} seconds in total."
    )
    write_html_report(path, f"A Vision Transformer, from {start} to {name_data(plan.config)}", subtitle, sections)
    return path


def describe_accuracies(plan: Plan, results: Sequence[StepResult]) -> Section:
    """Build the section that compares the accuracies on the data."""
    tested = [result for result in results if result.accuracy is not None and result.key != "pretrain"]
    path = plan.config.out / "accuracies.png"
    draw_accuracies(tested, path)
    images = "test images" if plan.has_test else "images held out of training"
    caption = (
        f"Top-1 accuracy on {len(plan.test):,} {images}, each evaluated once. Bars are 95 % intervals: they show how much the "
        "accuracy could differ on another test set of this size. If two bars overlap widely, this test does not tell which "
        f"model is better. All models learned from the same {len(plan.train):,} images, and those that were trained took the "
        "same number of steps."
    )
    rows = [(result.key, *format_accuracy(result), MEANINGS[result.key]) for result in tested]
    table = Table(("step", "accuracy", "95 % interval", "description"), rows)
    return Section("Accuracy", caption, [Figure(path, "accuracies"), table])


def describe_curves(plan: Plan, results: Sequence[StepResult]) -> Section:
    """Build the section with the training losses."""
    out = plan.config.out
    records = {
        result.key: read_records(out / result.key / "metrics.jsonl")
        for result in results
        if (out / result.key / "metrics.jsonl").is_file()
    }
    parts: list[Part] = []
    for name, keys in (("pretraining", {"pretrain"}), ("training", set(records) - {"pretrain"})):
        curves = {key: values for key, values in records.items() if key in keys}
        if curves:
            draw_curves(curves, out / f"{name}.png")
            parts.append(Figure(out / f"{name}.png", f"{name}: loss by step"))
    caption = "Loss on the training images by step"
    if "pretrain" in records:
        caption += ": first the pre-training on shapes, then the runs on the data"
    return Section("Training", f"{caption}. A low loss on so few images does not mean a high accuracy on others.", parts)


def describe_inspection(plan: Plan) -> list[Section]:
    """Build the sections with the figures of `vitrine inspect`."""
    folder = plan.config.out / "inspect"
    rollouts = (
        "Left: the image. Middle: the image, brighter where the transferred ViT attends to. Right: the attention alone. It "
        "is attention rollout: the attention of all layers, multiplied (appendix D.8 of the paper)."
    )
    distances = (
        "Mean distance in pixels between the patches that each attention head connects, by layer (figure 7 of the paper). "
        "Heads near zero attend to neighbours, like convolutions."
    )
    positions = (
        "Similarity of position embeddings: each tile belongs to one patch, and shows the similarity of its embedding to all "
        "others. The model was not told which patches are neighbours."
    )
    if plan.config.model is None:
        positions += " The embeddings were learned on fewer patches, and interpolated to the higher resolution."
    sections = (
        ("Attention", rollouts, [folder / "rollout.png"]),
        ("Attention distance", distances, [plan.config.out / "distances.png"]),
        ("Position embeddings", positions, sorted(folder.glob("positions-*.png"))),
    )
    return [Section(title, caption, [Figure(path) for path in paths]) for title, caption, paths in sections if paths]


def describe_costs(results: Sequence[StepResult]) -> Section:
    """Build the section with time, compute and size of each step."""
    caption = (
        "Seconds are of this machine, with evaluation and without the start of the program. exaFLOPs are counted like in table "
        "6 of the paper: forward and backward passes over all training images; few-shot only needs forward passes. MMACs are "
        f"millions of multiply-accumulates per image{compare_costs(results)}."
    )
    return Section("Cost", caption, [Table(COLUMNS, format_rows(results))])


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
    caption = "Each step is a command. Use them with your own data and checkpoint; the last line runs the whole demo on both."
    lines: list[str] = []
    for result in results:
        lines += [f"# {result.key}: {MEANINGS[result.key]}", result.command, ""]
    lines += ["# the whole demo on your own images and checkpoint", "vitrine demo --data DATA --model MODEL"]
    return Section("Commands", caption, [Commands(lines)])


def draw_accuracies(results: Sequence[StepResult], path: Path) -> None:
    """Draw a dot and an interval for each step that was tested, from top to bottom."""
    tested = [(result, result.accuracy) for result in results if result.accuracy is not None]
    figure, panel = make_panel(0.5 * len(tested) + 1.2)
    for row, (result, accuracy) in enumerate(tested):
        assert accuracy.low is not None
        assert accuracy.high is not None
        colour = COLOURS[result.key]
        panel.plot([100 * accuracy.low, 100 * accuracy.high], [row, row], color=colour, linewidth=3, alpha=0.45)
        panel.plot([100 * accuracy.value], [row], "o", color=colour, markersize=9)
    panel.set_yticks(range(len(tested)), [result.key for result, _ in tested])
    panel.set_ylim(len(tested) - 0.5, -0.5)
    panel.set_xlabel("accuracy (%)", fontsize=FONT_SIZE)
    save_figure(figure, path)


def draw_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw the training loss of several runs from the records of their metrics.jsonl."""
    figure, panel = make_panel(3.9)
    for key, records in curves.items():
        points = [(record["step"], record["loss"]) for record in records if record.get("loss") is not None]
        style = {"color": COLOURS[key], "linewidth": 2.0, "marker": "o" if len(points) == 1 else ""}
        panel.plot([step for step, _ in points], [loss for _, loss in points], label=key, **style)
    panel.set_xlabel("step", fontsize=FONT_SIZE)
    panel.set_ylabel("training loss", fontsize=FONT_SIZE)
    panel.set_ylim(bottom=0.0)
    panel.legend(frameon=False, fontsize=FONT_SIZE)
    save_figure(figure, path)


def draw_head_distances(distances: np.ndarray, path: Path) -> None:
    """Draw the attention distances of all heads (layers, heads), in pixels, a dot for each."""
    figure, panel = make_panel(3.6)
    for head in distances.T:
        panel.plot(range(len(head)), head, "o", markersize=8, alpha=0.8)
    panel.set_xticks(range(len(distances)))
    panel.set_xlabel("layer", fontsize=FONT_SIZE)
    panel.set_ylabel("mean distance (pixels)", fontsize=FONT_SIZE)
    panel.set_ylim(0.0, 1.1 * distances.max())  # room for the highest dot
    save_figure(figure, path)


def make_panel(height: float) -> "tuple[matplotlib_figure.Figure, Axes]":
    """Make an empty figure of the report's width and style."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=120, layout="constrained")
    panel = figure.add_subplot()
    panel.tick_params(labelsize=FONT_SIZE)
    panel.grid(color="#eeeeee")
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel

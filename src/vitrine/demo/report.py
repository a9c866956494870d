"""Table, HTML report, figures.

Figures of the demo's report: accuracies with their intervals, curves, attention distances. Large letters, for phones.
The report of the demo: a table for the terminal, the same as JSON, and one page with everything on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrine.core.console import format_figure
from vitrine.core.html_report import Commands, Figure, Part, Section, Table, save_figure, write_html_report
from vitrine.demo.plan import Plan, StepResult, name_data
from vitrine.training.metrics_log import read_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitrine.demo.plan import StepResult

COLOURS = {
    "pretrain": "#5b3758",
    "transfer": "#d1495b",
    "few-shot": "#edae49",
    "scratch": "#00798c",
    "resnet": "#5aa469",
    "hybrid": "#2e5fa3",
}
WIDTH, LETTERS = 6.4, 13


def draw_accuracies(results: "Sequence[StepResult]", path: Path) -> None:
    """A dot for each, from top to bottom, on the interval that it may lie in."""
    tested = [(result, result.accuracy) for result in results if result.accuracy is not None]
    figure, panel = make_panel(0.5 * len(tested) + 1.2)
    for place, (result, accuracy) in enumerate(tested):
        assert accuracy.low is not None
        assert accuracy.high is not None
        colour = COLOURS[result.key]
        panel.plot([100 * accuracy.low, 100 * accuracy.high], [place, place], color=colour, linewidth=3, alpha=0.45)
        panel.plot([100 * accuracy.value], [place], "o", color=colour, markersize=9)
    panel.set_yticks(range(len(tested)), [result.key for result, _ in tested])
    panel.set_ylim(len(tested) - 0.5, -0.5)
    panel.set_xlabel("accuracy (%)", fontsize=LETTERS)
    save_figure(figure, path)


def draw_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """The training loss of several runs, by the records of each."""
    figure, panel = make_panel(3.9)
    for key, records in curves.items():
        points = [(record["step"], record["loss"]) for record in records if record.get("loss") is not None]
        style = {"color": COLOURS[key], "linewidth": 2.0, "marker": "o" if len(points) == 1 else ""}
        panel.plot([step for step, _ in points], [loss for _, loss in points], label=key, **style)
    panel.set_xlabel("step", fontsize=LETTERS)
    panel.set_ylabel("training loss", fontsize=LETTERS)
    panel.set_ylim(bottom=0.0)
    panel.legend(frameon=False, fontsize=LETTERS)
    save_figure(figure, path)


def draw_distances(distances: np.ndarray, path: Path) -> None:
    """A dot for each head, by layer: (layers, heads), in pixels."""
    figure, panel = make_panel(3.6)
    for head in distances.T:
        panel.plot(range(len(head)), head, "o", markersize=8, alpha=0.8)
    panel.set_xticks(range(len(distances)))
    panel.set_xlabel("layer", fontsize=LETTERS)
    panel.set_ylabel("mean distance (pixels)", fontsize=LETTERS)
    panel.set_ylim(0.0, 1.1 * distances.max())  # so that no dot is cut
    save_figure(figure, path)


def make_panel(height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=120, layout="constrained")
    panel = figure.add_subplot()
    panel.tick_params(labelsize=LETTERS)
    panel.grid(color="#eeeeee")
    panel.spines[["top", "right"]].set_visible(False)
    return figure, panel


COLUMNS = ("step", "accuracy", "95 % interval", "seconds", "exaFLOPs", "parameters", "MMACs an image")
# Of each step, what is to be known about it.
MEANINGS = {
    "pretrain": "which way generated shapes point, learned by a ViT from fresh weights",
    "transfer": "the pre-trained ViT, fine-tuned to the images",
    "few-shot": "a linear classifier on the features of the pre-trained ViT",
    "scratch": "the same ViT on the same images, from fresh weights",
    "resnet": "a ResNet of like cost, from fresh weights",
    "hybrid": "a ViT behind a small ResNet, of like cost, from fresh weights",
    "inspect": "figures of the transferred ViT",
}


def format_rows(results: Sequence[StepResult]) -> list[tuple[str, ...]]:
    """A row for each step, in the order of COLUMNS."""
    return [
        (
            result.key,
            *format_accuracy(result),
            f"{result.seconds:.1f}",
            "" if result.exaflops is None else format_figure(result.exaflops),
            "" if result.num_parameters is None else f"{result.num_parameters:,}",
            "" if result.macs is None else format_figure(result.macs / 1e6),
        )
        for result in results
    ]


def format_accuracy(result: StepResult) -> tuple[str, str]:
    found = result.accuracy
    if found is None or found.low is None or found.high is None:
        return "", ""
    return f"{100 * found.value:.2f} %", f"{100 * found.low:.2f} .. {100 * found.high:.2f} %"


def list_results(plan: Plan, results: Sequence[StepResult]) -> dict[str, Any]:
    """As JSON."""
    images = {"data": plan.config.data, "num_train_images": len(plan.train), "num_test_images": len(plan.test)}
    return {**images, "model": plan.checkpoint, "seed": plan.config.seed, "results": [asdict(result) for result in results]}


def write_report(plan: Plan, results: Sequence[StepResult]) -> Path:
    """`out`/report.html, with its figures beside it as well; returns its path."""
    sections = [
        describe_accuracies(plan, results),
        describe_curves(plan, results),
        *describe_inside(plan),
        describe_costs(plan, results),
        describe_commands(plan, results),
    ]
    page = plan.config.out / "report.html"
    seconds = sum(result.seconds for result in results)
    facts = (
        f"{len(plan.train):,} images of {len(plan.train.class_names)} classes to learn from, {len(plan.test):,} to test on; "
        f"seed {plan.config.seed}; {seconds:.0f} seconds in all."
    )
    write_html_report(page, f"A Vision Transformer, from {name_start(plan)} to {name_data(plan.config)}", facts, sections)
    return page


def name_start(plan: Plan) -> str:
    return "shapes" if plan.config.model is None else Path(plan.config.model).name


def describe_accuracies(plan: Plan, results: Sequence[StepResult]) -> Section:
    tested = [result for result in results if result.accuracy is not None and result.key != "pretrain"]
    draw_accuracies(tested, plan.config.out / "accuracies.png")
    where = "test images" if plan.has_test else "images that were held out of training"
    caption = (
        f"First answers that are right, on {len(plan.test):,} {where}, which were looked at once. The bar is where the "
        "figure would lie for 95 of 100 sets of as many images; where bars overlap widely, who is better is not decided. All "
        f"learned from the same {len(plan.train):,} images, and those that were trained for as many steps."
    )
    rows = [(result.key, *format_accuracy(result), MEANINGS[result.key]) for result in tested]
    table = Table(("step", "accuracy", "95 % interval", "what it is"), rows)
    return Section("How good is each?", caption, [Figure(plan.config.out / "accuracies.png", "accuracies"), table])


def describe_curves(plan: Plan, results: Sequence[StepResult]) -> Section:
    out = plan.config.out
    records = {
        result.key: read_records(out / result.key / "metrics.jsonl")
        for result in results
        if (out / result.key / "metrics.jsonl").is_file()
    }
    parts: list[Part] = []
    for name, keys in (("pretraining", {"pretrain"}), ("training", set(records) - {"pretrain"})):
        curves = {key: found for key, found in records.items() if key in keys}
        if curves:
            draw_curves(curves, out / f"{name}.png")
            parts.append(Figure(out / f"{name}.png", f"{name}: loss by step"))
    caption = "The loss on the training images, step by step"
    if "pretrain" in records:
        caption += ": first of the pre-training on shapes, then of the runs on the data"
    return Section("How did they learn?", f"{caption}. A low loss on so few images is no sign of being good on others.", parts)


def describe_inside(plan: Plan) -> list[Section]:
    """The figures that the inspection left."""
    inside = plan.config.out / "inspect"
    rollouts = (
        "On the left an image, in the middle the same, bright where the output of the transferred ViT comes from, by the "
        "attention of all its layers multiplied (appendix D.8 of the paper); on the right that by itself."
    )
    distances = (
        "How far apart, in pixels, the patches are that each head connects, layer by layer (figure 7 of the paper). Heads near "
        "zero look at neighbours, as convolutions do."
    )
    positions = (
        "How alike the position embeddings are: a tile for each patch, at its place, with its likeness to all the others. "
        "Nobody told the model which patches are neighbours."
    )
    if plan.config.model is None:
        positions += " They were learned on fewer patches, and interpolated to the higher resolution."
    found = (
        ("What does it look at?", rollouts, [inside / "rollout.png"]),
        ("How far does it look?", distances, [plan.config.out / "distances.png"]),
        ("Does it know where patches are?", positions, sorted(inside.glob("positions-*.png"))),
    )
    return [Section(title, caption, [Figure(path) for path in paths]) for title, caption, paths in found if paths]


def describe_costs(plan: Plan, results: Sequence[StepResult]) -> Section:
    caption = (
        "Seconds are of this machine, with the tests and without the start of the program. exaFLOPs are counted as in table 6 "
        "of the paper, forwards and backwards over all images seen; few-shot only goes forwards. MMACs are millions of "
        f"multiply-accumulates of one image{compare_costs(results)}."
    )
    return Section("What did it cost?", caption, [Table(COLUMNS, format_rows(results))])


def compare_costs(results: Sequence[StepResult]) -> str:
    """What the rivals cost beside the transferred ViT, as far as it is known."""
    macs = {result.key: result.macs for result in results if result.macs}
    rivals = [(name, macs[key]) for key, name in (("resnet", "the ResNet"), ("hybrid", "the hybrid")) if key in macs]
    if "transfer" not in macs or not rivals:
        return ""
    shares = " and ".join(f"{name} has {100 * found / macs['transfer']:.0f} %" for name, found in rivals)
    return f": {shares} of the ViT's"


def describe_commands(plan: Plan, results: Sequence[StepResult]) -> Section:
    caption = (
        "Each step is a command of its own. Put the path of your data and of your checkpoint in their places, or tell the "
        "whole story of them at once with the last line."
    )
    lines: list[str] = []
    for result in results:
        lines += [f"# {result.key}: {MEANINGS[result.key]}", result.command, ""]
    lines += ["# everything, on your own images and from your own checkpoint", "vitrine demo --data DATA --model MODEL"]
    return Section("How to repeat it", caption, [Commands(lines)])

"""The report of the demo: a table for the terminal, the same as JSON, and one page with everything on it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrine.core.console import format_figure
from vitrine.core.page import Commands, Figure, Part, Section, Table, write_page
from vitrine.demo.pictures import draw_accuracies, draw_curves
from vitrine.demo.plan import Plan, name_data
from vitrine.demo.story import Result
from vitrine.train.metrics_file import read_records

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


def format_rows(results: Sequence[Result]) -> list[tuple[str, ...]]:
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


def format_accuracy(result: Result) -> tuple[str, str]:
    found = result.accuracy
    if found is None or found.low is None or found.high is None:
        return "", ""
    return f"{100 * found.value:.2f} %", f"{100 * found.low:.2f} .. {100 * found.high:.2f} %"


def list_results(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """As JSON."""
    images = {"data": plan.config.data, "num_train_images": len(plan.train), "num_test_images": len(plan.test)}
    return {**images, "model": plan.checkpoint, "seed": plan.config.seed, "results": [asdict(result) for result in results]}


def write_report(plan: Plan, results: Sequence[Result]) -> Path:
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
    write_page(page, f"A Vision Transformer, from {name_start(plan)} to {name_data(plan.config)}", facts, sections)
    return page


def name_start(plan: Plan) -> str:
    return "shapes" if plan.config.model is None else Path(plan.config.model).name


def describe_accuracies(plan: Plan, results: Sequence[Result]) -> Section:
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


def describe_curves(plan: Plan, results: Sequence[Result]) -> Section:
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


def describe_costs(plan: Plan, results: Sequence[Result]) -> Section:
    caption = (
        "Seconds are of this machine, with the tests and without the start of the program. exaFLOPs are counted as in table 6 "
        "of the paper, forwards and backwards over all images seen; few-shot only goes forwards. MMACs are millions of "
        f"multiply-accumulates of one image{compare_costs(results)}."
    )
    return Section("What did it cost?", caption, [Table(COLUMNS, format_rows(results))])


def compare_costs(results: Sequence[Result]) -> str:
    """What the rivals cost beside the transferred ViT, as far as it is known."""
    macs = {result.key: result.macs for result in results if result.macs}
    rivals = [(name, macs[key]) for key, name in (("resnet", "the ResNet"), ("hybrid", "the hybrid")) if key in macs]
    if "transfer" not in macs or not rivals:
        return ""
    shares = " and ".join(f"{name} has {100 * found / macs['transfer']:.0f} %" for name, found in rivals)
    return f": {shares} of the ViT's"


def describe_commands(plan: Plan, results: Sequence[Result]) -> Section:
    caption = (
        "Each step is a command of its own. Put the path of your data and of your checkpoint in their places, or tell the "
        "whole story of them at once with the last line."
    )
    lines: list[str] = []
    for result in results:
        lines += [f"# {result.key}: {MEANINGS[result.key]}", result.command, ""]
    lines += ["# everything, on your own images and from your own checkpoint", "vitrine demo --data DATA --model MODEL"]
    return Section("How to repeat it", caption, [Commands(lines)])

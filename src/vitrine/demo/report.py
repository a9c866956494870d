"""The demo's report: one HTML page with its finding, figures, costs and commands, and the table for the terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from vitrine.core.console import format_number
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Chart
from vitrine.core.page_parts import Commands, Details, Part, Row, Table, format_short_percent
from vitrine.demo.data_size import build_data_size_sections
from vitrine.demo.figures import Line, Records, draw_curves, draw_intervals
from vitrine.demo.finding import describe_finding
from vitrine.demo.plan import FAMILIES, Family, Kind, Plan, name_data
from vitrine.demo.results import StepResult, find_accuracy
from vitrine.evaluation.intervals import Estimate
from vitrine.inspection.inspect_model import Inspection
from vitrine.inspection.page import build_distance_section, build_position_section, build_rollout_section
from vitrine.run.folder import RunFolder
from vitrine.training.metrics_log import read_records

COLUMNS = ("step", "accuracy", "95 % interval", "seconds", "exaFLOPs", "parameters", "MMACs per image")
MEANINGS: dict[Kind, str] = {
    "pretrain": "trained on generated characters",
    "transfer": "pre-trained, then fine-tuned on the data",
    "few-shot": "a linear classifier on features of the pre-trained model",
    "scratch": "trained on the data from scratch",
    "inspect": "figures of the transferred ViT",
}
QUICK = "Made with --quick: fewer steps than the demo usually takes."


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
    page = Page(
        kind="Demo",
        title=describe_finding(results),
        lede=describe_demo(plan),
        answer=build_comparison(results),
        notes=[QUICK] if plan.config.quick else [],
        sections=[
            describe_few_shot(plan, results),
            *describe_curves(plan),
            build_rollout_section(inspection, path),
            *([] if inspection.attention is None else [build_distance_section(inspection.attention.distances)]),
            *describe_positions(plan, inspection),
            *build_data_size_sections(),
            describe_costs(results),
            describe_commands(results),
        ],
        remarks=[
            f"seed {plan.config.seed}",
            f"{sum(result.seconds for result in results):.0f} seconds of computing in total",
            "each run has a folder beside this page",
        ],
    )
    write_page(path, page)
    return path


def describe_demo(plan: Plan) -> str:
    """Return what was done, in the sentences below the title."""
    images = "test images" if plan.has_test else "images held out of training"
    models = "A ViT, a ResNet and a hybrid of like cost"
    first = (
        f"{models} are pre-trained on generated characters, and fine-tuned on {name_data(plan.config)} at {plan.image_size} "
        "pixels; the same models are trained from scratch."
        if plan.config.model is None
        else f"{Path(plan.config.model).name} is fine-tuned on {name_data(plan.config)}; {models[0].lower()}{models[1:]} are "
        "trained from scratch."
    )
    return (
        f"{first} All learn from the same {len(plan.train):,} images of {len(plan.train.class_names)} classes, and are tested "
        f"once on {len(plan.test):,} {images}."
    )


def build_comparison(results: Sequence[StepResult]) -> Chart:
    """Return the figure of the accuracies of all models, pre-trained beside from scratch."""
    kinds: dict[Kind, str] = {"transfer": "pre-trained", "scratch": "from scratch"}
    return build_interval_chart(
        [
            Line(family, label, accuracy, is_scratch=kind == "scratch")
            for family in FAMILIES
            for kind, label in kinds.items()
            if (accuracy := find_accuracy(results, family, kind)) is not None
        ],
        title="Test accuracy",
        look="Look at the distance between the two lines of a model: it is what pre-training brings.",
        caption="Filled and solid: pre-trained; hollow and dotted: from scratch. Lines are 95 % intervals over test images.",
        height=3.6,
    )


def build_interval_chart(lines: Sequence[Line], title: str, look: str, caption: str, height: float) -> Chart:
    """Return a figure of accuracies with their intervals."""
    words = "; ".join(f"{FAMILIES[line.family]} {line.label} {100 * line.accuracy.value:.1f} percent" for line in lines)
    return Chart(
        partial(draw_intervals, lines=lines),
        alt=f"{title}. {words}.",
        look=look,
        caption=caption,
        height=height,
        narrow_height=height,
    )


def describe_few_shot(plan: Plan, results: Sequence[StepResult]) -> Section:
    """Build the section of linear classifiers on frozen features."""
    found: dict[Family, Estimate] = {
        result.family: result.accuracy for result in results if result.kind == "few-shot" and result.accuracy is not None
    }
    best = max(found, key=lambda family: found[family].value)
    text = (
        f"A linear classifier in closed form on the frozen features of each pre-trained model, fitted to the same "
        f"{len(plan.train):,} images at the resolution of the pre-training (section 4.1 of the paper). Nothing of the network "
        "is trained on them."
    )
    chart = build_interval_chart(
        [Line(family, "few-shot", accuracy) for family, accuracy in found.items()],
        title="Few-shot accuracy",
        look="Look at how much the features know before any fine-tuning.",
        caption="Lines are 95 % intervals over test images.",
        height=0.9 + 0.5 * len(found),
    )
    value = format_short_percent(found[best].value)
    return Section(f"Frozen features of the {FAMILIES[best]} give {value}", "Few-shot", text, [chart])


def describe_curves(plan: Plan) -> list[Section]:
    """Build the section with the training curves of all runs."""
    runs: dict[tuple[Family, Kind], Records] = {}
    for step in plan.steps:
        file = RunFolder(plan.config.out / step.key).metrics
        if step.recipe is not None and file.is_file():
            runs[step.family, step.kind] = read_records(file)
    before = {key: records for key, records in runs.items() if key[1] == "pretrain"}
    after = {key: records for key, records in runs.items() if key[1] != "pretrain"}
    parts: list[Part] = []
    if before:
        look, caption = "Look at how early each model learns.", "Every step has fresh images, so this is accuracy on new ones."
        parts.append(build_curves(before, "accuracy", "Accuracy on generated characters", look, caption))
    if after:
        look, caption = "Look at the beginnings.", "A low loss on so few images does not mean a high accuracy on others."
        parts.append(build_curves(after, "loss", f"Loss on {name_data(plan.config)}", look, caption))
    return [Section("How the models learned", "Training", "", parts)] if parts else []


def build_curves(runs: Mapping[tuple[Family, Kind], Records], metric: str, title: str, look: str, caption: str) -> Chart:
    """Return small multiples of a metric by step."""
    ends = {key: [record[metric] for record in records if record.get(metric) is not None] for key, records in runs.items()}
    words = ", ".join(f"{FAMILIES[family]} {kind} {values[-1]:.3g}" for (family, kind), values in ends.items() if values)
    return Chart(
        partial(draw_curves, runs=runs, metric=metric, title=title),
        alt=f"{title} by step; at the end: {words}.",
        look=look,
        caption=caption,
        height=2.6,
        narrow_height=1.7 * len({family for family, _ in runs}),
    )


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
        "Seconds are of one thread on this machine, where several runs may go on at a time, with evaluation and without the "
        "start of processes. exaFLOPs are counted like in table 6 of the paper: forward and backward passes over all training "
        f"images; few-shot only needs forward passes. MMACs are millions of multiply-accumulates{compare_costs(results)}."
    )
    total = sum(result.seconds for result in results)
    return Section(f"All steps took {total:.0f} seconds of one core", "Cost", caption, [Table(COLUMNS, format_rows(results))])


def compare_costs(results: Sequence[StepResult]) -> str:
    """Return the cost of ResNet and hybrid relative to the ViT on the data, as the end of a sentence."""
    macs: dict[Family, int] = {result.family: result.macs for result in results if result.kind == "scratch" and result.macs}
    if "vit" not in macs or len(macs) == 1:
        return ""
    fractions = [f"the {FAMILIES[each]} has {100 * macs[each] / macs['vit']:.0f} %" for each in macs if each != "vit"]
    return f": {' and '.join(fractions)} of the ViT's"


def describe_commands(results: Sequence[StepResult]) -> Section:
    """Build the section with the command of each step, those of ResNet and hybrid folded away."""
    rows: dict[bool, list[Part]] = {True: [], False: []}
    for result in results:
        rows[result.family == "vit"].append(Row(f"{result.key}: {MEANINGS[result.kind]}", [Commands([result.command])]))
    own = Row("the whole demo on your own images and checkpoint", [Commands(["vitrine demo --data DATA --model MODEL"])])
    caption = "Use them with your own data and checkpoint; the last one runs the whole demo on both."
    return Section("Each step is a command", "Commands", caption, [*rows[True], Details("ResNet and hybrid", rows[False]), own])

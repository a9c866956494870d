"""report.html of an evaluation, and the sections that it shares with the report of a run: classes, confusions, mistakes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrine.core.figures import encode_photo, shorten_label
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import ConfusionPairs, Exhibit, Gallery, Pair
from vitrine.core.page_parts import (
    ClassBar,
    ClassBars,
    Commands,
    Details,
    Headline,
    Interval,
    Ladder,
    Link,
    Paragraph,
    Part,
    Rung,
    Subheading,
    Table,
    format_short_percent,
    link_file,
)
from vitrine.data.image import BadImage
from vitrine.data.source import Source
from vitrine.evaluation.classification_report import (
    ClassificationReport,
    Comparison,
    EvaluationResult,
    EvaluationSummary,
    find_mistakes,
    list_confusions,
)
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.multi_label import MultiLabelReport, MultiLabelResult
from vitrine.evaluation.topk import TOP, TopK

NUM_PAIRS = 6
NUM_EXHIBITS, NUM_LISTED = 10, 50  # mistakes with their image, and mistakes in all
NUM_DIFFERENCES = 20


@dataclass(frozen=True, kw_only=True)
class EvaluationContext:
    """What a page says about how an evaluation was made."""

    model: str
    data: str
    split: str | None = None
    against: str | None = None
    command: str | None = None
    seconds: float | None = None
    """Time of the evaluation."""


def write_evaluation_page(evaluation: EvaluationSummary, path: Path, context: EvaluationContext) -> None:
    """Write report.html of an evaluation: accuracy, classes, confusions, mistakes, and the comparison if there is one."""
    result, report = evaluation.result, evaluation.report
    sections = build_result_sections(result, path)
    if evaluation.against is not None and evaluation.comparison is not None:
        sections.insert(0, build_comparison(evaluation, evaluation.comparison, context, path))
    commands = [context.command] if context.command is not None else []
    if commands:
        sections.append(Section("Run it again", "Commands", "The same command gives the same numbers.", [Commands(commands)]))
    page = Page(
        kind="Evaluation",
        title=f"{shorten_label(name_model(context.model))} is right on {count_hits(report):,} of {report.num_images:,} images",
        lede=describe_expectation(report.top1),
        answer=build_headline(report, result.source),
        facts=[("Model", context.model), ("Data", join_words(context.data, context.split)), *list_facts(report, result)][:6],
        sections=sections,
        command=context.command,
        remarks=[*describe_time(report, context.seconds), "numbers in classes.csv beside this page, and with --json"],
    )
    write_page(path, page)


def build_result_sections(result: EvaluationResult, page: Path) -> list[Section]:
    """Build the sections about single predictions: classes, pairs of classes, and the surest mistakes."""
    sections = []
    if len(result.report.classes) > 1:
        sections += [build_class_section(result.report), *build_confusion_section(result)]
    return [*sections, *build_mistake_section(result, page)]


def build_headline(report: ClassificationReport, source: Source) -> Headline:
    """Build the accuracy in large digits, with its interval and the accuracy of guessing."""
    num_classes = len(source.class_names)
    guessing = None if source.labels.has_several else 1 / num_classes
    label = "" if guessing is None else f"{format_short_percent(guessing)} guessing"
    counted = f"{count_hits(report):,} of {report.num_images:,} images right"
    left_out = f"; {report.num_left_out:,} without a label left out" if report.num_left_out else ""
    return Headline(
        value=f"{100 * report.top1.value:.1f}",
        unit="%",
        count=counted + left_out,
        interval=build_interval(report.top1, guessing),
        baseline_label=label,
    )


def list_facts(report: ClassificationReport, result: EvaluationResult) -> list[tuple[str, str]]:
    """List the metrics besides accuracy; top-5 only says something of more than five classes."""
    facts = []
    if shows_top5(len(result.source.class_names)):
        facts.append(("Top-5", format_short_percent(report.top5.value)))
    if report.loss is not None:
        facts.append(("Loss", f"{report.loss.value:.3f}"))
    facts.append(("Calibration error", format_short_percent(report.calibration_error.value)))
    height, width = result.preprocessing.crop
    return [*facts, ("Reads", f"centre crop of {height} x {width} pixels")]


def shows_top5(num_classes: int) -> bool:
    """Return whether top-5 is worth showing: of five classes or fewer it is always 100 %."""
    return num_classes > TOP


def describe_expectation(accuracy: Estimate) -> str:
    """Return the interval as a sentence."""
    if accuracy.low is None or accuracy.high is None:
        return ""
    low, high = round(100 * accuracy.low), round(100 * accuracy.high)
    number = f"{low}" if low == high else f"{low} to {high}"
    return f"Of 100 new images like these, expect {number} right (95 % interval)."


def describe_time(report: ClassificationReport | MultiLabelReport, seconds: float | None) -> list[str]:
    """Return the time of an evaluation and its speed, if known."""
    if not seconds:
        return []
    return [f"{seconds:.0f} s, {report.num_images / seconds:,.0f} images a second"]


def build_class_section(report: ClassificationReport) -> Section:
    """Build the section of classes, the lowest accuracy first."""
    worst = sorted(report.classes, key=lambda each: (each.top1.value, -each.num_images))
    bars = [
        ClassBar(
            each.name,
            round(each.top1.value * each.num_images),
            each.num_images,
            build_interval(each.top1),
            "" if each.mistaken_for is None else f"mostly taken for {shorten_label(each.mistaken_for)}",
        )
        for each in worst
    ]
    text = "The lowest first. The line is the 95 % interval: the accuracy of a class with few images is uncertain."
    return Section(describe_lowest(bars), "Classes", text, [ClassBars(bars)])


def describe_lowest(bars: Sequence[ClassBar]) -> str:
    """Return what the classes with the lowest accuracy, which come first, have in common."""
    lowest, total = bars[0], f"{len(bars):,} classes"
    num_equal = sum(bar.interval.value == lowest.interval.value for bar in bars)
    if num_equal == len(bars):
        return f"All {total} are equally accurate: {format_short_percent(lowest.interval.value, 0)}"
    if num_equal > 1:
        return f"{num_equal:,} of {total} are lowest, at {format_short_percent(lowest.interval.value, 0)}"
    return f"The lowest of {total} is {shorten_label(lowest.name)}: {lowest.num_hits:,} of {lowest.num_images:,}"


def build_confusion_section(result: EvaluationResult) -> list[Section]:
    """Build the section of the pairs of classes that are most often taken for each other; none if there are no mistakes."""
    names = result.source.class_names
    counts = {(label, taken): count for label, taken, count in list_confusions(result.counted, result.source.labels).tolist()}
    both: dict[tuple[int, int], int] = {}
    for (label, taken), count in counts.items():
        if label != taken:
            pair = (min(label, taken), max(label, taken))
            both[pair] = both.get(pair, 0) + count
    most = sorted(both, key=lambda pair: (-both[pair], pair))[:NUM_PAIRS]
    if not most:
        return []
    pairs = []
    for one, other in most:
        # The class with more mistakes comes first, so that the upper arrow has the larger count.
        first, second = (one, other) if counts.get((one, other), 0) >= counts.get((other, one), 0) else (other, one)
        forward, backward = counts.get((first, second), 0), counts.get((second, first), 0)
        photos = [read_photo(result, find_typical(result, label)) for label in (first, second)]
        pairs.append(Pair(names[first], names[second], forward, backward, *photos))
    top, total = pairs[0], sum(both.values())
    text = f"{total:,} mistakes in all. An arrow says how many images of the class at its start were taken for the other one."
    title = f"{shorten_label(top.first)} and {shorten_label(top.second)} are confused most"
    return [Section(title, "Confusions", text, [ConfusionPairs(pairs)])]


def find_typical(result: EvaluationResult, label: int) -> int:
    """Return the image of a class that is right with the highest confidence, or else the first of the class."""
    predictions = result.predictions
    is_right = predictions.hits[:, 0] & (predictions.classes[:, 0] == label)
    if not is_right.any():
        return int(np.flatnonzero(result.source.labels.values == label)[0])
    right = predictions.take(is_right)
    return int(right.index[right.probabilities[:, 0].argmax()])


def build_mistake_section(result: EvaluationResult, page: Path) -> list[Section]:
    """Build the section of the most confident mistakes, with images and links; none if there are no mistakes."""
    mistakes = find_mistakes(result.predictions, NUM_LISTED)
    if len(mistakes) == 0:
        return []
    rows = range(len(mistakes))
    exhibits = [build_exhibit(result, mistakes, row, page) for row in rows[:NUM_EXHIBITS]]
    parts: list[Part] = [Gallery(exhibits)]
    if len(mistakes) > NUM_EXHIBITS:
        listed = [list_mistake(result, mistakes, row, page) for row in rows[NUM_EXHIBITS:]]
        table = Table(("image", "true", "predicted", "confidence"), listed, text_columns=(0, 1, 2))
        parts.append(Details(f"The next {len(listed)}", [table]))
    surest = format_short_percent(float(mistakes.probabilities[0, 0]), 0)
    title = f"The surest mistake is {surest} sure"
    text = "Predicted and true class of the mistakes with the highest confidence. Some may be mistakes of the labels."
    return [Section(title, "Surest mistakes", text, parts)]


def build_exhibit(result: EvaluationResult, mistakes: TopK, row: int, page: Path) -> Exhibit:
    """Build a mistake for the gallery: prediction, label and file, with a link to it."""
    index = int(mistakes.index[row])
    return Exhibit(
        read_photo(result, index),
        title=result.source.class_names[int(mistakes.classes[row, 0])],
        after=f"{format_short_percent(float(mistakes.probabilities[row, 0]), 0)} sure",
        lines=[f"true: {result.name_labels(index)}"],
        name=name_image(result.source, index),
        url=link_image(result.source, index, page),
    )


def list_mistake(result: EvaluationResult, mistakes: TopK, row: int, page: Path) -> Sequence[str | Link]:
    """Return a mistake as a row of a table."""
    index = int(mistakes.index[row])
    predicted = result.source.class_names[int(mistakes.classes[row, 0])]
    confidence = format_short_percent(float(mistakes.probabilities[row, 0]), 0)
    image = Link(name_image(result.source, index), link_image(result.source, index, page))
    return image, result.name_labels(index), predicted, confidence


def build_comparison(evaluation: EvaluationSummary, comparison: Comparison, context: EvaluationContext, page: Path) -> Section:
    """Build the section that compares two models on the same images."""
    assert evaluation.against is not None
    paired, source = comparison.paired, evaluation.result.source
    names = (context.model, context.against or "the other model")
    reports = (evaluation.report, evaluation.against.report)
    rungs = [
        Rung("", name, f"{count_hits(report):,} of {report.num_images:,}", build_interval(report.top1), is_kept=index == 0)
        for index, (name, report) in enumerate(zip(names, reports, strict=True))
    ]
    difference = paired.difference
    low, high = (100 * (end if end is not None else difference.value) for end in (difference.low, difference.high))
    is_decided = low > 0 or high < 0
    better = "first" if difference.value > 0 else "second"
    title = f"The {better} model is better on these images" if is_decided else "This test does not tell which model is better"
    text = (
        f"First minus second: {signed(100 * difference.value)} points, 95 % interval {signed(low)} to {signed(high)}; "
        f"p = {paired.p_value:.2g} (McNemar's exact test). Only the first is right on {paired.only_first:,} images, only the "
        f"second on {paired.only_second:,}."
    )
    parts: list[Part] = [Ladder(rungs)]
    shown = comparison.differences[:NUM_DIFFERENCES]
    if shown:
        paths = {source.name(index): link_image(source, index, page) for index in evaluation.result.predictions.index.tolist()}
        rows = [(Link(each.image, paths.get(each.image)), each.label, each.first, each.second) for each in shown]
        more = len(comparison.differences) - len(shown)
        parts += [Subheading("Images where they differ"), Table(("image", "true", "first", "second"), rows, (0, 1, 2, 3))]
        if more > 0:
            parts.append(Paragraph(f"And {more:,} more, in differences.csv.", is_small=True))
    return Section(title, "Two models", text, parts)


def build_interval(estimate: Estimate, baseline: float | None = None) -> Interval:
    """Return an accuracy for the axis from 0 to 100 %."""
    return Interval(estimate.value, estimate.low, estimate.high, baseline=baseline)


def read_photo(result: EvaluationResult | MultiLabelResult, index: int) -> bytes | None:
    """Return an image as the model sees it, small; None if it cannot be read."""
    try:
        pixels = result.preprocessing.prepare(result.source.read(index)[0].to_pil())  # (C, H, W)
    except BadImage:
        return None
    return encode_photo(pixels.permute(1, 2, 0).numpy())


def name_image(source: Source, index: int) -> str:
    """Return the name of an image; if it is not a file, with its index."""
    name = source.name(index)
    return name if source.image_path(index) is not None or name.endswith(f"[{index}]") else f"{name} (index {index})"


def link_image(source: Source, index: int, page: Path) -> str | None:
    """Return the URL of an image's file in a page; None if it is not a file."""
    path = source.image_path(index)
    return None if path is None else link_file(path, page)


def name_model(model: str) -> str:
    """Return a short name of a model: the last part of its path that says more than `model` or `best`."""
    parts = [part for part in Path(model).parts if Path(part).stem not in ("model", "pytorch_model", "best")]
    return parts[-1] if parts else model


def count_hits(report: ClassificationReport) -> int:
    """Return the number of images that are right."""
    return round(report.top1.value * report.num_images)


def join_words(*words: str | None) -> str:
    return ", ".join(word for word in words if word)


def signed(number: float) -> str:
    """Format a difference with a true minus sign."""
    return f"{number:+.1f}".replace("-", "\u2212")

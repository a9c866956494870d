"""report.html of an evaluation with several labels per image, and the sections that it shares with the report of a fit."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.core.figures import shorten_label
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_images import Exhibit, Gallery
from vitrine.core.page_parts import ClassBar, ClassBars, Commands, Headline, Part, Subheading, format_short_percent
from vitrine.evaluation.evaluation_page import (
    EvaluationContext,
    build_interval,
    describe_time,
    join_words,
    link_image,
    name_image,
    name_model,
    read_photo,
)
from vitrine.evaluation.multi_label import MultiLabelReport, MultiLabelResult

NUM_EXHIBITS = 5  # of wrong labels, and as many of missed ones


def write_multi_label_page(result: MultiLabelResult, path: Path, context: EvaluationContext) -> None:
    """Write report.html of an evaluation: mean average precision, F1, classes, and the surest mistakes."""
    report = result.report
    sections = build_label_sections(result, path)
    if context.command is not None:
        text = "The same command gives the same numbers."
        sections.append(Section("Run it again", "Commands", text, [Commands([context.command])]))
    value = format_short_percent(report.mean_average_precision.value)
    model = shorten_label(name_model(context.model))
    facts = [("Model", context.model), ("Data", join_words(context.data, context.split)), *list_label_facts(result)]
    page = Page(
        kind="Evaluation",
        title=f"{model} reaches a mean average precision of {value} on {report.num_images:,} images",
        lede="100 % would mean that for each class all images with the label are ranked before all others.",
        answer=build_label_headline(report, len(result.source.class_names)),
        facts=facts[:6],
        sections=sections,
        command=context.command,
        remarks=[*describe_time(report, context.seconds), "numbers in classes.csv beside this page, and with --json"],
    )
    write_page(path, page)


def build_label_headline(report: MultiLabelReport, num_classes: int) -> Headline:
    """Build the mean average precision in large digits, with its interval and that of a random order."""
    guessing = float(np.mean([each.num_images / report.num_images for each in report.classes]))
    return Headline(
        value=f"{100 * report.mean_average_precision.value:.1f}",
        unit="%",
        count=f"{report.num_labels:,} labels of {num_classes:,} classes on {report.num_images:,} images",
        interval=build_interval(report.mean_average_precision, guessing),
        baseline_label=f"{format_short_percent(guessing)} guessing",
    )


def list_label_facts(result: MultiLabelResult) -> list[tuple[str, str]]:
    """List the metrics besides mean average precision."""
    report, (height, width) = result.report, result.preprocessing.crop
    metrics = [("Macro F1", report.macro_f1), ("Micro F1", report.micro_f1), ("All labels right", report.exact_match)]
    facts = [(name, format_short_percent(estimate.value)) for name, estimate in metrics]
    return [*facts, ("Reads", f"{height} x {width} pixels")]


def build_label_sections(result: MultiLabelResult, page: Path) -> list[Section]:
    """Build the sections about classes and about the surest mistakes."""
    sections = [build_label_class_section(result.report)] if len(result.report.classes) > 1 else []
    return [*sections, *build_label_mistake_section(result, page)]


def build_label_class_section(report: MultiLabelReport) -> Section:
    """Build the section of classes, the lowest average precision first."""
    worst = sorted(report.classes, key=lambda each: (each.average_precision.value, -each.num_images))
    bars = [
        ClassBar(
            each.name,
            round(each.recall * each.num_images),
            each.num_images,
            build_interval(each.average_precision),
            f"F1 {format_short_percent(each.f1, 0)}, {each.num_images:,} {'image' if each.num_images == 1 else 'images'}",
            is_count=False,
        )
        for each in worst
    ]
    lowest = format_short_percent(worst[0].average_precision.value)
    title = f"The lowest of {len(worst):,} classes is {shorten_label(worst[0].name)}: {lowest}"
    text = "Average precision, the lowest first. The line is the 95 % interval: it is wide for a class with few images."
    return Section(title, "Classes", text, [ClassBars(bars)])


def build_label_mistake_section(result: MultiLabelResult, page: Path) -> list[Section]:
    """Build the section of wrong labels with the highest and missed ones with the lowest probability; none if all is right."""
    wrong = find_extremes(result.predicted & ~result.labels, -result.probabilities)
    missed = find_extremes(~result.predicted & result.labels, result.probabilities)
    parts: list[Part] = []
    for heading, found in (("Wrong labels", wrong), ("Missed labels", missed)):
        if found:
            exhibits = [build_label_exhibit(result, row, label, page) for row, label in found]
            parts += [Subheading(heading), Gallery(exhibits)]
    if not parts:
        return []
    num_wrong, num_missed = int((result.predicted & ~result.labels).sum()), int((~result.predicted & result.labels).sum())
    title = f"{num_wrong:,} labels are wrong and {num_missed:,} are missed"
    text = "The wrong labels that are most likely by the model, and the missed ones that are least likely."
    return [Section(title, "Surest mistakes", text, parts)]


def find_extremes(is_mistake: np.ndarray, scores: np.ndarray) -> Sequence[tuple[int, int]]:
    """Return row and class of the mistakes (N, K) with the lowest scores (N, K), the lowest first."""
    rows, labels = np.nonzero(is_mistake)
    lowest = np.argsort(scores[rows, labels], kind="stable")[:NUM_EXHIBITS]
    return list(zip(rows[lowest].tolist(), labels[lowest].tolist(), strict=True))


def build_label_exhibit(result: MultiLabelResult, row: int, label: int, page: Path) -> Exhibit:
    """Build a mistake for the gallery: the class, its probability, the labels and the file, with a link to it."""
    index = int(result.index[row])
    return Exhibit(
        read_photo(result, index),
        title=result.source.class_names[label],
        after=f"{format_short_percent(float(result.probabilities[row, label]), 0)} likely",
        lines=[f"true: {result.name_labels(row)}"],
        name=name_image(result.source, index),
        url=link_image(result.source, index, page),
    )

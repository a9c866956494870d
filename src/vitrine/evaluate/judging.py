"""A classifier judged on someone's images, two of them compared, and what is written of it for people to look at."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch

from vitrine.core.files import make_folder, write_csv
from vitrine.data.source import Source
from vitrine.evaluate.answers import Answers
from vitrine.evaluate.classes import fit_classes
from vitrine.evaluate.config import AS_USUAL, ReadingConfig
from vitrine.evaluate.measuring import answer_images
from vitrine.evaluate.pictures import draw_confusions, draw_mistakes
from vitrine.evaluate.report import Report, build_report, count_confusions, find_mistakes
from vitrine.evaluate.uncertainty import Paired, compare_paired
from vitrine.formats.checkpoint import Checkpoint

NUM_MISTAKES = 20


@dataclass(frozen=True)
class Judged:
    checkpoint: Checkpoint
    source: Source
    """With labels in the model's numbers."""
    answers: Answers
    report: Report

    def name_answer(self, row: int) -> str:
        return self.source.class_names[int(self.answers.classes[row, 0])]

    def name_labels(self, index: int) -> str:
        return ", ".join(self.source.class_names[label] for label in self.source.labels.list_of(index))


@dataclass(frozen=True)
class Difference:
    """An image that one of two models has right and the other has not."""

    image: str
    label: str
    first: str
    second: str
    right: str
    """first or second."""


def judge(
    checkpoint: Checkpoint,
    source: Source,
    reading: ReadingConfig = AS_USUAL,
    device: torch.device | str = "cpu",
    mapping: Path | None = None,
) -> Judged:
    """`source` has its own classes, which are found among the model's."""
    fitted = fit_classes(source, checkpoint.class_names, checkpoint.model.config.num_classes, mapping)
    answers = answer_images(checkpoint, fitted, reading, device)
    return Judged(checkpoint, fitted, answers, build_report(answers, fitted.labels, fitted.class_names))


def compare(first: Judged, second: Judged) -> tuple[Paired, list[Difference]]:
    """Of two models on the same images, those that have a label for both."""
    rows = [{index: row for row, index in enumerate(judged.answers.index.tolist())} for judged in (first, second)]
    counts = [set(judged.answers.index[judged.answers.counts].tolist()) for judged in (first, second)]
    common = sorted(counts[0] & counts[1])  # of images that are skipped, each model may skip others
    hits = [
        judged.answers.hits[[places[index] for index in common], 0].numpy()
        for judged, places in zip((first, second), rows, strict=True)
    ]
    differences = [
        Difference(
            image=first.source.name(index),
            label=first.name_labels(index),
            first=first.name_answer(rows[0][index]),
            second=second.name_answer(rows[1][index]),
            right="first" if is_right else "second",
        )
        for index, is_right, is_other in zip(common, *hits, strict=True)
        if is_right != is_other
    ]
    return compare_paired(*hits), differences


def write_findings(judged: Judged, out: Path) -> list[str]:
    """The table of classes, the matrix of what is taken for what, and the surest mistakes; returns the names of the files."""
    make_folder(out)
    written = []
    (out / "mistakes.png").unlink(missing_ok=True)  # of a model that made some
    if judged.report.classes:
        rows = [(c.name, c.num_images, c.top1.value, c.top1.low, c.top1.high, c.mistaken_for) for c in judged.report.classes]
        write_csv(out / "classes.csv", ("class", "images", "top1", "low", "high", "mistaken_for"), rows)
        names = judged.source.class_names
        draw_confusions(count_confusions(judged.answers, judged.source.labels, len(names)), names, out / "confusion.png")
        written += ["classes.csv", "confusion.png"]
    mistakes = find_mistakes(judged.answers, NUM_MISTAKES)
    if len(mistakes) > 0:
        draw_sure_mistakes(judged, mistakes, out / "mistakes.png")
        written.append("mistakes.png")
    return written


def draw_sure_mistakes(judged: Judged, mistakes: Answers, path: Path) -> None:
    """As the model saw them."""
    images, titles = [], []
    for row, index in enumerate(mistakes.index.tolist()):
        pixels = judged.checkpoint.preprocessing.prepare(judged.source.read(index)[0].image())  # (C, H, W)
        images.append(pixels.permute(1, 2, 0).numpy())
        answer = judged.source.class_names[int(mistakes.classes[row, 0])]
        titles.append((f"{mistakes.probabilities[row, 0]:.0%} {answer}", judged.name_labels(index)))
    draw_mistakes(images, titles, path)


def write_differences(differences: Sequence[Difference], path: Path) -> None:
    write_csv(path, [field.name for field in fields(Difference)], map(astuple, differences))

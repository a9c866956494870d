"""`data check`: issues and their HTML report.

What is wrong with a data set before anything is trained on it: files, copies, labels, balance, sizes.
What a check found, with thumbnails, on one page.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from vitrine.core.console import join_names
from vitrine.core.html_report import Figure, Gallery, Part, Section, Table, write_html_report
from vitrine.data.image import BadImage
from vitrine.data.open_data import DatasetHandle
from vitrine.data.quality.duplicates import DuplicatePairs, find_duplicates_between, find_duplicates_within
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats
from vitrine.data.source import Source

if TYPE_CHECKING:
    from vitrine.core.runtime import Runtime

FindingKind = Literal[
    "unreadable",
    "two labels",
    "in two splits",
    "exact copies",
    "near copies",
    "no training images",
    "suspicious",
    "label suspect",
]
KINDS: tuple[FindingKind, ...] = get_args(FindingKind)
WORTH_A_LOOK: tuple[FindingKind, ...] = ("suspicious", "label suspect")  # the others are wrong, and have to be mended

JOINED = ("train800val200",)  # VTAB's, of train and val
KEPT_FIRST = ("test", "val", "train")  # of copies in several splits: it is training that must not have seen the others
SMALLEST_SIDE = 16  # pixels, where others are four times as large
ALMOST_ONE = 0.9999  # likeness of what is not the same bytes, at most
MOST_ELONGATED = 5.0  # long side by short side


@dataclass(frozen=True)
class ImageRef:
    """An image: the split, None where there are none, and its number in it."""

    split: str | None
    number: int


@dataclass(frozen=True)
class Issue:
    kind: FindingKind
    places: tuple[ImageRef, ...]
    """The images that it is about; of copies, all that are the same."""
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.kind not in WORTH_A_LOOK


@dataclass(frozen=True)
class DataCheck:
    """What was found in data whose splits are open here."""

    sources: dict[str | None, Source]
    surveys: dict[str | None, ImageStats]
    findings: list[Issue] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not any(finding.is_wrong for finding in self.findings)

    def name(self, place: ImageRef) -> str:
        return self.sources[place.split].name(place.number)

    def classes(self, place: ImageRef) -> tuple[str, ...]:
        source = self.sources[place.split]
        return tuple(source.class_names[label] for label in source.labels.as_tuple(place.number))

    def count_classes(self) -> dict[str | None, np.ndarray]:
        """Images of each class, by split; images with several labels count for each."""
        return {
            split: np.bincount(source.labels.values, minlength=len(source.class_names))
            for split, source in self.sources.items()
        }


def check_data(data: DatasetHandle, runtime: "Runtime | None" = None, show_progress: bool = False) -> DataCheck:
    """Every split of the data, and the splits against each other."""
    splits = choose_splits(data)
    sources = {split: data.open(split) for split in splits}
    surveys = {
        split: compute_image_stats(source, f"looking at {split or data.name}", runtime, show_progress)
        for split, source in sources.items()
    }
    check = DataCheck(sources, surveys)
    check.findings.extend(list_unreadable(check))
    check.findings.extend(list_copies(check, show_progress))
    check.findings.extend(list_untrained(check))
    check.findings.extend(list_suspicious(check))
    return check


def choose_splits(data: DatasetHandle) -> Sequence[str | None]:
    """All of them, but for those that are made of others."""
    if {"train", "val"} <= set(data.splits):
        return [split for split in data.splits if split not in JOINED]
    return data.splits or (None,)


def list_unreadable(check: DataCheck) -> list[Issue]:
    return [
        Issue("unreadable", (ImageRef(split, number),), reason)
        for split, survey in check.surveys.items()
        for number, reason in sorted(survey.unreadable.items())
    ]


def list_copies(check: DataCheck, show_progress: bool = False) -> list[Issue]:
    """Groups of images that are the same picture, each told once, by the worst that is wrong with it."""
    places = [ImageRef(split, number) for split, survey in check.surveys.items() for number in range(len(survey))]
    pairs = find_all_pairs(check, show_progress)
    findings = []
    for members, likeness in group(pairs):
        found = tuple(places[member] for member in members)
        findings.append(Issue(judge_group(check, found, likeness), found, describe_group(check, found, likeness)))
    return sorted(findings, key=lambda finding: KINDS.index(finding.kind))


def find_all_pairs(check: DataCheck, show_progress: bool) -> DuplicatePairs:
    """Within each split and across any two, in numbers that count through all splits."""
    parts, start = [], 0
    seen: list[tuple[int, str | None]] = []
    for split, survey in check.surveys.items():
        source = check.sources[split]
        parts.append(shift(find_duplicates_within(survey, source, show_progress), start, start))
        for other_start, other in seen:
            across = find_duplicates_between(check.surveys[other], check.sources[other], survey, source, show_progress)
            parts.append(shift(across, other_start, start))
        seen.append((start, split))
        start += len(survey)
    return DuplicatePairs(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "likeness", "is_exact"))
    )


def shift(pairs: DuplicatePairs, first: int, second: int) -> DuplicatePairs:
    return DuplicatePairs(pairs.numbers + np.array([first, second]), pairs.likeness, pairs.is_exact)


def group(pairs: DuplicatePairs) -> list[tuple[list[int], float]]:
    """Every pair in some group of images that are all copies of its first one, with the least likeness; 1: the same bytes."""
    partners: dict[int, dict[int, float]] = {}
    for (first, second), likeness, is_exact in zip(
        pairs.numbers.tolist(), pairs.likeness.tolist(), pairs.is_exact, strict=True
    ):
        value = 1.0 if is_exact else min(likeness, ALMOST_ONE)
        partners.setdefault(first, {})[second] = value
        partners.setdefault(second, {})[first] = value
    groups = []
    for first in sorted(partners):
        alike = partners[first]
        if alike:
            groups.append(([first, *sorted(alike)], min(alike.values())))
            members = {first, *alike}
            for member in members:  # what lies within this group is told
                partners[member] = {other: value for other, value in partners[member].items() if other not in members}
    return groups


def judge_group(check: DataCheck, places: Sequence[ImageRef], likeness: float) -> FindingKind:
    if len(list_labels(check, places)) > 1:
        return "two labels"
    if len({place.split for place in places}) > 1:
        return "in two splits"
    return "exact copies" if likeness == 1.0 else "near copies"


def list_labels(check: DataCheck, places: Sequence[ImageRef]) -> list[str]:
    """The different labels of the images, but for those that have none."""
    return sorted({" and ".join(sorted(check.classes(place))) for place in places} - {""})


def describe_group(check: DataCheck, places: Sequence[ImageRef], likeness: float) -> str:
    splits = sorted({place.split for place in places if place.split is not None})
    labels = list_labels(check, places)
    how = "the same bytes" if likeness == 1.0 else f"likeness {likeness:.2f}"
    where = [f"in {' and '.join(splits)}"] if len(splits) > 1 else []
    return ", ".join([how, *where, *([f"as {join_names(labels)}"] if len(labels) > 1 else [])])


def list_untrained(check: DataCheck) -> list[Issue]:
    """Classes that are tested and never shown."""
    counts = check.count_classes()
    if "train" not in counts:
        return []
    names = check.sources["train"].class_names
    tested = {
        name
        for split, source in check.sources.items()
        for name, count in zip(source.class_names, counts[split].tolist(), strict=True)
        if split != "train" and count > 0
    }
    trained = {name for name, count in zip(names, counts["train"].tolist(), strict=True) if count > 0}
    return [Issue("no training images", (), f"class {name}") for name in sorted(tested - trained)]


def list_suspicious(check: DataCheck) -> list[Issue]:
    """Readable, and yet perhaps not what was meant."""
    findings = []
    for split, survey in check.surveys.items():
        is_readable = survey.sizes.min(axis=1) > 0
        usual = float(np.median(survey.sizes[is_readable].min(axis=1))) if is_readable.any() else 0.0
        for number in np.flatnonzero(is_readable).tolist():
            doubts = list_doubts(survey, number, usual)
            if doubts:
                findings.append(Issue("suspicious", (ImageRef(split, number),), ", ".join(doubts)))
    return findings


def list_doubts(survey: ImageStats, number: int, usual_side: float) -> list[str]:
    height, width = survey.sizes[number].tolist()
    doubts = []
    if number in survey.disguised:
        doubts.append(f"{survey.disguised[number]} under another format's name")
    if survey.signatures.is_flat[number]:
        doubts.append("one colour all over")
    if min(height, width) < SMALLEST_SIDE and usual_side >= 4 * SMALLEST_SIDE:
        doubts.append(f"only {height} x {width} pixels")
    if max(height, width) > MOST_ELONGATED * min(height, width):
        doubts.append(f"{height} x {width} pixels, a strip")
    return doubts


def list_to_leave_out(check: DataCheck) -> list[str]:
    """Names for `data.exclude`, so of training images: what cannot be read, of copies all but one, of two labels all.

    Of an image in two splits, the one that is not trained on stays. Suspicions are for people to judge.
    """
    trained = "train" if "train" in check.sources else None
    names: dict[str, None] = {}
    for finding in check.findings:
        if not finding.is_wrong or not finding.places:
            continue
        left_out = list(finding.places)
        if finding.kind not in ("unreadable", "two labels"):
            left_out.remove(min(finding.places, key=rank_place))
        names.update(dict.fromkeys(check.name(place) for place in left_out if trained is None or place.split == trained))
    return list(names)


def rank_place(place: ImageRef) -> tuple[int, int]:
    """The smaller the sooner it is kept."""
    rank = KEPT_FIRST.index(place.split) if place.split in KEPT_FIRST else len(KEPT_FIRST)
    return rank, place.number


THUMBNAIL = 150
MOST_SHOWN = 40  # findings of a kind; the others are in the JSON
MOST_COPIES = 12  # images of a group

CAPTIONS: dict[FindingKind, str] = {
    "unreadable": "No image comes out of these files.",
    "two labels": "The same picture under different labels: at most one of them can be right.",
    "in two splits": "What a model is tested on, it must not have seen in training.",
    "exact copies": "Stored more than once, byte for byte.",
    "near copies": "The same picture more than once: compressed, resized, made brighter or cut differently; or two that were "
    "taken at nearly the same moment.",
    "no training images": "Classes that are tested and never shown.",
    "suspicious": "These can be read, and are worth a look.",
    "label suspect": "Their neighbours in the model's feature space have another label. Some are mistakes of labelling, others "
    "only images that look like another class.",
}


def write_check(check: DataCheck, path: Path, title: str) -> None:
    """A section for each kind of finding, the numbers of images, and their sizes."""
    sections = []
    for kind, caption in CAPTIONS.items():
        found = [finding for finding in check.findings if finding.kind == kind]
        if found:
            more = f" The first {MOST_SHOWN} of {len(found)}." if len(found) > MOST_SHOWN else ""
            parts = show_all(check, found[:MOST_SHOWN])
            sections.append(Section(f"{kind.capitalize()}: {len(found)}", caption + more, parts))
    sections.append(Section("Images of each class", "By split.", [build_class_table(check)]))
    total = sum(map(len, check.sources.values()))
    verdict = "Nothing is wrong." if check.is_clean else "Something is wrong."
    write_html_report(path, f"Check of {title}", f"{total:,} images. {verdict}", sections)


def show_all(check: DataCheck, findings: Sequence[Issue]) -> list[Part]:
    if all(len(finding.places) == 1 for finding in findings):  # side by side
        return [Gallery([show(check, finding.places[0], finding.detail) for finding in findings])]
    if not any(finding.places for finding in findings):
        return [Table(("what",), [(finding.detail,) for finding in findings])]
    return [show_group(check, finding) for finding in findings]


def show_group(check: DataCheck, finding: Issue) -> Gallery:
    figures = [
        show(check, place, "" if number else finding.detail) for number, place in enumerate(finding.places[:MOST_COPIES])
    ]
    more = len(finding.places) - MOST_COPIES
    return Gallery(figures if more <= 0 else [*figures, Figure(None, f"and {more:,} more")])


def show(check: DataCheck, place: ImageRef, detail: str) -> Figure:
    words = [check.name(place), " and ".join(check.classes(place)), detail]
    return Figure(draw_thumbnail(check, place), " · ".join(word for word in words if word))


def draw_thumbnail(check: DataCheck, place: ImageRef) -> bytes | None:
    """JPEG; None of what cannot be read."""
    try:
        image = check.sources[place.split].read(place.number)[0].to_pil()
    except BadImage:
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return content.getvalue()


def build_class_table(check: DataCheck) -> Table:
    counts = check.count_classes()
    names = sorted({name for source in check.sources.values() for name in source.class_names})
    by_name = {
        split: dict(zip(source.class_names, counts[split].tolist(), strict=True)) for split, source in check.sources.items()
    }
    rows = [(name, *(f"{by_name[split].get(name, 0):,}" for split in counts)) for name in names]
    return Table(("class", *(split or "images" for split in counts)), rows)

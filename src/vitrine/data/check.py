"""What is wrong with a data set before anything is trained on it: files, copies, labels, balance, sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from vitrine.core.sentences import list_names
from vitrine.data.duplicates import Pairs, find_across, find_within
from vitrine.data.opening import Data
from vitrine.data.source import Source
from vitrine.data.survey import Survey, survey_source

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
class Place:
    """An image: the split, None where there are none, and its number in it."""

    split: str | None
    number: int


@dataclass(frozen=True)
class Finding:
    kind: FindingKind
    places: tuple[Place, ...]
    """The images that it is about; of copies, all that are the same."""
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        return self.kind not in WORTH_A_LOOK


@dataclass(frozen=True)
class Check:
    """What was found in data whose splits are open here."""

    sources: dict[str | None, Source]
    surveys: dict[str | None, Survey]
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not any(finding.is_wrong for finding in self.findings)

    def name(self, place: Place) -> str:
        return self.sources[place.split].name(place.number)

    def classes(self, place: Place) -> tuple[str, ...]:
        source = self.sources[place.split]
        return tuple(source.class_names[label] for label in source.labels.list_of(place.number))

    def count_classes(self) -> dict[str | None, np.ndarray]:
        """Images of each class, by split; images with several labels count for each."""
        return {
            split: np.bincount(source.labels.values, minlength=len(source.class_names))
            for split, source in self.sources.items()
        }


def check_data(data: Data, runtime: "Runtime | None" = None, show_progress: bool = False) -> Check:
    """Every split of the data, and the splits against each other."""
    splits = choose_splits(data)
    sources = {split: data.open(split) for split in splits}
    surveys = {
        split: survey_source(source, f"looking at {split or data.name}", runtime, show_progress)
        for split, source in sources.items()
    }
    check = Check(sources, surveys)
    check.findings.extend(list_unreadable(check))
    check.findings.extend(list_copies(check, show_progress))
    check.findings.extend(list_untrained(check))
    check.findings.extend(list_suspicious(check))
    return check


def choose_splits(data: Data) -> Sequence[str | None]:
    """All of them, but for those that are made of others."""
    if {"train", "val"} <= set(data.splits):
        return [split for split in data.splits if split not in JOINED]
    return data.splits or (None,)


def list_unreadable(check: Check) -> list[Finding]:
    return [
        Finding("unreadable", (Place(split, number),), reason)
        for split, survey in check.surveys.items()
        for number, reason in sorted(survey.unreadable.items())
    ]


def list_copies(check: Check, show_progress: bool = False) -> list[Finding]:
    """Groups of images that are the same picture, each told once, by the worst that is wrong with it."""
    places = [Place(split, number) for split, survey in check.surveys.items() for number in range(len(survey))]
    pairs = find_all_pairs(check, show_progress)
    findings = []
    for members, likeness in group(pairs):
        found = tuple(places[member] for member in members)
        findings.append(Finding(judge_group(check, found, likeness), found, describe_group(check, found, likeness)))
    return sorted(findings, key=lambda finding: KINDS.index(finding.kind))


def find_all_pairs(check: Check, show_progress: bool) -> Pairs:
    """Within each split and across any two, in numbers that count through all splits."""
    parts, start = [], 0
    seen: list[tuple[int, str | None]] = []
    for split, survey in check.surveys.items():
        source = check.sources[split]
        parts.append(shift(find_within(survey, source, show_progress), start, start))
        for other_start, other in seen:
            across = find_across(check.surveys[other], check.sources[other], survey, source, show_progress)
            parts.append(shift(across, other_start, start))
        seen.append((start, split))
        start += len(survey)
    return Pairs(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "likeness", "is_exact")))


def shift(pairs: Pairs, first: int, second: int) -> Pairs:
    return Pairs(pairs.numbers + np.array([first, second]), pairs.likeness, pairs.is_exact)


def group(pairs: Pairs) -> list[tuple[list[int], float]]:
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


def judge_group(check: Check, places: Sequence[Place], likeness: float) -> FindingKind:
    if len(list_labels(check, places)) > 1:
        return "two labels"
    if len({place.split for place in places}) > 1:
        return "in two splits"
    return "exact copies" if likeness == 1.0 else "near copies"


def list_labels(check: Check, places: Sequence[Place]) -> list[str]:
    """The different labels of the images, but for those that have none."""
    return sorted({" and ".join(sorted(check.classes(place))) for place in places} - {""})


def describe_group(check: Check, places: Sequence[Place], likeness: float) -> str:
    splits = sorted({place.split for place in places if place.split is not None})
    labels = list_labels(check, places)
    how = "the same bytes" if likeness == 1.0 else f"likeness {likeness:.2f}"
    where = [f"in {' and '.join(splits)}"] if len(splits) > 1 else []
    return ", ".join([how, *where, *([f"as {list_names(labels)}"] if len(labels) > 1 else [])])


def list_untrained(check: Check) -> list[Finding]:
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
    return [Finding("no training images", (), f"class {name}") for name in sorted(tested - trained)]


def list_suspicious(check: Check) -> list[Finding]:
    """Readable, and yet perhaps not what was meant."""
    findings = []
    for split, survey in check.surveys.items():
        is_readable = survey.sizes.min(axis=1) > 0
        usual = float(np.median(survey.sizes[is_readable].min(axis=1))) if is_readable.any() else 0.0
        for number in np.flatnonzero(is_readable).tolist():
            doubts = list_doubts(survey, number, usual)
            if doubts:
                findings.append(Finding("suspicious", (Place(split, number),), ", ".join(doubts)))
    return findings


def list_doubts(survey: Survey, number: int, usual_side: float) -> list[str]:
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


def list_to_leave_out(check: Check) -> list[str]:
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


def rank_place(place: Place) -> tuple[int, int]:
    """The smaller the sooner it is kept."""
    rank = KEPT_FIRST.index(place.split) if place.split in KEPT_FIRST else len(KEPT_FIRST)
    return rank, place.number

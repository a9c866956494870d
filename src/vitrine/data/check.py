"""What is wrong with a data set before anything is trained on it: files, copies, labels, balance, sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

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
# What is wrong, and has to be mended; the others are worth a look.
WRONG: tuple[FindingKind, ...] = (
    "unreadable",
    "two labels",
    "in two splits",
    "exact copies",
    "near copies",
    "no training images",
)

SMALLEST_SIDE = 16  # pixels, where others are four times as large
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
        return self.kind in WRONG


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
    splits: Sequence[str | None] = data.splits or (None,)
    sources = {split: data.open(split) for split in splits}
    surveys = {
        split: survey_source(source, f"looking at {split or data.name}", runtime, show_progress)
        for split, source in sources.items()
    }
    check = Check(sources, surveys)
    check.findings.extend(list_unreadable(check))
    check.findings.extend(list_copies(check))
    check.findings.extend(list_untrained(check))
    check.findings.extend(list_suspicious(check))
    return check


def list_unreadable(check: Check) -> list[Finding]:
    return [
        Finding("unreadable", (Place(split, number),), reason)
        for split, survey in check.surveys.items()
        for number, reason in sorted(survey.unreadable.items())
    ]


def list_copies(check: Check) -> list[Finding]:
    """Groups of images that are the same picture, each told once, by the worst that is wrong with it."""
    places = [Place(split, number) for split, survey in check.surveys.items() for number in range(len(survey))]
    pairs = find_all_pairs(check)
    findings = []
    for members, likeness in group(pairs, len(places)):
        found = tuple(places[member] for member in members)
        findings.append(Finding(judge_group(check, found, likeness), found, describe_group(check, found, likeness)))
    return sorted(findings, key=lambda finding: WRONG.index(finding.kind))


def find_all_pairs(check: Check) -> Pairs:
    """Within each split and across any two, in numbers that count through all splits."""
    parts, start = [], 0
    seen: list[tuple[int, str | None]] = []
    for split, survey in check.surveys.items():
        source = check.sources[split]
        parts.append(shift(find_within(survey, source), start, start))
        for other_start, other in seen:
            across = find_across(check.surveys[other], check.sources[other], survey, source)
            parts.append(shift(across, other_start, start))
        seen.append((start, split))
        start += len(survey)
    return Pairs(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("numbers", "likeness", "is_exact")))


def shift(pairs: Pairs, first: int, second: int) -> Pairs:
    return Pairs(pairs.numbers + np.array([first, second]), pairs.likeness, pairs.is_exact)


def group(pairs: Pairs, num_images: int) -> list[tuple[list[int], float]]:
    """Images that are connected by pairs, and the least likeness of these; 1 where all have the same bytes."""
    first, second = pairs.numbers.T
    graph = coo_matrix((np.ones(len(pairs)), (first, second)), shape=(num_images, num_images))
    _, components = connected_components(graph, directed=False)
    least: dict[int, float] = {}
    for component, likeness in zip(components[first].tolist(), np.where(pairs.is_exact, 1.0, pairs.likeness), strict=True):
        least[component] = min(least.get(component, 1.0), float(likeness))
    members: dict[int, list[int]] = {component: [] for component in least}
    for number in np.flatnonzero(np.isin(components, list(least))).tolist():
        members[int(components[number])].append(number)
    return [(members[component], likeness) for component, likeness in least.items()]


def judge_group(check: Check, places: Sequence[Place], likeness: float) -> FindingKind:
    if len({frozenset(check.classes(place)) for place in places}) > 1:
        return "two labels"
    if len({place.split for place in places}) > 1:
        return "in two splits"
    return "exact copies" if likeness == 1.0 else "near copies"


def describe_group(check: Check, places: Sequence[Place], likeness: float) -> str:
    splits = sorted({place.split for place in places if place.split is not None})
    classes = sorted({" and ".join(check.classes(place)) for place in places})
    how = "the same bytes" if likeness == 1.0 else f"likeness {likeness:.2f}"
    where = [f"in {' and '.join(splits)}"] if len(splits) > 1 else []
    labels = [f"as {list_names(classes)}"] if len(classes) > 1 else []
    return ", ".join([how, *where, *labels])


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
    """Names for `data.exclude`: what cannot be read; of copies all but one, in training before elsewhere; of two labels, all.

    Of an image in two splits, the one in test stays, else that in val: it is training that must not have seen it. Suspicions
    are for people to judge.
    """
    names: dict[str, None] = {}
    for finding in check.findings:
        if finding.kind == "two labels" or finding.kind == "unreadable":
            left_out = list(finding.places)
        elif finding.is_wrong and finding.places:
            kept = min(finding.places, key=lambda place: (("test", "val", "train", None).index(place.split), place.number))
            left_out = [place for place in finding.places if place != kept]
        else:
            continue
        names.update(dict.fromkeys(check.name(place) for place in left_out))
    return list(names)

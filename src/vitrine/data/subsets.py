"""Subset, held-out part, exclude lists.

Text files with the name of an image on each line: those to leave out (`data.exclude`).
Some images of a source: by share or number, without a list of files, and a part held out.

Which images are chosen depends on a seed and on their numbers in the whole source, nothing else, so that a smaller subset lies
within a larger one and leaving out a few files changes only these.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, warn_user
from vitrine.core.files import atomic_file
from vitrine.data.config import Subset
from vitrine.data.sampling import RngStream, hash_keys
from vitrine.data.source import Labels, Source


def read_exclude_list(path: Path) -> set[str]:
    """Bytes of a name that are no UTF-8 come back as they are in the names of files."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
        if "\0" in text:
            raise OSError("it holds bytes that are no text")
    except OSError as error:
        raise ValueError(f"exclude={path} must be a text file with the name of an image on each line: {error}.") from None
    lines = text.splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("# ")}


def write_exclude_list(path: Path, names: Iterable[str], title: str) -> None:
    """In UTF-8; a name that a line cannot hold would not be found again, and is refused."""
    lines = [f"# {title}", *names]
    for name in lines[1:]:
        if name != name.strip() or name.startswith("# ") or len(name.splitlines()) != 1:
            raise ValueError(f"{name!r} cannot stand on a line of {path}: rename the file, and check again.")
    with atomic_file(path) as partial:
        partial.write_text("\n".join([*lines, ""]), encoding="utf-8", errors="surrogateescape")


class SubsetSource(Source):
    """Some images of another source, under the numbers 0, 1, .."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        # A selection of a selection is one of the whole: indices stay those that choices are drawn by.
        self.source = source.source if isinstance(source, SubsetSource) else source
        self.indices = source.indices[indices] if isinstance(source, SubsetSource) else indices
        self.labels = self.source.labels.take(self.indices)
        self.class_names = source.class_names

    def fetch(self, index: int) -> bytes | np.ndarray:
        return self.source.fetch(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def files(self) -> list[Path]:
        return self.source.files()

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.read_block(self.indices[indices])


def select_subset(source: Source, text: str, seed: int = 0) -> Source:
    """The subset that `text` describes (config.Subset), in the order of the source."""
    subset = Subset.parse(text)
    if isinstance(subset.amount, float) and subset.amount == 1:
        return source
    ranks = draw_order(source, RngStream.SUBSET, seed)
    chosen = choose_per_class(source, subset, ranks) if subset.per_class else choose_overall(source, subset, ranks)
    return SubsetSource(source, np.sort(chosen))


def draw_order(source: Source, purpose: RngStream, seed: int) -> np.ndarray:
    """The order in which images are chosen: all of them, the first to be taken first."""
    numbers = source.indices if isinstance(source, SubsetSource) else np.arange(len(source))
    return np.argsort(hash_keys(seed, purpose, numbers), kind="stable")


def choose_overall(source: Source, subset: Subset, ranks: np.ndarray) -> np.ndarray:
    if isinstance(subset.amount, int) and subset.amount > len(source):
        raise ValueError(f"subset {subset.amount} is more than the {len(source)} images that there are: take fewer, or all.")
    return ranks[: count(subset.amount, len(source))]


def choose_per_class(source: Source, subset: Subset, ranks: np.ndarray) -> np.ndarray:
    """The first of each class; an image with several labels is in when it is among the first of any of them."""
    images, classes = list_memberships(source.labels)
    if len(classes) == 0:
        raise ValueError("subset ../class needs labels, and these images have none: leave /class out.")
    labels, sizes = np.unique(classes, return_counts=True)
    if isinstance(subset.amount, int) and sizes.min() < subset.amount:
        label = int(labels[sizes.argmin()])
        raise ValueError(
            f"subset {subset.amount}/class is more than the {sizes.min()} images of class {source.class_names[label]}: "
            "take fewer."
        )
    return take_first(images, classes, np.array([count(subset.amount, size) for size in sizes.tolist()]), ranks)


def take_first(images: np.ndarray, classes: np.ndarray, wanted: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Of each class, in their order, the first so many of its images as ranked."""
    places = np.empty(len(ranks), dtype=np.int64)
    places[ranks] = np.arange(len(ranks))
    order = np.lexsort((places[images], classes))  # class by class, within it as ranked
    _, starts, sizes = np.unique(classes[order], return_index=True, return_counts=True)
    within = np.arange(len(images)) - np.repeat(starts, sizes)  # which of its class each is
    return np.unique(images[order][within < np.repeat(wanted, sizes)])


def count(amount: float | int, available: int) -> int:
    return amount if isinstance(amount, int) else max(1, round(amount * available))


def list_memberships(labels: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of an image and a class that it has."""
    if labels.starts is None:
        return np.arange(len(labels)), labels.values
    return np.repeat(np.arange(len(labels)), np.diff(labels.starts)), labels.values


def hold_out(source: Source, share: float, seed: int = 0) -> tuple[Source, Source]:
    """What is left to train on, and the part held out: this share of the images and, to within one, of every class."""
    num_held = round(share * len(source)) if 0 < share < 1 else 0
    if not 0 < num_held < len(source):
        raise ValueError(f"held_out={share} of {len(source)} images leaves one of the two parts empty: take another share.")
    ranks = draw_order(source, RngStream.HELD_OUT, seed)
    classes = np.zeros_like(ranks) if source.labels.has_several else source.labels.values
    _, sizes = np.unique(classes, return_counts=True)
    is_held = np.zeros(len(source), dtype=bool)
    is_held[take_first(np.arange(len(source)), classes, apportion(num_held, sizes), ranks)] = True
    return SubsetSource(source, np.flatnonzero(~is_held)), SubsetSource(source, np.flatnonzero(is_held))


def apportion(total: int, sizes: np.ndarray) -> np.ndarray:
    """`total` divided in the proportion of the sizes, whole numbers: what is left over goes to the largest remainders."""
    shares = total * sizes / sizes.sum()
    parts = np.floor(shares).astype(np.int64)
    largest = np.argsort(parts - shares, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    return parts


def exclude_images(source: Source, path: Path) -> Source:
    """Without the images named in the text file, one to a line."""
    names = read_exclude_list(path)
    is_kept = np.fromiter((source.name(index) not in names for index in range(len(source))), dtype=bool, count=len(source))
    num_found = len(source) - int(is_kept.sum())
    if names and num_found == 0:
        raise ValueError(
            f"None of the {len(names)} names in {path} is in the data, whose images are called as {source.name(0)}: write "
            "such names."
        )
    if num_found < len(names):
        here = {source.name(index) for index in np.flatnonzero(~is_kept).tolist()}
        warn_user(f"{len(names) - num_found} names in {path} are not in the data, as {join_names(sorted(names - here), 3)}.")
    if num_found == len(source):
        raise ValueError(f"{path} excludes all {len(source)} images: nothing is left.")
    return SubsetSource(source, np.flatnonzero(is_kept)) if num_found else source

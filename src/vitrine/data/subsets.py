"""Parts of a source: random subsets, a held-out part, and exclude lists.

Which images are chosen depends only on a seed and on their indices in the whole source. So a smaller subset lies within a
larger one, and excluding a few files changes only these.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitrine.core.console import join_names, summarise_error, warn_user
from vitrine.core.files import atomic_file
from vitrine.data.config import Subset
from vitrine.data.sampling import RngStream, hash_keys
from vitrine.data.source import Source


class SubsetSource(Source):
    """Some images of another source, with indices 0, 1, ..."""

    def __init__(self, source: Source, indices: np.ndarray) -> None:
        # A subset of a subset refers to the whole source: choices are drawn by indices in the whole.
        self.source = source.source if isinstance(source, SubsetSource) else source
        self.indices = source.indices[indices] if isinstance(source, SubsetSource) else indices
        self.labels = self.source.labels.take(self.indices)
        self.class_names = source.class_names

    def fetch(self, index: int) -> bytes | np.ndarray:
        return self.source.fetch(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def image_path(self, index: int) -> Path | None:
        return self.source.image_path(int(self.indices[index]))

    def files(self) -> list[Path]:
        return self.source.files()

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.read_block(self.indices[indices])


def select_subset(source: Source, text: str, seed: int = 0) -> Source:
    """Return the subset that e.g. 10%, 500 or 5/class describes (`config.Subset`), in the order of the source."""
    subset = Subset.parse(text)
    if isinstance(subset.amount, float) and subset.amount == 1:
        return source
    order = draw_order(source, RngStream.SUBSET, seed)
    if subset.per_class:
        chosen = choose_per_class(source, subset, order)
    elif isinstance(subset.amount, int) and subset.amount > len(source):
        raise ValueError(f"subset={subset.amount} is more than the {len(source)} images available: use fewer, or all.")
    else:
        chosen = order[: count_images(subset.amount, len(source))]
    return SubsetSource(source, np.sort(chosen))


def draw_order(source: Source, stream: RngStream, seed: int) -> np.ndarray:
    """Return all indices of the source in the random order in which images are chosen."""
    indices = source.indices if isinstance(source, SubsetSource) else np.arange(len(source))
    return np.argsort(hash_keys(seed, stream, indices), kind="stable")


def choose_per_class(source: Source, subset: Subset, order: np.ndarray) -> np.ndarray:
    """Return the first images of each class; one with several labels is chosen if it is among the first of any of them."""
    classes, starts = source.labels.values, source.labels.starts
    images = np.arange(len(source)) if starts is None else np.repeat(np.arange(len(source)), np.diff(starts))
    if len(classes) == 0:
        raise ValueError("subset=../class needs labels, and these images have none: remove /class.")
    labels, sizes = np.unique(classes, return_counts=True)
    if isinstance(subset.amount, int) and sizes.min() < subset.amount:
        name = source.class_names[int(labels[sizes.argmin()])]
        raise ValueError(f"subset={subset.amount}/class is more than the {sizes.min()} images of class {name}: use fewer.")
    counts = np.array([count_images(subset.amount, size) for size in sizes.tolist()])
    return take_first(images, classes, counts, order)


def take_first(images: np.ndarray, classes: np.ndarray, counts: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the first `counts` images of each class, in the given random order of all images."""
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.arange(len(order))
    by_class = np.lexsort((positions[images], classes))  # class by class, each in random order
    _, starts, sizes = np.unique(classes[by_class], return_index=True, return_counts=True)
    within_class = np.arange(len(images)) - np.repeat(starts, sizes)
    return np.unique(images[by_class][within_class < np.repeat(counts, sizes)])


def count_images(amount: float | int, available: int) -> int:
    """Return the number of images for an amount: a fraction gives at least one."""
    return amount if isinstance(amount, int) else max(1, round(amount * available))


def hold_out(source: Source, fraction: float, seed: int = 0) -> tuple[Source, Source]:
    """Split into a part to train on and a held-out part with this fraction of the images, stratified by class."""
    num_held = round(fraction * len(source)) if 0 < fraction < 1 else 0
    if not 0 < num_held < len(source):
        raise ValueError(f"held_out={fraction} of {len(source)} images leaves one of the parts empty: use another fraction.")
    order = draw_order(source, RngStream.HELD_OUT, seed)
    classes = np.zeros_like(order) if source.labels.has_several else source.labels.values
    _, sizes = np.unique(classes, return_counts=True)
    is_held = np.zeros(len(source), dtype=bool)
    is_held[take_first(np.arange(len(source)), classes, apportion(num_held, sizes), order)] = True
    return SubsetSource(source, np.flatnonzero(~is_held)), SubsetSource(source, np.flatnonzero(is_held))


def apportion(total: int, sizes: np.ndarray) -> np.ndarray:
    """Divide `total` into integers proportional to the sizes, by the largest-remainder method."""
    quotas = total * sizes / sizes.sum()
    parts = np.floor(quotas).astype(np.int64)
    largest = np.argsort(parts - quotas, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    return parts


def exclude_images(source: Source, path: Path) -> Source:
    """Return the source without the images named in an exclude list."""
    names = read_exclude_list(path)
    is_kept = np.fromiter((source.name(index) not in names for index in range(len(source))), dtype=bool, count=len(source))
    num_excluded = len(source) - int(is_kept.sum())
    if names and num_excluded == 0:
        raise ValueError(f"None of the {len(names)} names in {path} is in the data; expected names like {source.name(0)}.")
    if num_excluded < len(names):
        excluded = {source.name(index) for index in np.flatnonzero(~is_kept).tolist()}
        unknown = join_names(sorted(names - excluded), 3)
        warn_user(f"{len(names) - num_excluded} names in {path} are not in the data: {unknown}.")
    if num_excluded == len(source):
        raise ValueError(f"{path} excludes all {len(source)} images: shorten the list.")
    return SubsetSource(source, np.flatnonzero(is_kept)) if num_excluded else source


def read_exclude_list(path: Path) -> set[str]:
    """Read a text file with one image name per line; lines that start with "# " are comments."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # names of files need not be UTF-8
        if "\0" in text:
            raise OSError("it is a binary file")
    except OSError as error:
        raise ValueError(
            f"exclude={path} must be a text file with one image name per line: {summarise_error(error)}."
        ) from None
    return {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("# ")}


def write_exclude_list(path: Path, names: Iterable[str], title: str) -> None:
    """Write a text file for `DataConfig.exclude`; names that would not be read back, e.g. with line breaks, are errors."""
    names = list(names)
    for name in names:
        if name != name.strip() or name.startswith("# ") or len(name.splitlines()) != 1:
            raise ValueError(f"{name!r} cannot be written as a line of {path}: rename the file.")
    with atomic_file(path) as partial:
        partial.write_text("\n".join([f"# {title}", *names, ""]), encoding="utf-8", errors="surrogateescape")

"""The images of a fit: opened, looked at as far as seconds allow, and thinned out where there are more than time."""

import time
from dataclasses import dataclass, field, replace

import numpy as np

from vitrine.core.console import join_names
from vitrine.data.image import BadImage
from vitrine.data.open_data import DatasetHandle, choose_test_split
from vitrine.data.quality.check import DataCheck, find_unreadable
from vitrine.data.quality.duplicates import find_duplicates_between
from vitrine.data.quality.image_stats import ImageStats, compute_image_stats, stats_of_chunk
from vitrine.data.sampling import RngStream
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source
from vitrine.data.subsets import SubsetSource, draw_order, take_first

NUM_SAMPLED = 32  # images that tell how long looking at all of them will take, and whether they are square
MAX_LOOK_FRACTION, MIN_LOOK_S = 0.05, 3.0  # of the budget
MIN_ASPECT, MIN_OBLONG_FRACTION = 1.1, 0.1  # long side by short side, and how many images must be as oblong to choose a framing
MIN_PER_CLASS = 5  # images of a class that the first model should have, where it has as many
MAX_IMBALANCE = 3.0  # largest class by smallest; above it, balancing is tried


@dataclass(frozen=True)
class FitImages:
    """Images to fit to and to test on, without those that were left out."""

    train: Source
    test: Source | None
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Reason -> names of training images that are not used."""
    was_searched: bool = True
    """Whether copies of test images were looked for."""
    num_available: tuple[int, int] = (0, 0)
    """Training and test images before some were left out for want of time."""

    def __len__(self) -> int:
        return len(self.train) + (0 if self.test is None else len(self.test))

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names

    @property
    def num_classes(self) -> int:
        return len(self.train.class_names)

    @property
    def class_counts(self) -> np.ndarray:
        """Number of training images of each class."""
        return np.bincount(self.train.labels.values, minlength=self.num_classes)

    @property
    def is_uneven(self) -> bool:
        """Whether the numbers of images of the classes differ much."""
        counts = self.class_counts
        return counts.max() > MAX_IMBALANCE * max(1, counts[counts > 0].min())

    @property
    def is_thinned(self) -> bool:
        """Whether there was not enough time for all images."""
        return self.num_available != (len(self.train), 0 if self.test is None else len(self.test))


def open_images(dataset: DatasetHandle) -> FitImages:
    """Open the images to fit to, and a test split if there is one, and check that they can be fitted to."""
    train = dataset.open_train()
    has_test = bool({"test", "val"} & set(dataset.splits))
    test = dataset.open(choose_test_split(dataset)) if has_test else None
    if len(train.class_names) < 2:
        found = f"only one class ({train.class_names[0]})" if train.class_names else "no classes"
        raise ValueError(f"{dataset.name} has {found}; at least two are needed: put the images of each class into a folder.")
    if test is not None and test.class_names != train.class_names:
        counts = f"{len(train.class_names)} and {len(test.class_names)}, or in another order"
        raise ValueError(f"The classes of {dataset.name} differ between train and test ({counts}): use the same in both.")
    require_two_each(train)
    return FitImages(train, test, num_available=(len(train), 0 if test is None else len(test)))


def require_two_each(train: Source) -> None:
    """Raise ValueError unless each class has two readable training images that are not in the test split."""
    counts = np.bincount(train.labels.values, minlength=len(train.class_names))
    if (counts < 2).any():
        few = [f"{train.class_names[label]} ({counts[label]})" for label in np.flatnonzero(counts < 2)]
        raise ValueError(f"Classes with fewer than 2 training images: {join_names(few)}; add images, or remove these classes.")


def look_at_images(images: FitImages, limit_s: float | None, show_progress: bool = False) -> FitImages:
    """Leave out training images that cannot be read or that are in the test split, if looking at all takes only seconds."""
    allowed_s = float("inf") if limit_s is None else max(MIN_LOOK_S, MAX_LOOK_FRACTION * limit_s)
    sources: dict[str | None, Source] = {"train": images.train}
    if images.test is not None:
        sources["test"] = images.test
    sample = sample_evenly(images.train, NUM_SAMPLED)
    start = time.monotonic()
    stats_of_chunk(SubsetSource(images.train, sample), range(len(sample)))
    per_image_s = (time.monotonic() - start) / len(sample)
    if per_image_s * sum(map(len, sources.values())) / count_cpus() > allowed_s:
        return replace(images, was_searched=False)
    stats = {
        split: compute_image_stats(source, f"looking at {split}", show_progress=show_progress)
        for split, source in sources.items()
    }
    check = DataCheck(sources, stats)
    unreadable = {issue.images[0].index for issue in find_unreadable(check) if issue.images[0].split == "train"}
    leaked = find_leaked(images, stats)
    left_out = {"cannot be read": unreadable, "also in the test split": leaked - unreadable}
    is_kept = np.ones(len(images.train), dtype=bool)
    is_kept[sorted(unreadable | leaked)] = False
    if is_kept.all():
        return images
    kept = SubsetSource(images.train, np.flatnonzero(is_kept))
    require_two_each(kept)
    names = {reason: [images.train.name(index) for index in sorted(indices)] for reason, indices in left_out.items() if indices}
    return replace(images, train=kept, left_out=names, num_available=(len(kept), images.num_available[1]))


def find_leaked(images: FitImages, stats: dict[str | None, ImageStats]) -> set[int]:
    """Return the training images of which there is a copy in the test split."""
    if images.test is None:
        return set()
    pairs = find_duplicates_between(stats["train"], images.train, stats["test"], images.test)
    return set(pairs.indices[:, 0].tolist())


def sample_evenly(source: Source, count: int) -> np.ndarray:
    """Return indices of some images, spread over the whole source."""
    return np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(np.int64))


def are_oblong(source: Source) -> bool:
    """Return whether a part of the images is so oblong that framing matters, from the sizes of a sample."""
    ratios = []
    for index in sample_evenly(source, NUM_SAMPLED).tolist():
        try:
            image = source.read(index)[0]
        except BadImage:
            continue
        ratios.append(max(image.height, image.width) / min(image.height, image.width))
    return bool(ratios) and float(np.mean(np.array(ratios) >= MIN_ASPECT)) >= MIN_OBLONG_FRACTION


def thin_out(images: FitImages, num_train: int, num_test: int, seed: int) -> FitImages:
    """Return at most so many images of each kind: of large classes fewer, of small ones all."""
    test = images.test
    if test is not None and len(test) > num_test:
        order = draw_order(test, RngStream.SUBSET, seed)
        test = SubsetSource(test, np.sort(order[:num_test]))
    return replace(images, train=cap_classes(images.train, num_train, seed), test=test)


def cap_classes(source: Source, total: int, seed: int) -> Source:
    """Return about `total` images, with the same limit for each class, so that small classes keep all of theirs."""
    if total >= len(source):
        return source
    order = draw_order(source, RngStream.SUBSET, seed)
    if source.labels.has_several:
        return SubsetSource(source, np.sort(order[:total]))
    classes = source.labels.values
    _, sizes = np.unique(classes, return_counts=True)
    limits = np.arange(1, sizes.max() + 1)
    sums = np.minimum(sizes[:, None], limits).sum(axis=0)  # images under each limit
    limit = int(limits[max(0, np.searchsorted(sums, total, side="right") - 1)])
    chosen = take_first(np.arange(len(source)), classes, np.minimum(sizes, limit), order)
    return SubsetSource(source, chosen)


def count_least(images: FitImages) -> int:
    """Return the number of training images that the first model needs at least."""
    return min(len(images.train), int(np.minimum(images.class_counts, MIN_PER_CLASS).sum()))

"""The 800, 200, 1000 and test images of a task, from whatever its data is divided into.

Lists of the community are followed. Elsewhere "the first 800" are the first of a shuffle that never changes, because images in
class folders are sorted by class; the benchmark takes the first of its own files, which nobody else has.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitrine.core.sentences import list_names
from vitrine.data.draws import Purpose
from vitrine.data.joined import Joined
from vitrine.data.source import Source
from vitrine.data.sources.vtab import LISTS, WHOLE
from vitrine.data.subset import Selection, draw_ranks
from vitrine.data.vtab_tasks import VtabTask

SPLITS = tuple(LISTS)  # train (of 800), val (of 200), test, and both of the first together
SIZES = {"train": 800, "val": 200}
SHUFFLE_SEED = 0

Open = Callable[[str | None], Source]


@dataclass(frozen=True)
class Part:
    """Of the images of one split of the data, as shuffled, those from one share to another."""

    split: str | None
    start: float = 0.0
    stop: float = 1.0


def open_task_split(
    task: VtabTask, splits: tuple[str, ...], open_split: Open, split: str | None, test_images: int | None = None
) -> Source:
    """`splits` and `open_split` are of the data; `split` is one of SPLITS; `test_images` is the most of test, None for all."""
    assert split is not None
    most = test_images if split == "test" else SIZES.get(split)
    if WHOLE in splits:
        return take(open_split(split), Part(split), most if split == "test" else None)
    if split == WHOLE:
        return Joined([open_task_split(task, splits, open_split, part) for part in SIZES])
    part = divide(task, splits)[split]
    return take(open_split(part.split), part, most)


def divide(task: VtabTask, splits: tuple[str, ...]) -> dict[str, Part]:
    """Where the images for training, validation and test come from."""
    val, test = task.val_share, task.test_share
    if not splits:
        return {"train": Part(None, val + test), "val": Part(None, test, val + test), "test": Part(None, 0.0, test)}
    if "train" not in splits or not {"val", "test"} & set(splits):
        raise ValueError(
            f"The data of {task.name} has the splits {list_names(splits)}, and train and test were needed: add what is missing."
        )
    if "val" not in splits and task.splits_test:
        return {"train": Part("train"), "val": Part("test", 0.0, 0.5), "test": Part("test", 0.5)}
    if "val" in splits and "test" in splits:
        return {split: Part(split) for split in ("train", "val", "test")}
    return {"train": Part("train", val), "val": Part("train", 0.0, val), "test": Part("test" if "test" in splits else "val")}


def take(source: Source, part: Part, most: int | None) -> Source:
    """The first so many of the part, in the order of the source."""
    if most is None and (part.start, part.stop) == (0.0, 1.0):
        return source
    ranks = draw_ranks(source, Purpose.SUBSET, SHUFFLE_SEED)
    start, stop = (round(share * len(source)) for share in (part.start, part.stop))
    return Selection(source, np.sort(ranks[start:stop][:most]))

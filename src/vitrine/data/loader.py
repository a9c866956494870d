"""From a source and an order to batches: read by several processes, ahead of time, from any step on.

A worker makes a whole batch, and a batch is a pure function of its step. So nothing but the step needs saving, and the number
of workers changes nothing but the speed.
"""

import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.batch import Batch
from vitrine.data.config import BadImages, LoaderConfig
from vitrine.data.decode import BadImage
from vitrine.data.draws import Draws, Purpose, hash_keys
from vitrine.data.order import Order
from vitrine.data.reading import count_processors
from vitrine.data.source import MAX_BLOCK_SIDE, Source
from vitrine.data.stored import StoredImage
from vitrine.data.transforms import Images, Transform

MAX_WORKERS = 8
MAX_REPLACEMENTS = 100  # drawn for one bad image; if all are bad, so is the data


class Loader:
    """Batches in their order, with a record of how long their consumer waited and of what was skipped."""

    def __init__(
        self,
        source: Source,
        transform: Transform,
        config: LoaderConfig,
        *,
        seed: int = 0,
        shuffle: bool = True,
        bad_images: BadImages = "error",
        rank: int = 0,
        num_ranks: int = 1,
        pin_memory: bool = False,
    ) -> None:
        """With `shuffle`, a bad image that is to be skipped is replaced by another, so that batches keep their size;
        without, as in evaluation, it is left out."""
        self.order = Order(
            num_images=len(source),
            batch_size=config.batch_size,
            seed=seed,
            shuffle=shuffle,
            last=config.last,
            rank=rank,
            num_ranks=num_ranks,
        )
        self.batches_by_step = BatchesByStep(source, transform, self.order, bad_images)
        self.num_workers = choose_num_workers(source) if config.num_workers is None else config.num_workers
        self.prefetch = config.prefetch
        self.pin_memory = pin_memory
        self.waited_s = 0.0
        """Seconds that the consumer spent waiting for batches; near nothing where reading keeps up."""
        self.skipped: set[str] = set()
        """Names of the images that could not be read so far."""

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The batches from one step to before another, or without end. What comes before is not read."""
        made = self.start(start_step, stop_step)
        try:
            while (batch := self.wait(made)) is not None:
                if isinstance(batch, Exception):
                    raise batch
                self.report_skipped(batch)
                yield batch
        finally:
            made = batch = None  # an error holds on to this frame, and the frame would hold on to the workers

    def wait(self, made: Iterator[Batch | Exception]) -> Batch | Exception | None:
        start = time.perf_counter()
        batch = next(made, None)
        self.waited_s += time.perf_counter() - start
        return batch

    def start(self, start_step: int, stop_step: int | None) -> Iterator[Batch | Exception]:
        with warnings.catch_warnings():
            # Whoever asks for more workers than there are processors, as for a slow disk, has said so.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = DataLoader(
                self.batches_by_step,
                batch_size=None,
                sampler=itertools.count(start_step) if stop_step is None else range(start_step, stop_step),
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch if self.num_workers else None,
                pin_memory=self.pin_memory,
            )
            return iter(loader)

    def read_once(self) -> Iterator[Batch]:
        """One epoch, the first: every image once, if the last batch is kept."""
        return self.read(0, self.steps_per_epoch)

    def report_skipped(self, batch: Batch) -> None:
        new = sorted(set(batch.skipped) - self.skipped)
        told = len(self.skipped)
        self.skipped.update(new)
        if len(self.skipped).bit_length() > told.bit_length():  # at the first, and each time that they have doubled
            notice(f"Skipped {list_names(new)}: cannot be read ({len(self.skipped)} so far).")


class BatchesByStep(Dataset[Batch | Exception]):
    """The batch of a step, made in whichever process asks."""

    def __init__(self, source: Source, transform: Transform, order: Order, bad_images: BadImages) -> None:
        self.source = source
        self.transform = transform
        self.order = order
        self.bad_images = bad_images

    def __getitem__(self, step: int) -> Batch | Exception:
        try:
            return self.make(step)
        except (ValueError, OSError) as error:
            return error  # raised by the loader: from a worker, torch would wrap the sentence in its traceback

    def make(self, step: int) -> Batch:
        draws = self.order.locate(step)
        block = self.source.read_block(draws.indices)
        if block is not None:
            return self.build(step, block, draws)
        try:
            return self.build(step, [self.source.read(index)[0] for index in draws.indices.tolist()], draws)
        except BadImage:
            if self.bad_images == "error":
                raise
        images, draws, skipped = self.read_good_ones(draws)
        return replace(self.build(step, images, draws), skipped=tuple(skipped))

    def build(self, step: int, images: Images, draws: Draws) -> Batch:
        labels = self.source.labels.to_batch(draws.indices, len(self.source.class_names))
        return Batch(
            image=self.transform(images, draws),
            label=torch.from_numpy(labels),
            index=torch.from_numpy(draws.indices),
            step=step,
        )

    def read_good_ones(self, draws: Draws) -> tuple[list[StoredImage], Draws, list[str]]:
        """The images that can be decoded, and the names of those that cannot, each replaced if the order is a shuffled one."""
        images, epochs, indices, skipped = [], [], [], []
        for epoch, index in zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True):
            for candidate in self.list_candidates(epoch, index):
                image = self.read_if_good(candidate)
                if image is not None:
                    images.append(image)
                    epochs.append(epoch)
                    indices.append(candidate)
                    break
                skipped.append(self.source.name(candidate))
        return images, Draws(draws.seed, np.array(epochs, np.int64), np.array(indices, np.int64)), skipped

    def list_candidates(self, epoch: int, index: int) -> Iterator[int]:
        """The image itself and, in training, others to take its place."""
        yield index
        if not self.order.shuffle:
            return
        for attempt in range(MAX_REPLACEMENTS):
            yield int(hash_keys(self.order.seed, Purpose.REPLACEMENT, epoch, index, attempt)) % len(self.source)
        raise ValueError(
            f"{self.source.name(index)} and {MAX_REPLACEMENTS} images drawn in its place cannot be read: the data is damaged "
            "beyond skipping, fetch it again."
        )

    def read_if_good(self, index: int) -> StoredImage | None:
        try:
            image, _ = self.source.read(index)
            image.image()  # a whole header says nothing about what follows it
        except BadImage:
            return None
        return image


def choose_num_workers(source: Source) -> int:
    """None for small images in memory, else one for each processor that this process may use."""
    block = source.read_block(np.zeros(0, np.int64))
    if block is not None and max(block.shape[1:3]) <= MAX_BLOCK_SIDE:
        return 0
    return min(MAX_WORKERS, count_processors())

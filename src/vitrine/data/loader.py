"""From a source and an order to batches: read by several processes, ahead of time, from any step on.

A worker makes a whole batch, and a batch is a pure function of its step. So nothing but the step needs saving, and the number
of workers changes nothing but the speed.
"""

import itertools
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitrine.core.console import join_names, warn_user
from vitrine.data.augment.transforms import EvalTransform, Transform
from vitrine.data.batch import Batch
from vitrine.data.config import BadImages, LoaderConfig
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, SampleRng, StepSampler, hash_keys
from vitrine.data.scan import count_cpus
from vitrine.data.source import Source

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
        world_size: int = 1,
        pin_memory: bool = False,
    ) -> None:
        """With `shuffle`, a bad image that is to be skipped is replaced by another, so that batches keep their size;
        without, as in evaluation, it is left out."""
        if bad_images not in get_args(BadImages):
            raise ValueError(f"bad_images={bad_images!r} must be one of {', '.join(get_args(BadImages))}.")
        self.order = StepSampler(
            num_images=len(source),
            batch_size=config.batch_size,
            seed=seed,
            shuffle=shuffle,
            last=config.last,
            rank=rank,
            world_size=world_size,
        )
        self.batches = StepDataset(source, transform, self.order, bad_images)
        self.num_workers = choose_num_workers(source) if config.num_workers is None else config.num_workers
        self.prefetch = config.prefetch
        self.pin_memory = pin_memory
        self.data_wait_s = 0.0
        """Seconds that the consumer spent waiting for batches; near nothing where reading keeps up."""
        self.warn_skipped = True
        """False: the caller reports skipped images itself."""
        self.skipped: set[str] = set()
        """Names of the images that could not be read so far."""

    @property
    def steps_per_epoch(self) -> int:
        return self.order.steps_per_epoch

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The batches from one step to before another, or without end. What comes before is not read."""
        if start_step < 0:
            raise ValueError(f"start_step={start_step} must be at least 0.")
        steps = itertools.count(start_step) if stop_step is None else range(start_step, stop_step)
        return self.read_steps(self.batches, steps)

    def read_epoch(self) -> Iterator[Batch]:
        """Every image once: the first epoch, with a last batch that may be small, whatever the configuration says of it."""
        whole = self.batches
        batches = StepDataset(whole.source, whole.transform, replace(self.order, last="keep"), whole.bad_images)
        return self.read_steps(batches, range(batches.order.steps_per_epoch))

    def read_steps(self, batches: "StepDataset", steps: Iterable[int]) -> Iterator[Batch]:
        made = self.start_workers(batches, steps)
        try:
            while (batch := self.wait_for(made)) is not None:
                if isinstance(batch, Exception):
                    raise batch
                self.report_skipped(batch)
                yield batch
        finally:
            made = batch = None  # an error holds on to this frame, and the frame would hold on to the workers

    def wait_for(self, made: Iterator[Batch | Exception]) -> Batch | Exception | None:
        start = time.perf_counter()
        try:
            return next(made, None)
        except (RuntimeError, ConnectionError, EOFError) as error:
            if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
                raise
            raise OSError(
                "A process that reads images was killed, probably because memory ran out: take fewer of them "
                "(num_workers), a smaller prefetch or a smaller batch."
            ) from error
        finally:
            self.data_wait_s += time.perf_counter() - start

    def start_workers(self, batches: "StepDataset", steps: Iterable[int]) -> Iterator[Batch | Exception]:
        with warnings.catch_warnings():
            # Whoever asks for more workers than there are processors, as for a slow disk, has said so.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = DataLoader(
                batches,
                batch_size=None,
                sampler=steps,
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch if self.num_workers else None,
                pin_memory=self.pin_memory,
                worker_init_fn=leave_group if self.num_workers else None,
                generator=torch.Generator(),  # it draws a seed for its workers, which must not come out of everyone's generator
            )
            return iter(loader)

    def report_skipped(self, batch: Batch) -> None:
        new = sorted(set(batch.skipped) - self.skipped)
        told = len(self.skipped)
        self.skipped.update(new)
        if self.warn_skipped and len(self.skipped).bit_length() > told.bit_length():  # at the first, and each time that they have doubled
            warn_user(f"Skipped {join_names(new)}: cannot be read ({len(self.skipped)} so far).")


def build_eval_loader(
    source: Source,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    num_workers: int | None = None,
    bad_images: BadImages = "error",
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """Every image once (`read_epoch`), in order, as the preprocessing has it: for evaluation."""
    config = LoaderConfig(batch_size=-(-batch_size // world_size) * world_size, last="keep", num_workers=num_workers)
    transform = EvalTransform(preprocessing)
    return Loader(source, transform, config, shuffle=False, bad_images=bad_images, rank=rank, world_size=world_size)


@dataclass
class Sample:
    """A place in a batch, and the image that has it."""

    epoch: int
    candidates: Iterator[int]
    """What else may have it, should the image turn out to be bad."""
    index: int
    image: LazyImage


class StepDataset(Dataset[Batch | Exception]):
    """The batch of a step, made in whichever process asks."""

    def __init__(self, source: Source, transform: Transform, order: StepSampler, bad_images: BadImages) -> None:
        self.source = source
        self.transform = transform
        self.order = order
        self.bad_images: BadImages = bad_images

    def __getitem__(self, step: int) -> Batch | Exception:
        try:
            return self.make_batch(step)
        except (ValueError, OSError) as error:
            return error  # raised by the loader: from a worker, torch would wrap the sentence in its traceback

    def make_batch(self, step: int) -> Batch:
        draws = self.order.batch_at(step)
        block = self.source.read_block(draws.indices)
        if block is not None:
            return self.assemble(step, self.transform(block, draws), draws)
        skipped: list[str] = []
        samples = [
            self.open_sample(epoch, self.list_candidates(epoch, index), skipped)
            for epoch, index in zip(draws.epochs.tolist(), draws.indices.tolist(), strict=True)
        ]
        pixels, draws = self.transform_good_ones([sample for sample in samples if sample is not None], skipped)
        return replace(self.assemble(step, pixels, draws), skipped=tuple(skipped))

    def assemble(self, step: int, pixels: Tensor, draws: SampleRng) -> Batch:
        labels = self.source.labels.to_targets(draws.indices, len(self.source.class_names))
        return Batch(image=pixels, target=torch.from_numpy(labels), index=torch.from_numpy(draws.indices), step=step)

    def transform_good_ones(self, samples: list[Sample], skipped: list[str]) -> tuple[Tensor, SampleRng]:
        """Only decoding tells whether what follows a good header is good, too: then it is all done once more without it."""
        while True:
            epochs = np.array([sample.epoch for sample in samples], np.int64)
            indices = np.array([sample.index for sample in samples], np.int64)
            draws = SampleRng(self.order.seed, epochs, indices)
            try:
                return self.transform([sample.image for sample in samples], draws), draws
            except BadImage as error:
                place = next((place for place, sample in enumerate(samples) if sample.image is error.image), None)
                if self.bad_images == "error" or place is None:
                    raise
                bad = samples.pop(place)
                skipped.append(bad.image.name)
                other = self.open_sample(bad.epoch, bad.candidates, skipped)
                samples[place:place] = [] if other is None else [other]

    def open_sample(self, epoch: int, candidates: Iterator[int], skipped: list[str]) -> Sample | None:
        """With the first candidate that has a good header; None if there is none, which may be only in evaluation."""
        cause = None
        for index in candidates:
            try:
                return Sample(epoch, candidates, index, self.source.read(index)[0])
            except BadImage as error:
                if self.bad_images == "error":
                    raise
                skipped.append(self.source.name(index))
                cause = error
        if self.order.shuffle:
            raise ValueError(f"The data is damaged beyond skipping, {MAX_REPLACEMENTS} images in a row are bad: {cause}")
        return None

    def list_candidates(self, epoch: int, index: int) -> Iterator[int]:
        """The image itself and, in training, others to take its place."""
        yield index
        if self.order.shuffle:
            for attempt in range(MAX_REPLACEMENTS):
                yield int(hash_keys(self.order.seed, RngStream.REPLACEMENT, epoch, index, attempt)) % len(self.source)


def leave_group(worker: int) -> None:
    """Out of reach of signals to the whole group of processes, as Ctrl-C's or torchrun's: the run ends its workers itself."""
    os.setpgrp()


def choose_num_workers(source: Source) -> int:
    """None for images in memory, else one for each processor that this process has to itself."""
    if source.read_block(np.zeros(0, np.int64)) is not None:
        return 0
    num_neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes of this run on the machine, says torchrun
    return max(1, min(MAX_WORKERS, count_cpus() // num_neighbours))

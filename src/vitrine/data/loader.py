"""Loader: batches of a source from worker processes, starting at any step.

A worker makes a whole batch, and a batch is a pure function of its step. So a run only has to save the step, and the number of
workers changes nothing but the speed.
"""

import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import get_args

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from vitrine.core.console import join_names, name_setting, warn_user
from vitrine.core.processes import describe_children, exit_with_parent
from vitrine.data.augment.transforms import EvalTransform, Images, Transform
from vitrine.data.batch import Batch, Draw
from vitrine.data.config import LoaderConfig, TrainBadImages
from vitrine.data.image import BadImage, LazyImage
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, SampleRng, StepSampler, hash_keys
from vitrine.data.scan import count_cpus, reject_many_bad_images
from vitrine.data.source import Source

MAX_WORKERS = 32  # by default; a small model on a GPU takes more than 8 can deliver
MIN_WORKER_LIMIT, MAX_WORKERS_PER_CPU = 256, 32  # on request, e.g. for a slow disk
MAX_REPLACEMENTS = 100  # tried for one bad image; if all of them are bad, so is the data
POLL_S = 1.0  # between two looks at a request to stop, while no batch comes
RANKS_POLL_S = 10.0  # the same for several ranks, which can save together only if all get their batch


class LoadingStopped(OSError):
    """Raised when a stop was requested while the loader waited for a batch."""


class Loader:
    """Iterate over the batches of a source in a reproducible order, and record waiting time and skipped images."""

    def __init__(
        self,
        source: Source,
        transform: Transform,
        config: LoaderConfig,
        *,
        seed: int = 0,
        shuffle: bool = True,
        bad_images: TrainBadImages = "error",
        num_views: int = 1,
        draw: Draw | None = None,
        rank: int = 0,
        world_size: int = 1,
        pin_memory: bool = False,
    ) -> None:
        """Prepare to load `num_views` random views of each image; skipped images are replaced by others if `shuffle` is on.

        `draw` makes the random numbers of the objective (`Batch.draws`), in the worker processes.
        """
        if bad_images not in get_args(TrainBadImages):
            raise ValueError(f"bad_images={bad_images!r} must be one of {', '.join(get_args(TrainBadImages))}.")
        if num_views < 1:
            raise ValueError(f"num_views={num_views} must be at least 1.")
        self.sampler = StepSampler(
            num_images=len(source),
            batch_size=config.batch_size,
            seed=seed,
            shuffle=shuffle,
            last=config.last,
            rank=rank,
            world_size=world_size,
        )
        self.dataset = StepDataset(source, transform, self.sampler, bad_images, num_views, draw)
        self.num_workers = choose_num_workers(source) if config.num_workers is None else check_num_workers(config.num_workers)
        self.prefetch = config.prefetch
        self.stuck_after_s = config.stuck_after_s
        self.pin_memory = pin_memory
        self.is_stop_requested: Callable[[], bool] = lambda: False
        """Asked while no batch comes; if it returns True, LoadingStopped is raised."""
        self.waiting_since_s: float | None = None
        """Start of the wait for the next batch; None if nobody waits."""
        self.data_wait_s = 0.0
        """Seconds that the consumer has waited for batches; close to 0 if loading keeps up."""
        self.is_quiet = False
        """True: no warnings about skipped images, because the caller reports them."""
        self.skipped: set[str] = set()
        """Names of the images that could not be read so far."""

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """Iterate over the batches of steps start to stop (exclusive; None: endless). Earlier batches are not loaded."""
        if start_step < 0:
            raise ValueError(f"start_step={start_step} must be at least 0.")
        steps = itertools.count(start_step) if stop_step is None else range(start_step, stop_step)
        return self.read_steps(self.dataset, steps)

    def read_epoch(self) -> Iterator[Batch]:
        """Iterate over every image once: the first epoch, with a smaller last batch whatever the config's `last` is."""
        dataset = replace(self.dataset, sampler=replace(self.sampler, last="keep"))
        return self.read_steps(dataset, range(dataset.sampler.steps_per_epoch))

    def read_steps(self, dataset: "StepDataset", steps: Iterable[int]) -> Iterator[Batch]:
        """Yield the batches of the given steps; errors of workers are raised here, and skipped images are reported."""
        batches = self.start_workers(dataset, steps)
        is_over = Event()
        if self.num_workers > 0:
            Thread(target=self.report_long_waits, args=(is_over,), daemon=True).start()
        try:
            while (batch := self.wait_for_next(batches)) is not None:
                if isinstance(batch, BadImage):
                    raise BadImage(f"{batch} To leave out such images, set {name_setting('bad_images', 'skip')}.")
                if isinstance(batch, Exception):
                    raise batch
                self.warn_skipped(batch)
                yield batch
        finally:
            is_over.set()
            batches = batch = None  # an error keeps this frame alive, and the frame would keep the workers alive

    def start_workers(self, dataset: "StepDataset", steps: Iterable[int]) -> Iterator[Batch | Exception]:
        """Start torch's DataLoader, whose samples are whole batches."""
        with warnings.catch_warnings():
            # More workers than CPUs can be intended, e.g. for a slow disk.
            warnings.filterwarnings("ignore", "This DataLoader will create")
            loader = DataLoader(
                dataset,
                batch_size=None,
                sampler=steps,
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch if self.num_workers else None,
                pin_memory=self.pin_memory,
                timeout=0 if self.num_workers == 0 else POLL_S if self.sampler.world_size == 1 else RANKS_POLL_S,
                worker_init_fn=init_worker if self.num_workers else None,
                generator=torch.Generator(),  # seeds the workers; without it the global generator would be advanced
            )
            return iter(loader)

    def wait_for_next(self, batches: Iterator[Batch | Exception]) -> Batch | Exception | None:
        """Return the next batch, or None at the end, and add the waiting time to `data_wait_s`."""
        start = self.waiting_since_s = time.perf_counter()
        try:
            while True:
                try:
                    return next(batches, None)
                except RuntimeError as error:
                    if "DataLoader timed out" not in str(error):
                        raise
                if self.is_stop_requested():
                    raise LoadingStopped(f"Stopped while waiting for a batch of the worker processes {describe_children()}.")
        except (RuntimeError, ConnectionError, EOFError) as error:
            if isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error):
                raise
            remedy = "reduce num_workers, prefetch or batch_size"
            raise OSError(f"A worker process was killed, probably because memory ran out: {remedy}.") from error
        finally:
            self.waiting_since_s = None
            self.data_wait_s += time.perf_counter() - start

    def report_long_waits(self, is_over: Event) -> None:
        """In a thread: warn when no batch has come for `stuck_after_s`, twice that time, four times, and so on.

        A thread, because the wait itself may not return: a batch that is ready cannot be fetched from a stopped worker.
        """
        report_s = self.stuck_after_s
        while not is_over.wait(min(POLL_S, self.stuck_after_s)):
            start = self.waiting_since_s
            waited_s = 0.0 if start is None else time.perf_counter() - start
            if waited_s < self.stuck_after_s:
                report_s = self.stuck_after_s
            elif waited_s >= report_s:
                warn_user(f"No batch for {waited_s:.0f} s from the worker processes {describe_children()}; still waiting.")
                report_s *= 2

    def warn_skipped(self, batch: Batch) -> None:
        """Warn about skipped images: at the first one, and each time their number has doubled."""
        new = sorted(set(batch.skipped) - self.skipped)
        num_before = len(self.skipped)
        self.skipped.update(new)
        if self.dataset.bad_images == "skip-few" and new:
            reject_many_bad_images(self.skipped, len(self.dataset.source))
        if not self.is_quiet and len(self.skipped).bit_length() > num_before.bit_length():
            warn_user(f"Skipped {join_names(new)}: cannot be read ({len(self.skipped)} so far).")


def build_eval_loader(
    source: Source,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    num_workers: int | None = None,
    bad_images: TrainBadImages = "error",
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
) -> Loader:
    """Build a loader for evaluation: `read_epoch` gives every image once, in order, with resize and centre crop only.

    `batch_size` is that of each rank.
    """
    return Loader(
        source,
        EvalTransform(preprocessing),
        LoaderConfig(batch_size=batch_size * world_size, last="keep", num_workers=num_workers),
        shuffle=False,
        bad_images=bad_images,
        rank=rank,
        world_size=world_size,
        pin_memory=pin_memory,
    )


@dataclass(frozen=True, eq=False)
class StepDataset(Dataset[Batch | Exception]):
    """Map-style torch dataset from a step to its batch; used inside the worker processes."""

    source: Source
    transform: Transform
    sampler: StepSampler
    bad_images: TrainBadImages
    num_views: int = 1
    draw: Draw | None = None

    def __getitem__(self, step: int) -> Batch | Exception:
        try:
            return self.make_batch(step)
        except (ValueError, OSError) as error:
            return error  # raised by the loader: torch would wrap a worker's error in its traceback

    def make_batch(self, step: int) -> Batch:
        """Read, augment and collate the samples of a step, without the images that cannot be read."""
        rng = self.sampler.batch_at(step)
        block = self.source.read_block(rng.indices)
        if block is not None:  # small images in memory: no file can be bad
            return self.collate(step, block, rng)
        slots = Slots(self.source, self.sampler, self.bad_images, rng)  # files with a bad header are replaced here
        while True:
            try:
                return self.collate(step, [slot.image for slot in slots.slots], slots.rng, tuple(slots.skipped))
            except BadImage as error:  # some files fail only when decoded
                slots.replace(error)

    def collate(self, step: int, images: Images, rng: SampleRng, skipped: tuple[str, ...] = ()) -> Batch:
        """Transform the images once for each view; the first view also gives the targets."""
        targets = torch.from_numpy(self.source.labels.to_targets(rng.indices, len(self.source.class_names)))
        image, target = self.transform(images, targets, rng)
        views = tuple(self.transform(images, targets, replace(rng, view=view))[0] for view in range(1, self.num_views))
        index = torch.from_numpy(rng.indices)
        return Batch(image, target, index, step, views, {} if self.draw is None else self.draw(index, step), skipped)


@dataclass
class Slot:
    """One sample of a batch: its opened image, and the indices of images that may replace it."""

    epoch: int
    index: int
    image: LazyImage
    candidates: Iterator[int]


class Slots:
    """Samples of one batch with bad images replaced (training) or left out (evaluation)."""

    def __init__(self, source: Source, sampler: StepSampler, bad_images: TrainBadImages, rng: SampleRng) -> None:
        """Open the images of `rng`, or their replacements."""
        self.source = source
        self.sampler = sampler
        self.bad_images: TrainBadImages = bad_images
        self.skipped: list[str] = []
        self.slots: list[Slot] = []
        for epoch, index in zip(rng.epochs.tolist(), rng.indices.tolist(), strict=True):
            self.slots += self.open_slot(epoch, self.list_candidates(epoch, index))

    @property
    def rng(self) -> SampleRng:
        """Random numbers of the samples as they are now; a replacement draws its own."""
        epochs, indices = ([getattr(slot, name) for slot in self.slots] for name in ("epoch", "index"))
        return SampleRng(self.sampler.seed, np.array(epochs, np.int64), np.array(indices, np.int64))

    def replace(self, error: BadImage) -> None:
        """Replace the image that failed to decode, or raise its error if bad images are errors."""
        position = next((position for position, slot in enumerate(self.slots) if slot.image is error.image), None)
        if self.bad_images == "error" or position is None:
            raise error
        bad = self.slots[position]
        self.skipped.append(bad.image.name)
        self.slots[position : position + 1] = self.open_slot(bad.epoch, bad.candidates)

    def open_slot(self, epoch: int, candidates: Iterator[int]) -> list[Slot]:
        """Open the first candidate with a valid header; the list is empty if there is none, which happens in evaluation."""
        cause = None
        for index in candidates:
            try:
                return [Slot(epoch, index, self.source.read(index)[0], candidates)]
            except BadImage as error:
                if self.bad_images == "error":
                    raise
                self.skipped.append(self.source.name(index))
                cause = error
        if self.sampler.shuffle:
            raise ValueError(f"{MAX_REPLACEMENTS} randomly chosen images in a row cannot be read: repair the data ({cause})")
        return []

    def list_candidates(self, epoch: int, index: int) -> Iterator[int]:
        """Yield the image itself and, in training, random others to replace it."""
        yield index
        if self.sampler.shuffle:
            for attempt in range(MAX_REPLACEMENTS):
                yield int(hash_keys(self.sampler.seed, RngStream.REPLACEMENT, epoch, index, attempt)) % len(self.source)


def init_worker(worker: int) -> None:
    """Let a worker end with its run, and not by signals to the process group, e.g. Ctrl-C or torchrun's."""
    os.setpgrp()
    exit_with_parent()


def check_num_workers(num_workers: int) -> int:
    """Return the number of worker processes, or raise ValueError if this machine would be busy with starting them alone."""
    limit = max(MIN_WORKER_LIMIT, MAX_WORKERS_PER_CPU * count_cpus())
    if num_workers > limit:
        raise ValueError(f"num_workers={num_workers} is more than {limit}, the most for {count_cpus()} CPUs: lower it.")
    return num_workers


def choose_num_workers(source: Source) -> int:
    """Return the default number of workers: 0 for images in memory, else one per CPU that this rank can use."""
    if source.read_block(np.zeros(0, np.int64)) is not None:
        return 0
    ranks_on_machine = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # set by torchrun
    return max(1, min(MAX_WORKERS, count_cpus() // ranks_on_machine))

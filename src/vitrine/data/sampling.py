"""Order of images and random numbers as functions of (seed, epoch, index).

Random numbers as a pure function of what they are for: the same whoever asks, in whatever order, on however many machines.

There is no generator with a state. A number is a hash of (seed, purpose, epoch, index, ...), so a run that is resumed in the
middle, or spread over another number of workers, draws the same. Arrays of keys give arrays of numbers.
Which image comes at which step: computed, not kept, so that a run goes on anywhere at once, for any number of images.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np

from vitrine.data.config import LastBatch

# Steps and multipliers of SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class RngStream(IntEnum):
    """What a number is for. Two purposes never share a number; the values are part of every recorded run."""

    SAMPLE = 0
    ORDER = 1
    SUBSET = 2
    HELD_OUT = 3
    CROP = 4
    FLIP = 5
    RAND_AUGMENT = 6
    ERASING = 7
    REPLACEMENT = 8
    MIXING = 9
    MASKING = 10


def mix(keys: np.ndarray) -> np.ndarray:
    """Every bit of a 64-bit key changes about half the bits of what comes out; no two keys come out alike."""
    keys = (keys ^ (keys >> np.uint64(30))) * FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * SECOND
    return keys ^ (keys >> np.uint64(31))


def hash_keys(*keys: int | np.ndarray) -> np.ndarray:
    """uint64, in the shape that the keys broadcast to; their order matters."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic is modulo 2**64, as it should be
        for key in keys:
            state = mix((state + GOLDEN) ^ mix(to_uint64(key) + GOLDEN))
    return state


def to_uint64(key: int | np.ndarray) -> np.ndarray:
    if isinstance(key, np.ndarray):
        return key.astype(np.uint64)
    return np.asarray(int(key) & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)


def to_uniforms(hashes: np.ndarray) -> np.ndarray:
    """float64 in [0, 1), of all the 53 bits that it holds."""
    return (hashes >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class SampleRng:
    """The random numbers of some samples, B in all: each has its epoch and its index."""

    seed: int
    epochs: np.ndarray  # (B,)
    indices: np.ndarray  # (B,)

    def take(self, rows: np.ndarray) -> "SampleRng":
        """Those of some of the samples."""
        return SampleRng(self.seed, self.epochs[rows], self.indices[rows])

    def uniforms(self, purpose: RngStream, count: int, attempt: int = 0) -> np.ndarray:
        """(B, count) in [0, 1); another attempt gives others."""
        slots = hash_keys(purpose, attempt, np.arange(count))  # (count,)
        return to_uniforms(hash_keys(self.sample_keys[:, None], slots))

    @cached_property
    def sample_keys(self) -> np.ndarray:
        """One number for each sample, from which all others come."""
        return hash_keys(self.seed, RngStream.SAMPLE, self.epochs, self.indices)


# Of the Feistel network. Four make a strong permutation of a large set (Luby and Rackoff 1988); small sets want more.
NUM_ROUNDS, NUM_ROUNDS_OF_FEW = 8, 24
FEW_BITS = 4

# Up to so many images the shuffle of an epoch is kept as a table: 2 MB, made in a few hundredths of a second.
MAX_TABLE = 2**18


@dataclass(frozen=True, kw_only=True)
class StepSampler:
    """The order of `num_images` in global batches, of which this rank has its part.

    All ranks agree on the batch; a rank's part is a run of neighbours, and holds both or none of samples 2k and 2k + 1 of the
    batch wherever the batch size allows, because these are mixed with each other.
    """

    num_images: int
    batch_size: int
    """Of all ranks together."""
    seed: int = 0
    shuffle: bool = True
    last: LastBatch = "wrap"
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.num_images < 1:
            raise ValueError("There are no images to put in order: check data.split, data.subset and data.exclude.")
        if self.world_size < 1:
            raise ValueError(f"world_size={self.world_size} must be at least 1.")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ValueError(
                f"batch_size={self.batch_size} must be at least 1 and a multiple of the number of processes, {self.world_size}."
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must be at least 0 and below world_size={self.world_size}.")
        if self.last == "drop" and self.num_images < self.batch_size:
            raise ValueError(
                f"last='drop' leaves nothing of {self.num_images} images in batches of {self.batch_size}: take a smaller "
                "batch, or last='wrap'."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in which every image comes once; a last one that is not full counts, unless it is dropped."""
        full, rest = divmod(self.num_images, self.batch_size)
        return full + (rest > 0 and self.last != "drop")

    def batch_at(self, step: int) -> SampleRng:
        """The samples of this rank at a step, each with its epoch and its index."""
        epochs, positions = self.locate_batch(step)
        mine = slice(*self.bounds(len(positions)))
        epochs, positions = epochs[mine], positions[mine]
        return SampleRng(self.seed, epochs, self.shuffle_positions(positions, epochs) if self.shuffle else positions)

    def shuffle_positions(self, positions: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        if self.num_images > MAX_TABLE:
            return permute(positions, self.num_images, self.seed, epochs)
        indices = np.empty_like(positions)
        for epoch in set(epochs.tolist()):
            here = epochs == epoch
            indices[here] = permute_all(self.num_images, self.seed, epoch)[positions[here]]
        return indices

    def locate_batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Epoch, and position within it, of every sample of the global batch."""
        if self.last == "wrap":  # one epoch runs on into the next, as after `repeat().batch()` in the released code
            places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
            return places // self.num_images, places % self.num_images
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self.batch_size
        positions = np.arange(start, min(start + self.batch_size, self.num_images))
        return np.full_like(positions, epoch), positions

    def bounds(self, num_samples: int) -> tuple[int, int]:
        """Where this rank's part of a batch begins and ends."""
        unit = 2 if self.batch_size // self.world_size % 2 == 0 else 1
        units = -(-num_samples // unit)
        start, end = (units * rank // self.world_size * unit for rank in (self.rank, self.rank + 1))
        return start, min(end, num_samples)


@lru_cache(maxsize=4)
def permute_all(size: int, seed: int, epoch: int) -> np.ndarray:
    """The whole shuffle: of a small set it is quicker made once than a batch at a time."""
    return permute(np.arange(size), size, seed, np.full(size, epoch))


def permute(positions: np.ndarray, size: int, seed: int, epochs: np.ndarray) -> np.ndarray:
    """Where a shuffle of range(size) puts each position: a bijection for every (seed, epoch), without a table of it.

    A Feistel network permutes the numbers of as many bits as `size` needs; what falls outside is sent through again until it
    is inside, which takes less than two turns on average and keeps it a bijection.
    """
    bits = max(size - 1, 0).bit_length()
    different, which = np.unique(epochs, return_inverse=True)
    rounds = np.arange(NUM_ROUNDS if bits > FEW_BITS else NUM_ROUNDS_OF_FEW)
    keys = hash_keys(seed, RngStream.ORDER, different[:, None], rounds)[which].T  # (rounds, B)
    values = shuffle_bits(positions.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = shuffle_bits(values[outside], bits, keys[:, outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def shuffle_bits(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """A permutation of 0 .. 2**bits - 1 for each column of keys (rounds, B): halves of the bits change each other in turn."""
    low_bits = bits // 2
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << (bits - low_bits)) - 1)
    low, high = values & low_mask, values >> np.uint64(low_bits)
    for number, key in enumerate(keys):
        if number % 2:
            low = low ^ (mix(high + key) & low_mask)
        else:
            high = high ^ (mix(low + key) & high_mask)
    return (high << np.uint64(low_bits)) | low

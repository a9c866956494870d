"""The images of a step and their random numbers: functions of (seed, epoch, index), with no state.

A random number is a hash of (seed, stream, epoch, index, ...). So a run that is resumed, or spread over another number of
workers or ranks, sees the same images in the same order and draws the same numbers. Nothing is kept and nothing is skipped
over: any step is computed at once, for any number of images. B samples.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np

from vitrine.data.config import LastBatch

# Increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

# Rounds of the Feistel network. Four make a strong permutation of a large set (Luby and Rackoff 1988); small sets need more.
NUM_ROUNDS, NUM_ROUNDS_OF_FEW = 8, 24
FEW_BITS = 4

# Up to this many images, the shuffle of an epoch is kept as a table: 2 MB, computed in a few hundredths of a second.
MAX_TABLE = 2**18


class RngStream(IntEnum):
    """Purpose of a random number. Streams are independent of each other; their values are part of every recorded run."""

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
    VIEW = 11


def hash_keys(*keys: int | np.ndarray) -> np.ndarray:
    """Hash integers, or arrays of them, to uint64 of their broadcast shape; the order of the keys matters."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        for key in keys:
            state = mix_bits((state + GOLDEN) ^ mix_bits(to_uint64(key) + GOLDEN))
    return state


def to_uint64(key: int | np.ndarray) -> np.ndarray:
    """Convert to uint64; negative and large Python integers are taken modulo 2**64."""
    if isinstance(key, np.ndarray):
        return key.astype(np.uint64)
    return np.asarray(int(key) & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)


def mix_bits(keys: np.ndarray) -> np.ndarray:
    """Scramble uint64 values with a bijection: every input bit changes about half of the output bits."""
    keys = (keys ^ (keys >> np.uint64(30))) * FIRST
    keys = (keys ^ (keys >> np.uint64(27))) * SECOND
    return keys ^ (keys >> np.uint64(31))


def to_uniforms(hashes: np.ndarray) -> np.ndarray:
    """Turn uint64 hashes into float64 in [0, 1) with all of its 53 bits."""
    return (hashes >> np.uint64(11)) * 2.0**-53


@dataclass(frozen=True)
class SampleRng:
    """Random numbers of the B samples of a batch, given their epochs and their indices in the source."""

    seed: int
    epochs: np.ndarray  # (B,)
    indices: np.ndarray  # (B,)
    view: int = 0
    """Number of the random view to make of each image."""

    def take(self, rows: np.ndarray) -> "SampleRng":
        """Return the random numbers of some of the samples."""
        return SampleRng(self.seed, self.epochs[rows], self.indices[rows], self.view)

    def uniforms(self, stream: RngStream, count: int, attempt: int = 0) -> np.ndarray:
        """Draw (B, count) numbers in [0, 1) from a stream; another attempt gives other numbers."""
        slots = hash_keys(stream, attempt, np.arange(count))  # (count,)
        return to_uniforms(hash_keys(self.sample_keys[:, None], slots))

    @cached_property
    def sample_keys(self) -> np.ndarray:
        """One key for each sample, from which all of its numbers are drawn."""
        if self.view == 0:
            return hash_keys(self.seed, RngStream.SAMPLE, self.epochs, self.indices)
        return hash_keys(self.seed, RngStream.VIEW, self.epochs, self.indices, self.view)


@dataclass(frozen=True, kw_only=True)
class StepSampler:
    """Order of images: for each step, the epochs and indices of this rank's samples.

    All ranks agree on the global batch, and each takes a contiguous part of it. Samples 2k and 2k + 1 of the batch are mixup
    partners, so a part contains both or neither of them wherever the batch size allows it.
    """

    num_images: int
    batch_size: int
    """Global batch size, over all ranks."""
    seed: int = 0
    shuffle: bool = True
    last: LastBatch = "wrap"
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.num_images < 1:
            raise ValueError("There are no images to load: check data.split, data.subset and data.exclude.")
        if self.world_size < 1:
            raise ValueError(f"world_size={self.world_size} must be at least 1.")
        if self.batch_size < 1 or self.batch_size % self.world_size:
            raise ValueError(f"batch_size={self.batch_size} must be a positive multiple of the processes, {self.world_size}.")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank={self.rank} must be at least 0 and below world_size={self.world_size}.")
        if self.last == "drop" and self.num_images < self.batch_size:
            sizes = f"{self.num_images} images and batch_size={self.batch_size}"
            raise ValueError(f"last='drop' leaves no batch of {sizes}: reduce batch_size, or use last='wrap'.")

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches that contain every image once; an incomplete last one counts unless it is dropped."""
        full, rest = divmod(self.num_images, self.batch_size)
        return full + (rest > 0 and self.last != "drop")

    def batch_at(self, step: int) -> SampleRng:
        """Return this rank's samples at a step: their epochs and indices, as a source of their random numbers."""
        epochs, positions = self.global_batch_at(step)
        start, end = self.rank_bounds(len(positions))
        epochs, positions = epochs[start:end], positions[start:end]
        return SampleRng(self.seed, epochs, self.shuffle_positions(positions, epochs) if self.shuffle else positions)

    def global_batch_at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch of every sample of the global batch, and its position within the epoch before shuffling."""
        if self.last == "wrap":  # one epoch continues into the next, like `repeat().batch()` in the released code
            positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
            return positions // self.num_images, positions % self.num_images
        epoch, batch = divmod(step, self.steps_per_epoch)
        start = batch * self.batch_size
        positions = np.arange(start, min(start + self.batch_size, self.num_images))
        return np.full_like(positions, epoch), positions

    def rank_bounds(self, num_samples: int) -> tuple[int, int]:
        """Return start and end of this rank's part of a global batch."""
        unit = 2 if self.batch_size // self.world_size % 2 == 0 else 1
        units = -(-num_samples // unit)
        start, end = (units * rank // self.world_size * unit for rank in (self.rank, self.rank + 1))
        return start, min(end, num_samples)

    def shuffle_positions(self, positions: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Map positions within shuffled epochs to indices of images."""
        if self.num_images > MAX_TABLE:
            return permute(positions, self.num_images, self.seed, epochs)
        indices = np.empty_like(positions)
        for epoch in set(epochs.tolist()):
            here = epochs == epoch
            indices[here] = permute_all(self.num_images, self.seed, epoch)[positions[here]]
        return indices


@lru_cache(maxsize=4)
def permute_all(size: int, seed: int, epoch: int) -> np.ndarray:
    """Return the whole shuffle of an epoch as a table: for few images, faster than permuting batch by batch."""
    return permute(np.arange(size), size, seed, np.full(size, epoch))


def permute(positions: np.ndarray, size: int, seed: int, epochs: np.ndarray) -> np.ndarray:
    """Map each position to its index in a pseudo-random permutation of range(size), one for every (seed, epoch).

    No table is needed: a Feistel network permutes all numbers with as many bits as `size`, and results outside of the range
    are permuted again until they are inside. That keeps it a bijection, and takes less than two passes on average.
    """
    bits = max(size - 1, 0).bit_length()
    distinct, inverse = np.unique(epochs, return_inverse=True)
    rounds = np.arange(NUM_ROUNDS if bits > FEW_BITS else NUM_ROUNDS_OF_FEW)
    keys = hash_keys(seed, RngStream.ORDER, distinct[:, None], rounds)[inverse].T  # (rounds, B)
    values = shuffle_bits(positions.astype(np.uint64), bits, keys)
    outside = np.flatnonzero(values >= size)
    while len(outside):
        values[outside] = shuffle_bits(values[outside], bits, keys[:, outside])
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def shuffle_bits(values: np.ndarray, bits: int, keys: np.ndarray) -> np.ndarray:
    """Permute values in 0 .. 2**bits - 1 by a Feistel network, in which the halves of the bits change each other in turn."""
    low_bits = bits // 2
    low_mask, high_mask = np.uint64((1 << low_bits) - 1), np.uint64((1 << (bits - low_bits)) - 1)
    low, high = values & low_mask, values >> np.uint64(low_bits)
    for round_number, key in enumerate(keys):  # (rounds, B)
        if round_number % 2:
            low = low ^ (mix_bits(high + key) & low_mask)
        else:
            high = high ^ (mix_bits(low + key) & high_mask)
    return (high << np.uint64(low_bits)) | low

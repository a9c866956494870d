"""Which image comes at which step: computed, not kept, so that a run goes on anywhere at once, for any number of images."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vitrine.data.config import LastBatch
from vitrine.data.draws import Draws, Purpose, hash_keys, mix

# Of the Feistel network. Four make a strong permutation of a large set (Luby and Rackoff 1988); small sets want more.
NUM_ROUNDS, NUM_ROUNDS_OF_FEW = 8, 24
FEW_BITS = 4

# Up to so many images the shuffle of an epoch is kept as a table: 2 MB, made in a few hundredths of a second.
MAX_TABLE = 2**18


@dataclass(frozen=True, kw_only=True)
class Order:
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
    num_ranks: int = 1

    def __post_init__(self) -> None:
        if self.num_images < 1:
            raise ValueError("There are no images to put in order: check data.split, data.subset and data.exclude.")
        if self.num_ranks < 1:
            raise ValueError(f"num_ranks={self.num_ranks} must be at least 1.")
        if self.batch_size < 1 or self.batch_size % self.num_ranks:
            raise ValueError(
                f"batch_size={self.batch_size} must be at least 1 and a multiple of the number of processes, {self.num_ranks}."
            )
        if not 0 <= self.rank < self.num_ranks:
            raise ValueError(f"rank={self.rank} must be at least 0 and below num_ranks={self.num_ranks}.")
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

    def locate(self, step: int) -> Draws:
        """The samples of this rank at a step, each with its epoch and its index."""
        epochs, positions = self.locate_batch(step)
        mine = slice(*self.bounds(len(positions)))
        epochs, positions = epochs[mine], positions[mine]
        return Draws(self.seed, epochs, self.shuffle_positions(positions, epochs) if self.shuffle else positions)

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
        unit = 2 if self.batch_size // self.num_ranks % 2 == 0 else 1
        units = -(-num_samples // unit)
        start, end = (units * rank // self.num_ranks * unit for rank in (self.rank, self.rank + 1))
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
    keys = hash_keys(seed, Purpose.ORDER, different[:, None], rounds)[which].T  # (rounds, B)
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

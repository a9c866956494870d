"""Random numbers as a pure function of what they are for: the same whoever asks, in whatever order, on however many machines.

There is no generator with a state. A number is a hash of (seed, purpose, epoch, index, ...), so a run that is resumed in the
middle, or spread over another number of workers, draws the same. Arrays of keys give arrays of numbers.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

# Steps and multipliers of SplitMix64 (Steele, Lea and Flood 2014, with the constants of Stafford's variant 13).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Purpose(IntEnum):
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
class Draws:
    """The random numbers of some samples, B in all: each has its epoch and its index."""

    seed: int
    epochs: np.ndarray  # (B,)
    indices: np.ndarray  # (B,)

    def take(self, rows: np.ndarray) -> "Draws":
        """Those of some of the samples."""
        return Draws(self.seed, self.epochs[rows], self.indices[rows])

    def uniforms(self, purpose: Purpose, count: int, attempt: int = 0) -> np.ndarray:
        """(B, count) in [0, 1); another attempt gives others."""
        slots = hash_keys(purpose, attempt, np.arange(count))  # (count,)
        return to_uniforms(hash_keys(self.sample_keys[:, None], slots))

    @cached_property
    def sample_keys(self) -> np.ndarray:
        """One number for each sample, from which all others come."""
        return hash_keys(self.seed, Purpose.SAMPLE, self.epochs, self.indices)

"""Several sources one after another, as one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitrine.data.source import Labels, Source


class Joined(Source):
    """Images of all parts, whose classes are the same and whose names differ, in the order of the parts."""

    def __init__(self, parts: Sequence[Source]) -> None:
        assert len({part.class_names for part in parts}) == 1
        self.parts = tuple(parts)
        self.starts = np.cumsum([0, *map(len, parts)])
        self.labels = Labels.concatenate([part.labels for part in parts])
        self.class_names = parts[0].class_names

    def find(self, index: int) -> tuple[Source, int]:
        """The part that has the image, and its number there."""
        place = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.parts[place], index - int(self.starts[place])

    def fetch(self, index: int) -> bytes | np.ndarray:
        part, within = self.find(index)
        return part.fetch(within)

    def name(self, index: int) -> str:
        part, within = self.find(index)
        return part.name(within)

    def files(self) -> list[Path]:
        return list(dict.fromkeys(file for part in self.parts for file in part.files()))

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        places = np.searchsorted(self.starts, indices, side="right") - 1  # (B)
        blocks = [part.read_block(indices[places == i] - self.starts[i]) for i, part in enumerate(self.parts)]
        if any(block is None for block in blocks) or len({block.shape[1:] for block in blocks if block is not None}) > 1:
            return None
        order = np.argsort(places, kind="stable")  # from here to there: the images part by part
        together = np.concatenate([block for block in blocks if block is not None])
        block = np.empty_like(together)
        block[order] = together
        return block

"""The images of a source under other labels."""

from pathlib import Path

import numpy as np

from vitrine.data.source import Labels, Source


class Relabelled(Source):
    def __init__(self, source: Source, labels: Labels, class_names: tuple[str, ...]) -> None:
        assert len(labels) == len(source)
        self.source = source
        self.labels = labels
        self.class_names = class_names

    def fetch(self, index: int) -> bytes | np.ndarray:
        return self.source.fetch(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def files(self) -> list[Path]:
        return self.source.files()

    def read_block(self, indices: np.ndarray) -> np.ndarray | None:
        return self.source.read_block(indices)

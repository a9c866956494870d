"""Image files wherever they lie, called as they were given; without labels."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.data.names import Names
from vitrine.data.source import Labels, Source
from vitrine.data.sources.files import open_regular
from vitrine.data.sources.listing import walk


class PathsSource(Source):
    def __init__(self, paths: Sequence[str]) -> None:
        self.names = Names.pack(paths)
        self.labels = Labels.none_each(len(paths))
        self.class_names = ()

    def fetch(self, index: int) -> bytes:
        with open(self.name(index), "rb", buffering=0, opener=open_regular) as file:
            return file.read()

    def name(self, index: int) -> str:
        return self.names[index]

    def files(self) -> list[Path]:
        return [Path(self.name(index)) for index in range(len(self))]


def open_paths(paths: Sequence[Path]) -> PathsSource:
    """Files as they are, of folders the images at any depth, each once. What is no image is found out when it is read."""
    found: dict[str, None] = {}
    for path in paths:
        inside = [str(path / name) for name in sorted(walk(str(path), "", set(), []))] if path.is_dir() else [str(path)]
        if not inside:
            raise ValueError(f"{path} has no image in it, at whatever depth: give another folder, or files.")
        found.update(dict.fromkeys(inside))
    return PathsSource(list(found))

"""Images that are files below one folder, each known by its path within it."""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from vitrine.data.names import Names
from vitrine.data.source import Labels, Source


class FileSource(Source):
    """One image a file; its name is its path below `root`, with forward slashes."""

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels: Labels,
        class_names: tuple[str, ...],
        side_files: Sequence[Path] = (),
    ) -> None:
        """`side_files` are those that say what the images show: a change of them is one of the data."""
        assert len(paths) == len(labels)
        self.names = Names.pack(paths)
        self.root = root.absolute()
        self.labels = labels
        self.class_names = class_names
        self.side_files = [path.absolute() for path in side_files]

    def fetch(self, index: int) -> bytes:
        # Joined as text, because a Path for each image would cost more than the check in `open_regular`.
        with open(os.path.join(self.root, self.name(index)), "rb", buffering=0, opener=open_regular) as file:
            return file.read()

    def name(self, index: int) -> str:
        return self.names[index]

    def files(self) -> list[Path]:
        """Those of the images, in their order, and then the side files."""
        return [*(self.root / self.name(index) for index in range(len(self))), *self.side_files]


def open_regular(path: str, flags: int) -> int:
    """Opens for `open`, but no pipe, which would be waited for, and no device, which may never end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)  # otherwise a pipe is waited for here already
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor

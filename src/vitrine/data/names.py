"""Many names as one block of bytes instead of a string each.

It takes less memory, is quickly sent to another process, and stays shared after a fork, where counting references to
strings would copy page after page.
"""

from collections.abc import Iterable

import numpy as np


class Names:
    """Names by number. Those of files may hold bytes that are no UTF-8, which come back as they were."""

    def __init__(self, starts: np.ndarray, text: np.ndarray) -> None:
        """Name i is `text` (bytes) from starts[i] to starts[i + 1]."""
        self.starts = starts
        self.text = text

    @classmethod
    def pack(cls, names: Iterable[str]) -> "Names":
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)  # (N + 1)
        return cls(starts, np.frombuffer(b"".join(encoded), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> str:
        return self.text[self.starts[index] : self.starts[index + 1]].tobytes().decode("utf-8", "surrogateescape")

    def slice(self, start: int, stop: int) -> "Names":
        """Those from one number to before another, on the same bytes."""
        return Names(self.starts[start : stop + 1], self.text)

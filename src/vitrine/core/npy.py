"""What NumPy's files say of their arrays before any of it is read."""

from typing import IO, Any

import numpy as np


def read_npy_header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first (Fortran's order), and type; the numbers follow in `content`."""
    version = np.lib.format.read_magic(content)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(content)
    return np.lib.format.read_array_header_2_0(content)

"""Headers as NumPy itself writes them."""

import io

import numpy as np
import pytest

from vitrine.core.npy import read_npy_header


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_header_is_read_and_no_more(version: tuple[int, int], order: str) -> None:
    array = np.asarray(np.arange(6, dtype=np.int16).reshape(2, 3), order=order)
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    file.seek(0)
    assert read_npy_header(file) == ((2, 3), order == "F", np.dtype(np.int16))
    assert file.read() == array.tobytes(order="A")


def test_what_is_no_array_is_an_error() -> None:
    with pytest.raises(ValueError, match="magic"):
        read_npy_header(io.BytesIO(b"nothing of the kind"))

"""Names in, names out."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrine.data.names import Names

FILE_NAMES = st.binary(max_size=12).map(lambda content: content.decode("utf-8", "surrogateescape"))


@given(st.lists(FILE_NAMES, max_size=20))
def test_every_name_comes_back(names: list[str]) -> None:
    packed = Names.pack(names)
    assert len(packed) == len(names)
    assert [packed[index] for index in range(len(names))] == names
    again = pickle.loads(pickle.dumps(packed))
    assert [again[index] for index in range(len(names))] == names


def test_a_slice_counts_from_its_start() -> None:
    part = Names.pack(["a", "", "ü", "cat/1.jpg"]).slice(1, 4)
    assert [part[index] for index in range(len(part))] == ["", "ü", "cat/1.jpg"]
    assert len(Names.pack("abc").slice(2, 2)) == 0


def test_what_is_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        Names.pack(["a"])[1]

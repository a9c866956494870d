"""Tests of data/sources/annotations.py.

Text, JSON and lists of classes: read as written, or refused in a sentence.
Class numbers that are given to a source, or refused.
"""

import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from vitrine.data.source import Labels
from vitrine.data.sources.annotations import (
    load_class_list,
    load_json,
    numbered_class_names,
    open_text,
    quote,
    read_bytes,
    read_lines,
    read_text,
    readable_errors,
    validate_labels,
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError("no number for it. And more"), "no number for it"),
        (EOFError(), "EOFError"),
        (MemoryError(), "MemoryError"),
        (zlib.error("incorrect header check"), "incorrect header check"),
    ],
)
def test_what_ends_reading_becomes_a_sentence(error: Exception, reason: str) -> None:
    expected = f"a/b.gz cannot be read ({reason})"
    with (
        pytest.raises(ValueError, match=f"^{re.escape(expected)}"),
        readable_errors(Path("a/b.gz"), "expected a map", "draw it again"),
    ):
        raise error


def test_what_does_not_exist_stays_a_file_not_found() -> None:
    with (
        pytest.raises(FileNotFoundError, match=r"^b does not exist"),
        readable_errors(Path("b")),
    ):
        raise FileNotFoundError(2, "No such file or directory")


def test_sentences_pass_unless_a_parser_may_raise_anything() -> None:
    with pytest.raises(ValueError, match=r"^our own$"), readable_errors(Path("b")):
        raise ValueError("our own")
    with pytest.raises(ValueError, match=r"^b cannot be read \(theirs\)"), readable_errors(Path("b"), failures=Exception):
        raise ValueError("theirs")


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes("\ufefffirst\r\n\r\n  größer  \n\nlast\u2028line".encode())
    assert read_lines(path) == [(1, "first"), (3, "größer"), (5, "last\u2028line")]
    path.write_bytes(b"")
    assert read_lines(path) == []


def test_as_much_as_allowed_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bytes(tmp_path / "file", 3) == b"123"
    assert read_bytes(tmp_path / "file") == b"12345"


def test_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"1": [2, "three"]}')
    assert load_json(tmp_path / "a.json") == {"1": [2, "three"]}


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"a": 1', b"[" * 100_000, b"9" * 5000], ids=["empty", "cut", "cut later", "deep", "many digits"]
)
def test_what_is_not_json_costs_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is not JSON \(.+\)"):
        load_json(tmp_path / "a.json")


def test_what_is_not_text_or_not_there_costs_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8 text \(see b'abc\\xff'\)"):
        read_lines(tmp_path / "a.txt")
    with pytest.raises(FileNotFoundError, match=r"b\.txt does not exist"):
        read_lines(tmp_path / "b.txt")
    with pytest.raises(ValueError, match=r"cannot be read \(Is a directory\)"):
        read_lines(tmp_path)


def test_text_comes_as_it_is_and_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffgrün\r\nrot\r".encode())
    assert read_text(path) == "grün\r\nrot\r"
    assert read_text(path, limit=3) == "grü"
    path.write_bytes(b"x\n" * 100_000 + b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"is not UTF-8 text \(see b'.*caf\\xe9'\)"), open_text(path) as file:  # noqa: PT012
        for line in file:
            assert line == "x\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"cat\ndog\n", {"cat": "cat", "dog": "dog"}),
        (
            b"\xef\xbb\xbfn03\tthe third\r\n n02 \r\nn01\tna\xc3\xafve cat\r\n\r\n",
            {"n03": "the third", "n02": "n02", "n01": "naïve cat"},
        ),
        (b"cat\rdog\r", {"cat": "cat", "dog": "dog"}),  # as some programs on the Mac still write
        (None, None),
    ],
)
def test_class_lists_keep_their_order(tmp_path: Path, content: bytes | None, expected: dict[str, str] | None) -> None:
    if content is not None:
        (tmp_path / "classes.txt").write_bytes(content)
    found = load_class_list(tmp_path)
    assert found == expected
    assert found is None or list(found) == list(expected or ())


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"cat\n\ndog\n", "line 2 is empty"),
        (b"", "line 1 is empty"),
        (b"cat\ndog\ncat\tagain\n", "line 3 repeats cat"),
        (
            b"cat\nd\xf6g\n",
            "is not UTF-8 text (see b'cat\\nd\\xf6')",
        ),
        ("cat\ndog\n".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_bad_class_lists_cost_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "classes.txt").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path / 'classes.txt'} {sentence}")):
        load_class_list(tmp_path)


def test_a_class_list_that_is_a_folder_costs_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").mkdir()
    sentence = "cannot be read (Is a directory)"
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_class_list(tmp_path)


def test_long_lines_are_quoted_in_part() -> None:
    assert quote("a\tb") == r"'a\tb'"
    assert len(quote("x" * 1000)) < 100


NAMES = ("cat", "dog", "fox")


def settle(labels: Labels) -> tuple[Labels, tuple[str, ...]]:
    return validate_labels(labels, NAMES, "here", "{}.png".format)


def test_labels_among_the_classes() -> None:
    labels, names = settle(Labels.one_each([2, 0]))
    assert (labels.values.tolist(), names) == ([2, 0], NAMES)
    several, names = settle(Labels.several_each([[2, 0], [], [1]]))
    assert ([several[index] for index in range(3)], names) == ([(2, 0), (), (1,)], NAMES)
    assert numbered_class_names(3) == ("0", "1", "2")


@pytest.mark.parametrize("labels", [Labels.one_each([-1, -1]), Labels.several_each([[], []])])
def test_none_at_all(labels: Labels) -> None:
    none, names = settle(labels)
    assert (len(none), none[1], names) == (2, (), ())


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (Labels.one_each([0, -1, -2]), r"here has 1 labels"),
        (Labels.several_each([[0], [1, 2, -1]]), r"1\.png is the first of 1 images without"),
        (Labels.several_each([[-1], [-1]]), r"0\.png is the first of 2 images without"),
        (Labels.one_each([0, 3]), r"1\.png has label 3"),
        (Labels.several_each([[0], [], [1, 9]]), r"2\.png has label \(1, 9\)"),
        (Labels.one_each(np.array([2**62])), "names 3 classes"),
    ],
)
def test_what_is_refused(labels: Labels, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        settle(labels)

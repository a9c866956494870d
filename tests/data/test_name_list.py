"""Lists of names are read back as they were written."""

from pathlib import Path

import pytest

from vitrine.data.name_list import read_names, write_names


def test_names_come_back(tmp_path: Path) -> None:
    names = ["train/cat/a.jpg", "train/dög/b c.jpg", "bad\udce9.png", "#1.png"]
    write_names(tmp_path / "list.txt", names, "Left out.")
    assert read_names(tmp_path / "list.txt") == set(names)
    assert (tmp_path / "list.txt").read_bytes().startswith(b"# Left out.\n")


@pytest.mark.parametrize("name", [" a.png", "a.png\n", "a\nb.png", "# a.png"])
def test_names_that_would_not_come_back_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot stand on a line"):
        write_names(tmp_path / "list.txt", [name], "Left out.")
    assert not (tmp_path / "list.txt").exists()


def test_no_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be a text file with the name of an image on each line"):
        read_names(tmp_path / "missing.txt")

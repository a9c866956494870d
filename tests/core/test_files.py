"""Files are written whole or not at all."""

import json
from pathlib import Path

import pytest

from vitrine.core.files import write_json


def test_json_is_written_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, 2]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, 2]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", 1)
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", object())
    assert (tmp_path / "a.json").read_text() == "1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=r"it is a folder\. Give the name of a file in it\."):
        write_json(tmp_path, 1)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere does not exist\. Create it first\."):
        write_json(tmp_path / "nowhere" / "a.json", 1)

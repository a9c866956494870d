"""Files of splits by name, folder and pattern; braces compared with bash."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from vitrine.core.console import VitrineWarning
from vitrine.data.sources.shards import choose_files, expand_braces, expand_pattern, find_files, locate, read_stamp


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def list_names(folder: Path) -> dict[str | None, list[str]]:
    found = find_files(folder, (".tar", ".tgz"))
    return {split: [path.relative_to(folder).as_posix() for path in paths] for split, paths in found.items()}


def test_splits_by_the_first_word_of_a_name(tmp_path: Path) -> None:
    touch(tmp_path, "train-001.tar", "train-000.tar", "validation.tar", "Test_0.tgz", "val3.tar", "notes.txt", ".train-9.tar")
    touch(tmp_path, "trainer-0.tar", "0.tar", "train.tar.d/x", "my-train.tar")
    (tmp_path / "train-9.tar").mkdir()
    assert list_names(tmp_path) == {
        "train": ["train-000.tar", "train-001.tar"],
        "val": ["val3.tar", "validation.tar"],
        "test": ["Test_0.tgz"],
        None: ["0.tar", "my-train.tar", "trainer-0.tar"],
    }


def test_splits_by_folder(tmp_path: Path) -> None:
    touch(tmp_path, "train/1.tar", "train/0.tar", "valid/0.tar", "other/0.tar", "train-2.tar", "test/notes.txt")
    assert list_names(tmp_path) == {"train": ["train-2.tar", "train/0.tar", "train/1.tar"], "val": ["valid/0.tar"]}
    assert list_names(tmp_path / "test") == {}


def test_choose_files(tmp_path: Path) -> None:
    touch(tmp_path, "train-0.tar", "val-0.tar")
    found = find_files(tmp_path, ".tar")
    train, val = tmp_path / "train-0.tar", tmp_path / "val-0.tar"
    assert choose_files(tmp_path, found, "val") == ([val], [train, val])
    touch(tmp_path, "extra-0.tar")
    with pytest.warns(VitrineWarning, match=r"left out extra-0\.tar"):
        chosen = choose_files(tmp_path, find_files(tmp_path, ".tar"), "train")
    assert chosen == ([train], [train, val])


def test_locate_finds_part_and_index() -> None:
    sizes = [2, 0, 3]
    expected = [(part, number) for part, size in enumerate(sizes) for number in range(size)]
    assert [locate(np.cumsum(sizes), index) for index in range(5)] == expected


@pytest.mark.parametrize("pattern", ["a{000..011}b", "{1..3}{x,y}", "{08..11}", "{a,b{1,2}}", "plain", "{5..3}", "a{0..7"])
def test_braces_equal_those_of_bash(pattern: str) -> None:
    result = subprocess.run(["bash", "-c", f"echo {pattern}"], capture_output=True, text=True, check=True)
    assert set(expand_braces(pattern)) == set(result.stdout.split())


def test_patterns(tmp_path: Path) -> None:
    touch(tmp_path, "a[1]/x-0.tar", "a[1]/x-1.tar", "a[1]/y-0.tar", "a1/x-0.tar")
    folder = tmp_path / "a[1]"
    assert expand_pattern(folder / "x-{0..1}.tar") == [folder / "x-0.tar", folder / "x-1.tar"]
    assert expand_pattern(folder / "{x,y}-0.tar") == [folder / "x-0.tar", folder / "y-0.tar"]
    assert expand_pattern(tmp_path / "*" / "x-*.tar") == [tmp_path / "a1" / "x-0.tar", folder / "x-0.tar", folder / "x-1.tar"]
    with pytest.raises(FileNotFoundError, match=r"x-2\.tar does not exist"):
        expand_pattern(folder / "x-{0..999999999}.tar")
    with pytest.raises(FileNotFoundError, match=r"z-\*\.tar does not exist"):
        expand_pattern(folder / "z-*.tar")


def test_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(b"1234")
    before = read_stamp(path)
    assert before[0] == 4
    with open(path, "rb") as file:
        assert read_stamp(file.fileno()) == before
    os.utime(path, ns=(0, before[1] + 1000))
    assert read_stamp(path) == (4, before[1] + 1000)

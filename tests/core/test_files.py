"""Files and folders are replaced atomically; JSON, CSV and output path checks."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitrine.core import files
from vitrine.core.files import MAX_JSON_BYTES, atomic_file, atomic_folder, check_output_files, read_json, write_csv, write_json


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


@pytest.mark.parametrize(
    ("content", "named"),
    [("[1]", "object, not a list"), ("{", "not valid JSON"), ("\0", "not valid JSON"), ("[" * 100_000, "JSON")],
)
def test_only_json_objects_are_read(content: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=rf"a\.json .*{named}"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"x": 1}')
    assert read_json(tmp_path / "a.json") == {"x": 1}


def test_a_huge_file_is_not_read_as_json(tmp_path: Path) -> None:
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)  # sparse
    with pytest.raises(ValueError, match="64 MB"):
        read_json(tmp_path / "a.json")


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=12)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(rows=st.integers(2, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1)))
def test_csv_cells_are_read_back_unchanged(rows: list[list[str]], tmp_path: Path) -> None:
    """Commas, quotes, line ends and any letters."""
    write_csv(tmp_path / "a.csv", rows[0], rows[1:])
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == rows


def test_numbers_in_csv_keep_all_digits_and_none_is_an_empty_cell(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ("name", "fraction", "wrong"), iter([("größer 猫", 0.1 + 0.2, None), ("b", 7, "c")]))
    text = (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert text.splitlines() == ["name,fraction,wrong", "größer 猫,0.30000000000000004,", "b,7,c"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_csv_without_rows_has_its_header(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ("x", "y"), [])
    assert (tmp_path / "a.csv").read_text().splitlines() == ["x,y"]


def test_file_names_that_are_not_utf_8_keep_their_bytes_in_csv(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", ("image", "class"), [(os.fsdecode(b"\xff.png"), "x")])
    assert (tmp_path / "a.csv").read_bytes().splitlines() == [b"image,class", b"\xff.png,x"]


def test_rows_that_fail_leave_the_old_csv(tmp_path: Path) -> None:
    def fail() -> Iterator[tuple[str]]:
        yield ("new",)
        raise ValueError("no more rows")

    (tmp_path / "a.csv").write_text("old")
    with pytest.raises(ValueError, match="no more rows"):
        write_csv(tmp_path / "a.csv", ("x",), fail())
    assert read_tree(tmp_path) == {"a.csv": "old"}


def test_output_files_are_checked_without_writing(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path)
    for free in ("new.json", "old.json", "link/größer.json"):
        check_output_files(tmp_path / free)
    assert read_tree(tmp_path) == {"old.json": "old"}  # nothing is made or changed
    for folder in (tmp_path, tmp_path / "link"):
        with pytest.raises(IsADirectoryError, match="folder"):
            check_output_files(folder)
    for missing in (tmp_path / "no" / "a.json", tmp_path / "old.json" / "a.json"):
        with pytest.raises(FileNotFoundError, match=r"a\.json.*does not exist"):
            check_output_files(None, missing)
    check_output_files(None, tmp_path / "a", tmp_path / "b")
    with pytest.raises(ValueError, match=r"a.*link/a"):
        check_output_files(tmp_path / "a", None, tmp_path / "link" / "a")


def test_a_name_without_a_folder_is_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_output_files(Path("a.json"))
    write_csv(Path("a.csv"), ("x",), [])
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def write_file(path: Path, text: str, error: Callable[[], BaseException] | None = None) -> None:
    with atomic_file(path) as partial:
        partial.write_text(text)
        if error is not None:
            raise error()


OWN_FILES = ("config.json", "old.bin", "new.bin")


def write_folder(path: Path, text: str, error: Callable[[], BaseException] | None = None) -> None:
    with atomic_folder(path, OWN_FILES) as partial:
        (partial / "config.json").write_text(text)
        (partial / f"{text}.bin").write_text(text)
        if error is not None:
            raise error()


def read_tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def make_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


NEW_FOLDER = {"a/config.json": "new", "a/new.bin": "new"}
OLD_FOLDER = {"a/config.json": "old", "a/old.bin": "old"}


def test_a_file_is_replaced_only_at_the_end(tmp_path: Path) -> None:
    make_tree(tmp_path, {"a": "old", "b": "beside"})
    with atomic_file(tmp_path / "a") as partial:
        partial.write_text("new")
        assert (tmp_path / "a").read_text() == "old"
    assert read_tree(tmp_path) == {"a": "new", "b": "beside"}


def test_a_folder_is_replaced_only_at_the_end(tmp_path: Path) -> None:
    make_tree(tmp_path, {**OLD_FOLDER, "b": "beside"})
    with atomic_folder(tmp_path / "a", OWN_FILES) as partial:
        (partial / "config.json").write_text("new")
        assert (tmp_path / "a" / "config.json").read_text() == "old"
    assert read_tree(tmp_path) == {"a/config.json": "new", "b": "beside"}  # nothing of the old one is mixed in
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("write", [write_file, write_folder])
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_leaves_nothing(write: Callable[..., None], error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error):
        write(tmp_path / "a", "new", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("write", "old"), [(write_file, {"a": "old"}), (write_folder, OLD_FOLDER)])
def test_a_failure_leaves_the_old_content(write: Callable[..., None], old: dict[str, str], tmp_path: Path) -> None:
    make_tree(tmp_path, old)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a", "new", KeyboardInterrupt)
    assert read_tree(tmp_path) == old
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path, OLD_FOLDER)
    replace = os.replace

    def replace_or_fail(source: Path, target: Path) -> None:
        if (Path(source) / "new.bin").exists():
            raise OSError("disk full")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_or_fail)
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "a", "new")
    assert read_tree(tmp_path) == OLD_FOLDER
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_folder(tmp_path / "a", "new")
    assert read_tree(tmp_path) == NEW_FOLDER


@pytest.mark.parametrize("foreign", [{"a/photo.jpg": "mine"}, {"a/config.json/inner": "mine"}, {"a": "mine"}])
def test_a_folder_with_other_files_is_not_replaced(foreign: dict[str, str], tmp_path: Path) -> None:
    make_tree(tmp_path, foreign)
    with pytest.raises(FileExistsError, match=r"a.*\((photo\.jpg|config\.json|a)\)"):
        write_folder(tmp_path / "a", "new")
    assert read_tree(tmp_path) == foreign


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_missing_parent_folder_is_named(write: Callable[..., None], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"b.*no does not exist"):
        write(tmp_path / "no" / "b", "new")
    assert list(tmp_path.iterdir()) == []


# Ends the process as SIGKILL would, with nothing cleaned up: within the block, or at the given rename.
KILLED = """
import os, sys
from pathlib import Path
from vitrine.core.files import atomic_file, atomic_folder
kind, path, survived = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
replace = os.replace
def replace_or_die(source, target):
    global survived
    if survived == 0:
        os._exit(9)
    survived -= 1
    replace(source, target)
os.replace = replace_or_die
with atomic_file(path) if kind == "file" else atomic_folder(path, ("config.json", "old.bin", "new.bin")) as partial:
    (partial if kind == "file" else partial / "config.json").write_text("half")
"""


def kill_while_writing(kind: str, path: Path, survived_renames: int = 0) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, kind, str(path), str(survived_renames)])
    assert done.returncode == 9
    assert [beside.name for beside in path.parent.iterdir()] != [path.name]


def test_the_remains_of_a_killed_process_are_replaced(tmp_path: Path) -> None:
    write_file(tmp_path / "a", "old")
    kill_while_writing("file", tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    write_file(tmp_path / "a", "new")
    assert read_tree(tmp_path) == {"a": "new"}


@pytest.mark.parametrize("survived_renames", [0, 1])
def test_the_remains_of_a_folder_of_a_killed_process_are_removed(survived_renames: int, tmp_path: Path) -> None:
    make_tree(tmp_path, OLD_FOLDER)
    kill_while_writing("folder", tmp_path / "a", survived_renames)
    write_folder(tmp_path / "a", "new")
    assert read_tree(tmp_path) == NEW_FOLDER
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("survived_renames", [0, 1])
def test_the_old_folder_survives_a_killed_process_and_a_failure(survived_renames: int, tmp_path: Path) -> None:
    """Killed between the two renames, the old content has another name and is the only complete one."""
    make_tree(tmp_path, OLD_FOLDER)
    kill_while_writing("folder", tmp_path / "a", survived_renames)
    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "a", "new", lambda: OSError("disk full"))
    assert "old" in read_tree(tmp_path).values()


def test_a_backup_beside_it_is_left_alone(tmp_path: Path) -> None:
    """`mv a a.old`, to keep it, and then a new `a`."""
    make_tree(tmp_path, {"a.old/config.json": "mine"})
    write_folder(tmp_path / "a", "new")
    assert read_tree(tmp_path) == {"a.old/config.json": "mine", **NEW_FOLDER}


def test_a_link_to_a_folder_can_be_written_twice(tmp_path: Path) -> None:
    make_tree(tmp_path, {"real/config.json": "old"})
    (tmp_path / "a").symlink_to(tmp_path / "real")
    for text in ("old", "new"):
        write_folder(tmp_path / "a", text)
    assert read_tree(tmp_path / "a") == {"config.json": "new", "new.bin": "new"}


@pytest.mark.parametrize(
    ("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750), (0o077, 0o600, 0o700)]
)
def test_written_files_follow_the_umask(umask: int, file_mode: int, folder_mode: int, tmp_path: Path) -> None:
    """Also where a library writes a file that only its owner may read."""
    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "file") as partial:
            partial.write_text("new")
            partial.chmod(0o600)
        with atomic_folder(tmp_path / "a", OWN_FILES) as partial:
            (partial / "config.json").write_text("new")
            (partial / "config.json").chmod(0o600)
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("file", "a", "a/config.json")]
    assert modes == [file_mode, folder_mode, file_mode]


@pytest.mark.parametrize("write", [write_file, write_folder])
def test_only_one_process_writes_a_file_or_folder(write: Callable[..., None], tmp_path: Path) -> None:
    def write_second() -> BaseException:
        with pytest.raises(BlockingIOError, match=str(os.getpid())):
            write(tmp_path / "a", "new")
        return ValueError("the first one fails too")

    with pytest.raises(ValueError, match="first"):
        write(tmp_path / "a", "old", write_second)
    write(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def record_disk(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record which files and folders are synced, and which names are given to them, in this order."""
    events: list[tuple[str, str]] = []
    sync, rename = files.sync_to_disk, os.replace
    monkeypatch.setattr(files, "sync_to_disk", lambda path: (events.append(("sync", path.name)), sync(path)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append(("rename", Path(new).name)), rename(old, new)))
    return events


def test_a_folder_and_its_files_are_on_disk_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = record_disk(monkeypatch)
    with atomic_folder(tmp_path / "model", ["a", "b"]) as partial:
        (partial / "a").write_text("1")
        (partial / "b").write_text("2")
    renamed = events.index(("rename", "model"))
    assert {name for kind, name in events[:renamed] if kind == "sync"} == {"a", "b", partial.name}
    assert events[renamed + 1 :] == [("sync", tmp_path.name)]


def test_a_file_is_on_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = record_disk(monkeypatch)
    with atomic_file(tmp_path / "a.json") as partial:
        partial.write_text("1")
    assert events == [("sync", partial.name), ("rename", "a.json"), ("sync", tmp_path.name)]

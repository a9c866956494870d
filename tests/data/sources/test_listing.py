"""Folders and what is in them: images told from other files, links followed once, errors named."""

import os
from pathlib import Path

import pytest

from tests.data.sources.test_folder import write_image, write_images
from vitrine.data.sources.listing import IMAGE_SUFFIXES, Level, holds_image, list_folder, list_images, look_into


def find_images(root: Path, part: str = "") -> tuple[list[str], list[str]]:
    """The images, and what is neither an image nor expected beside them."""
    level = look_into(str(root), part)
    others = [] if part else [*level.others]
    return list_images(str(root), part, level, others), others


def test_folders_are_listed_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b", "A", "a", ".hidden", "10", "9"):
        (tmp_path / name).touch()
    assert list_folder(tmp_path) == ["10", "9", "A", "a", "b"]
    with pytest.raises(FileNotFoundError, match="gone does not exist, and a folder of images was needed"):
        list_folder(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"a cannot be listed \(Not a directory\), and images were looked for in it"):
        list_folder(tmp_path / "a")


def test_a_level_is_what_lies_directly_in_a_folder(tmp_path: Path) -> None:
    write_images(tmp_path, "part/1.png", "part/full/deep/2.png")
    (tmp_path / "part" / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "part" / "notes.xml").touch()
    assert look_into(str(tmp_path)) == Level([], ["part"], [], [])
    assert look_into(str(tmp_path), "part") == Level(["1.png"], ["full"], ["empty"], ["part/notes.xml"])


def test_images_at_any_depth_are_sorted_by_their_paths(tmp_path: Path) -> None:
    write_images(tmp_path, "a/z.png", "a/b/c/1.png", "a-b/1.png", "c.png", "a.png")
    (tmp_path / "a" / "b" / "c" / "boxes.xml").touch()
    assert find_images(tmp_path) == (["a-b/1.png", "a.png", "a/b/c/1.png", "a/z.png", "c.png"], ["a/b/c/boxes.xml"])
    assert find_images(tmp_path, "a") == (["a/b/c/1.png", "a/z.png"], ["a/b/c/boxes.xml"])


def test_all_suffixes_and_nothing_else(tmp_path: Path) -> None:
    images = [f"cat/{index:02}{suffix.upper()}" for index, suffix in enumerate(sorted(IMAGE_SUFFIXES))]
    hidden = [".git/1.png", "cat/._1.png", "cat/.cache/1.png", "__MACOSX/cat/1.png", "cat/__MACOSX/1.png"]
    quiet = ["LICENSE", "cat/Thumbs.db", "cat/desktop.ini", "README.md", "cat/a.txt", "a.json", "a.csv"]
    for path in images + hidden + quiet:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")  # listing does not look inside
    assert find_images(tmp_path) == (images, [])
    assert look_into(str(tmp_path)).full == ["cat"]


def test_links_are_followed(tmp_path: Path) -> None:
    store, root = tmp_path / "store", tmp_path / "root"
    write_images(store, "1.png", "more/2.png")
    write_images(root, "dog/1.png")
    (root / "cat").symlink_to(store, target_is_directory=True)
    (root / "dog" / "linked.png").symlink_to(store / "1.png")
    (root / "dog" / "nowhere.png").symlink_to(store / "gone.png")  # reading says that it is not there
    names = ["cat/1.png", "cat/more/2.png", "dog/1.png", "dog/linked.png", "dog/nowhere.png"]
    assert find_images(root) == (names, [])


def test_links_in_circles_end(tmp_path: Path) -> None:
    root = write_images(tmp_path / "root", "cat/1.png", "dog/1.png")
    for place, target in (("cat/up", root), ("dog/self", root / "dog"), ("whole", root), ("cat/a", root / "cat/b")):
        (root / place).symlink_to(target, target_is_directory=True)
    (root / "cat/b").symlink_to(root / "cat/a", target_is_directory=True)
    # a and b lead to each other and to nothing
    assert find_images(root) == (["cat/1.png", "dog/1.png"], ["cat/a", "cat/b"])


def test_links_that_multiply_are_walked_once(tmp_path: Path) -> None:
    """Thirty folders with two links each to the next are a billion paths."""
    for index in range(30):
        (tmp_path / f"store/{index}").mkdir(parents=True)
        for link in "ab":
            (tmp_path / f"store/{index}/{link}").symlink_to(tmp_path / f"store/{index + 1}", target_is_directory=True)
    write_images(tmp_path, "store/30/1.png", "root/dog/1.png")
    (tmp_path / "root/cat").symlink_to(tmp_path / "store/0", target_is_directory=True)
    assert find_images(tmp_path / "root")[0] == [f"cat/{'a/' * 30}1.png", "dog/1.png"]


def test_pipes_are_no_images(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png")
    os.mkfifo(tmp_path / "2.png")
    assert find_images(tmp_path) == (["1.png"], ["2.png"])


def test_a_search_for_an_image_has_its_limits(tmp_path: Path) -> None:
    write_image(tmp_path / "a/b/c/1.png")
    assert holds_image(str(tmp_path), set())
    assert holds_image(str(tmp_path), set(), max_folders=4)
    assert not holds_image(str(tmp_path), set(), max_folders=3)
    assert not holds_image(str(tmp_path), set(), max_entries=0)
    with pytest.raises(FileNotFoundError, match="gone does not exist"):
        holds_image(str(tmp_path / "gone"), set())

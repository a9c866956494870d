"""Image files by path, and walking of folders with links, other files and errors."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.test_folder import write_image, write_images
from vitrine.core.console import VitrineWarning
from vitrine.data.image import IMAGE_SUFFIXES, BadImage
from vitrine.data.source import Labels
from vitrine.data.sources.image_files import (
    FileSource,
    Level,
    find_image,
    list_folder,
    list_images,
    open_paths,
    read_level,
)

PATHS = ["b/größe.png", "a.png", "b/with space.png"]


def make_files(folder: Path) -> Path:
    (folder / "b").mkdir(parents=True)
    for shade, path in enumerate(PATHS):
        Image.new("RGB", (3, 2), (shade, 0, 0)).save(folder / path)
    return folder


def open_files(folder: Path) -> FileSource:
    return FileSource(folder, PATHS, Labels.one_each([1, 0, 1]), ("red", "redder"))


def test_images_and_labels_keep_their_order(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    assert len(source) == 3
    assert [source.name(index) for index in range(3)] == PATHS
    for index, path in enumerate(PATHS):
        image, label = source.read(index)
        assert (image.name, label) == (path, [1, 0, 1][index])
        assert source.fetch(index) == (tmp_path / path).read_bytes()
        np.testing.assert_array_equal(image.to_numpy(), np.full((2, 3, 3), [index, 0, 0]))


def test_files_are_absolute_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    source = open_files(Path("data"))
    monkeypatch.chdir("/")
    assert source.files() == [tmp_path / "data" / path for path in PATHS]
    assert source.read(1)[0].to_numpy()[0, 0].tolist() == [1, 0, 0]


def test_pickle_is_small(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    source.read(0)
    sent = pickle.loads(pickle.dumps(source))
    assert [sent.name(index) for index in range(3)] == PATHS
    assert sent.fetch(2) == source.fetch(2)
    names = [f"train/n{index % 1000:08}/n{index:012}.jpg" for index in range(100_000)]
    many = FileSource(tmp_path, names, Labels.one_each(np.zeros(100_000)), ("one",))
    assert len(pickle.dumps(many)) < sum(map(len, names)) + 100_000 * (8 + 8) + 1000  # names, their starts, labels
    assert many.name(77_777) == names[77_777]


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        (tmp_path / name).write_bytes(b"content")
    except OSError:
        pytest.skip("this file system has names in Unicode only")
    assert FileSource(tmp_path, [name], Labels.one_each([0]), ("a",)).fetch(0) == b"content"


def test_missing_file_is_a_bad_image(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    (tmp_path / "a.png").unlink()
    with pytest.raises(BadImage, match=r"a\.png.*No such file"):
        source.read(1)


def test_pipes_devices_and_folders_are_bad_images(tmp_path: Path) -> None:
    make_files(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    source = FileSource(tmp_path, ["pipe.png", "/dev/zero", "b", "a.png"], Labels.none_each(4), ())
    num_open = len(os.listdir("/dev/fd"))
    for index in range(3):
        with pytest.raises(BadImage, match=rf"{source.name(index)} .*not a regular file"):
            source.read(index)
    assert source.read(3)[0].width == 3
    assert len(os.listdir("/dev/fd")) == num_open


def test_side_files_come_after_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    source = FileSource(Path("data"), PATHS, Labels.none_each(3), (), [Path("data/labels.txt"), Path("names.txt")])
    images = [tmp_path / "data" / path for path in PATHS]
    assert source.files() == [*images, tmp_path / "data" / "labels.txt", tmp_path / "names.txt"]


def find_images(root: Path, part: str = "") -> tuple[list[str], list[str]]:
    """Return the images, and the files that are not expected beside them."""
    level = read_level(str(root), part)
    others = [] if part else [*level.others]
    return list_images(str(root), part, level, others), others


def test_folders_are_listed_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b", "A", "a", ".hidden", "10", "9"):
        (tmp_path / name).touch()
    assert list_folder(tmp_path) == ["10", "9", "A", "a", "b"]
    with pytest.raises(FileNotFoundError, match="gone does not exist"):
        list_folder(tmp_path / "gone")
    with pytest.raises(ValueError, match="Not a directory"):
        list_folder(tmp_path / "a")


def test_level_lists_the_entries_of_a_folder(tmp_path: Path) -> None:
    write_images(tmp_path, "part/1.png", "part/full/deep/2.png")
    (tmp_path / "part" / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "part" / "notes.xml").touch()
    assert read_level(str(tmp_path)) == Level([], ["part"], ["part"], [], [])
    assert read_level(str(tmp_path), "part") == Level(["1.png"], ["full"], [], ["empty"], ["part/notes.xml"])


def test_images_at_any_depth_are_sorted_by_path(tmp_path: Path) -> None:
    write_images(tmp_path, "a/z.png", "a/b/c/1.png", "a-b/1.png", "c.png", "a.png")
    (tmp_path / "a" / "b" / "c" / "boxes.xml").touch()
    assert find_images(tmp_path) == (["a-b/1.png", "a.png", "a/b/c/1.png", "a/z.png", "c.png"], ["a/b/c/boxes.xml"])
    assert find_images(tmp_path, "a") == (["a/b/c/1.png", "a/z.png"], ["a/b/c/boxes.xml"])


def test_images_are_recognised_by_suffix(tmp_path: Path) -> None:
    images = [f"cat/{index:02}{suffix.upper()}" for index, suffix in enumerate(sorted(IMAGE_SUFFIXES))]
    hidden = [".git/1.png", "cat/._1.png", "cat/.cache/1.png", "__MACOSX/cat/1.png", "cat/__MACOSX/1.png"]
    quiet = ["LICENSE", "cat/Thumbs.db", "cat/desktop.ini", "README.md", "cat/a.txt", "a.json", "a.csv"]
    for path in images + hidden + quiet:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"")  # contents are not read
    assert find_images(tmp_path) == (images, [])
    assert read_level(str(tmp_path)).full == ["cat"]


def test_links_are_followed(tmp_path: Path) -> None:
    store, root = tmp_path / "store", tmp_path / "root"
    write_images(store, "1.png", "more/2.png")
    write_images(root, "dog/1.png")
    (root / "cat").symlink_to(store, target_is_directory=True)
    (root / "dog" / "linked.png").symlink_to(store / "1.png")
    (root / "dog" / "nowhere.png").symlink_to(store / "gone.png")  # fails when it is read
    names = ["cat/1.png", "cat/more/2.png", "dog/1.png", "dog/linked.png", "dog/nowhere.png"]
    assert find_images(root) == (names, [])


def test_circular_links(tmp_path: Path) -> None:
    root = write_images(tmp_path / "root", "cat/1.png", "dog/1.png")
    for place, target in (("cat/up", root), ("dog/self", root / "dog"), ("whole", root), ("cat/a", root / "cat/b")):
        (root / place).symlink_to(target, target_is_directory=True)
    (root / "cat/b").symlink_to(root / "cat/a", target_is_directory=True)
    # a and b point to each other
    assert find_images(root) == (["cat/1.png", "dog/1.png"], ["cat/a", "cat/b"])


def test_folders_reached_by_many_links_are_walked_once(tmp_path: Path) -> None:
    """Thirty folders with two links each to the next make a billion paths."""
    for index in range(30):
        (tmp_path / f"store/{index}").mkdir(parents=True)
        for link in "ab":
            (tmp_path / f"store/{index}/{link}").symlink_to(tmp_path / f"store/{index + 1}", target_is_directory=True)
    write_images(tmp_path, "store/30/1.png", "root/dog/1.png")
    (tmp_path / "root/cat").symlink_to(tmp_path / "store/0", target_is_directory=True)
    assert find_images(tmp_path / "root")[0] == [f"cat/{'a/' * 30}1.png", "dog/1.png"]


def test_pipes_are_not_images(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png")
    os.mkfifo(tmp_path / "2.png")
    assert find_images(tmp_path) == (["1.png"], ["2.png"])


def test_search_for_an_image_is_limited(tmp_path: Path) -> None:
    write_image(tmp_path / "a/b/c/1.png")
    assert find_image(str(tmp_path), set()) == f"{tmp_path}/a/b/c"
    assert find_image(str(tmp_path), set(), max_folders=4) == f"{tmp_path}/a/b/c"
    assert find_image(str(tmp_path), set(), max_folders=3) is None
    assert find_image(str(tmp_path), set(), max_entries=0) is None
    with pytest.raises(FileNotFoundError, match="gone does not exist"):
        find_image(str(tmp_path / "gone"), set())


def paint(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (shade, 0, 0)).save(path)
    return path


def list_names(source: FileSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_paths_keep_their_order_without_labels(tmp_path: Path) -> None:
    files = [paint(tmp_path / name, shade) for shade, name in enumerate(["b.png", "größe 猫.png", "a/c.png"])]
    source = open_paths(files)
    assert list_names(source) == list(map(str, files))
    assert source.files() == files
    assert source.class_names == ()
    for index, file in enumerate(files):
        image, label = source.read(index)
        assert (image.name, label) == (str(file), ())
        assert source.fetch(index) == file.read_bytes()
        np.testing.assert_array_equal(image.to_numpy(), np.full((2, 3, 3), [index, 0, 0]))


def test_folder_means_all_images_inside(tmp_path: Path) -> None:
    names = ["z.png", "a/b/c.png", "a.JPG", "a/d.webp"]
    for name in names:
        paint(tmp_path / "photos" / Path(name).with_suffix(".png")).rename(tmp_path / "photos" / name)
    for name in ("notes.txt", "film.mp4", ".hidden.png", "a/Thumbs.db"):
        (tmp_path / "photos" / name).write_text("")
    first = paint(tmp_path / "first.png")
    with pytest.warns(VitrineWarning, match=r"photos: left out 1 files .*1 \.mp4"):
        source = open_paths([first, tmp_path / "photos"])
    assert list_names(source) == [str(first), *(str(tmp_path / "photos" / name) for name in sorted(names))]


def test_named_file_needs_no_suffix(tmp_path: Path) -> None:
    file = paint(tmp_path / "a.png").rename(tmp_path / "no suffix")
    assert open_paths([file]).read(0)[0].width == 3


def test_repeated_files_count_once(tmp_path: Path) -> None:
    one, two, three = (paint(tmp_path / f"{name}.png") for name in ("one", "two", "three"))
    source = open_paths([two, tmp_path, one, two, tmp_path])
    assert list_names(source) == list(map(str, [two, one, three]))


def test_relative_paths_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint(tmp_path / "photos" / "a.png", shade=7)
    paint(tmp_path / "b.png", shade=8)
    monkeypatch.chdir(tmp_path)
    source = open_paths([Path("b.png"), Path("photos")])
    assert list_names(source) == ["b.png", "photos/a.png"]
    assert source.read(1)[0].to_numpy()[0, 0].tolist() == [7, 0, 0]


def test_links_to_a_folder_count_once(tmp_path: Path) -> None:
    paint(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    assert list_names(open_paths([tmp_path / "link"])) == [str(tmp_path / "link" / "a.png")]


def test_paths_that_are_not_unicode(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        file.write_bytes(b"content")
    except OSError:
        pytest.skip("this file system has names in Unicode only")
    for paths in ([file], [tmp_path]):
        source = open_paths(paths)
        assert (source.fetch(0), source.files()) == (b"content", [file])


def test_bad_files_are_errors_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("words")
    names = ["gone.png", "words.png"]
    source = open_paths([tmp_path / name for name in names])
    for index, name in enumerate(names):
        with pytest.raises(BadImage, match=name):
            source.read(index)


def test_folder_without_images_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "empty" / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"empty contains no images"):
        open_paths([paint(tmp_path / "a.png"), tmp_path / "empty"])

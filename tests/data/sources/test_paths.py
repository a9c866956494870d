"""Files wherever they lie, under the names that they were given."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.decode import BadImage
from vitrine.data.sources.paths import PathsSource, open_paths


def paint(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (shade, 0, 0)).save(path)
    return path


def list_names(source: PathsSource) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_files_come_in_the_order_given_without_labels(tmp_path: Path) -> None:
    files = [paint(tmp_path / name, shade) for shade, name in enumerate(["b.png", "größe 猫.png", "a/c.png"])]
    source = open_paths(files)
    assert list_names(source) == list(map(str, files))
    assert source.files() == files
    assert source.class_names == ()
    for index, file in enumerate(files):
        image, label = source.read(index)
        assert (image.name, label) == (str(file), ())
        assert source.fetch(index) == file.read_bytes()
        np.testing.assert_array_equal(image.pixels(), np.full((2, 3, 3), [index, 0, 0]))


def test_a_folder_stands_for_the_images_in_it_at_any_depth(tmp_path: Path) -> None:
    names = ["z.png", "a/b/c.png", "a.JPG", "a/d.webp"]
    for name in names:
        paint(tmp_path / "photos" / Path(name).with_suffix(".png")).rename(tmp_path / "photos" / name)
    for name in ("notes.txt", "film.mp4", ".hidden.png", "a/Thumbs.db"):
        (tmp_path / "photos" / name).write_text("")
    first = paint(tmp_path / "first.png")
    source = open_paths([first, tmp_path / "photos"])
    assert list_names(source) == [str(first), *(str(tmp_path / "photos" / name) for name in sorted(names))]


def test_a_file_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    file = paint(tmp_path / "a.png").rename(tmp_path / "no suffix")
    assert open_paths([file]).read(0)[0].width == 3


def test_each_file_counts_once_where_it_was_first_named(tmp_path: Path) -> None:
    one, two, three = (paint(tmp_path / f"{name}.png") for name in ("one", "two", "three"))
    source = open_paths([two, tmp_path, one, two, tmp_path])
    assert list_names(source) == list(map(str, [two, one, three]))


def test_names_are_as_given_from_the_folder_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint(tmp_path / "photos" / "a.png", shade=7)
    paint(tmp_path / "b.png", shade=8)
    monkeypatch.chdir(tmp_path)
    source = open_paths([Path("b.png"), Path("photos")])
    assert list_names(source) == ["b.png", "photos/a.png"]
    assert source.read(1)[0].pixels()[0, 0].tolist() == [7, 0, 0]


def test_links_are_followed_and_a_folder_counts_once(tmp_path: Path) -> None:
    paint(tmp_path / "photos" / "a.png")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    assert list_names(open_paths([tmp_path / "link"])) == [str(tmp_path / "link" / "a.png")]


def test_it_can_be_sent_to_another_process(tmp_path: Path) -> None:
    source = open_paths([paint(tmp_path / "größe.png", 1), paint(tmp_path / "a.png", 2)])
    sent = pickle.loads(pickle.dumps(source))
    assert list_names(sent) == list_names(source)
    assert sent.fetch(1) == source.fetch(1)


def test_names_that_are_not_unicode_are_found(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        file.write_bytes(b"content")
    except OSError:
        pytest.skip("this file system has names in Unicode only")
    for paths in ([file], [tmp_path]):
        source = open_paths(paths)
        assert (source.fetch(0), source.files()) == (b"content", [file])


def test_what_is_no_image_is_found_out_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("words")
    os.mkfifo(tmp_path / "pipe.png")
    names = ["gone.png", "words.png", "pipe.png"]
    source = open_paths([tmp_path / name for name in names])
    assert len(source) == 3
    with pytest.raises(BadImage, match=r"gone\.png cannot be read \(No such file or directory\)"):
        source.read(0)
    with pytest.raises(BadImage, match=r"words\.png is not an image that can be read"):
        source.read(1)[0].image()
    with pytest.raises(BadImage, match=r"pipe\.png cannot be read \(not a regular file\)"):
        source.read(2)
    with pytest.raises(IndexError, match=r"index=3 must be at least 0 and below 3"):
        source.read(3)


def test_an_empty_folder_costs_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "empty" / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"empty has no image in it, at whatever depth: give another folder, or files\.$"):
        open_paths([paint(tmp_path / "a.png"), tmp_path / "empty"])

"""Files as images: what is in them, under the names they were given."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.decode import BadImage
from vitrine.data.source import Labels
from vitrine.data.sources.files import FileSource

PATHS = ["b/größe.png", "a.png", "b/with space.png"]


def make_files(folder: Path) -> Path:
    (folder / "b").mkdir(parents=True)
    for shade, path in enumerate(PATHS):
        Image.new("RGB", (3, 2), (shade, 0, 0)).save(folder / path)
    return folder


def open_files(folder: Path) -> FileSource:
    return FileSource(folder, PATHS, Labels.one_each([1, 0, 1]), ("red", "redder"))


def test_images_come_in_the_order_given_with_their_labels(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    assert len(source) == 3
    assert [source.name(index) for index in range(3)] == PATHS
    for index, path in enumerate(PATHS):
        image, label = source.read(index)
        assert (image.name, label) == (path, [1, 0, 1][index])
        assert source.fetch(index) == (tmp_path / path).read_bytes()
        np.testing.assert_array_equal(image.pixels(), np.full((2, 3, 3), [index, 0, 0]))


def test_files_are_absolute_wherever_the_process_goes_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    source = open_files(Path("data"))
    monkeypatch.chdir("/")
    assert source.files() == [tmp_path / "data" / path for path in PATHS]
    assert source.read(1)[0].pixels()[0, 0].tolist() == [1, 0, 0]


def test_it_can_be_sent_to_another_process_in_few_bytes(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    source.read(0)
    sent = pickle.loads(pickle.dumps(source))
    assert [sent.name(index) for index in range(3)] == PATHS
    assert sent.fetch(2) == source.fetch(2)
    names = [f"train/n{index % 1000:08}/n{index:012}.jpg" for index in range(100_000)]
    many = FileSource(tmp_path, names, Labels.one_each(np.zeros(100_000)), ("one",))
    assert len(pickle.dumps(many)) < sum(map(len, names)) + 100_000 * (8 + 8) + 1000  # names, their starts, labels
    assert many.name(77_777) == names[77_777]


def test_names_that_are_not_unicode_are_found(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    try:
        (tmp_path / name).write_bytes(b"content")
    except OSError:
        pytest.skip("this file system has names in Unicode only")
    assert FileSource(tmp_path, [name], Labels.one_each([0]), ("a",)).fetch(0) == b"content"


def test_a_file_that_is_gone_costs_a_sentence_when_it_is_read(tmp_path: Path) -> None:
    source = open_files(make_files(tmp_path))
    (tmp_path / "a.png").unlink()
    with pytest.raises(BadImage, match=r"^a\.png cannot be read \(No such file or directory\), and an image"):
        source.read(1)


def test_a_pipe_a_device_or_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    make_files(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    source = FileSource(tmp_path, ["pipe.png", "/dev/zero", "b", "a.png"], Labels.none_each(4), ())
    num_open = len(os.listdir("/dev/fd"))
    for index in range(3):
        with pytest.raises(BadImage, match=rf"{source.name(index)} cannot be read \(not a regular file\)"):
            source.read(index)
    assert source.read(3)[0].width == 3
    assert len(os.listdir("/dev/fd")) == num_open


def test_side_files_come_after_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_files(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    source = FileSource(Path("data"), PATHS, Labels.none_each(3), (), [Path("data/labels.txt"), Path("names.txt")])
    images = [tmp_path / "data" / path for path in PATHS]
    assert source.files() == [*images, tmp_path / "data" / "labels.txt", tmp_path / "names.txt"]

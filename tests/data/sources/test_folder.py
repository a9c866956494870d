"""Image folders compared with Hugging Face's reader, real photographs, and ambiguous folders."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sources.failing import fail_to_open
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.open_data import find_data
from vitrine.data.sources import folder as module
from vitrine.data.sources.folder import FORMAT, Layout, detect_layout
from vitrine.data.sources.image_files import Level

COLOURS = {"bird": (200, 30, 10), "cat": (20, 180, 40), "dog": (5, 60, 220)}


def make_folder(folder: Path) -> Path:
    for split, count in (("train", 3), ("val", 1)):
        for name, colour in COLOURS.items():
            for index in range(count):
                write_image(folder / "photos" / split / name / f"{index:03}.png", colour)
    return folder / "photos"


def write_image(path: Path, colour: tuple[int, int, int] = (1, 2, 3)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), colour).save(path)


def write_images(root: Path, *paths: str) -> Path:
    for path in paths:
        write_image(root / path)
    return root


def names_of(root: Path, split: str | None = None) -> list[str]:
    source = FORMAT.open(root, split)
    return [source.name(index) for index in range(len(source))]


def check_error(root: Path, match: str, split: str | None = None) -> None:
    message = fail_to_open(FORMAT, root, split)
    assert re.search(match, message)
    assert str(root) in message


def level(images: list[str] | None = None, full: list[str] | None = None, direct: list[str] | None = None) -> Level:
    return Level(images or [], full or [], direct or [], [], [])


@pytest.mark.parametrize(
    ("top", "class_list", "expected"),
    [
        (level(["1.png"]), None, Layout("images")),
        (level(full=["cat", "dog"]), None, Layout("classes")),
        (level(full=["train", "val"]), None, Layout("splits", {"train": "train", "val": "val"})),
        (level(full=["test", "train"]), ["test", "train"], Layout("classes")),
        (level(full=["test", "train"]), ["test"], Layout("splits", {"train": "train", "test": "test"})),
        (level(full=["bus", "train"], direct=["train"]), None, Layout("classes")),
        (level(full=["bus", "train"], direct=["bus"]), None, None),
        (level(["1.png"], ["cat"]), None, None),
        (level(["1.png"], ["train", "val"]), None, None),
        (level(full=["train", "val", "valid"]), None, None),
    ],
)
def test_layout_follows_from_the_first_level(top: Level, class_list: list[str] | None, expected: Layout | None) -> None:
    if expected is not None:
        assert detect_layout("root", top, class_list) == expected
        return
    with pytest.raises(ValueError, match="root"):
        detect_layout("root", top, class_list)


def test_splits_with_class_folders(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    assert FORMAT.matches(root)
    assert FORMAT.list_splits(root) == ("train", "val")
    for split, count in (("train", 3), ("val", 1)):
        source = FORMAT.open(root, split)
        assert source.class_names == ("bird", "cat", "dog")
        assert [source.name(index) for index in range(len(source))] == [
            f"{split}/{name}/{index:03}.png" for name in COLOURS for index in range(count)
        ]
        for index in range(len(source)):
            image, label = source.read(index)
            expected = np.broadcast_to(np.uint8(list(COLOURS.values())[label]), (4, 6, 3))
            np.testing.assert_array_equal(image.to_numpy(), expected)
        assert source.files() == [root / source.name(index) for index in range(len(source))]


def test_labels_equal_those_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    root = make_folder(tmp_path)
    theirs = datasets.load_dataset("imagefolder", data_dir=str(root), cache_dir=str(tmp_path / "cache"))
    for split, their_split in (("train", "train"), ("val", "validation")):
        rows = theirs[their_split].cast_column("image", datasets.Image(decode=False))
        expected = {os.path.relpath(row["image"]["path"], root): row["label"] for row in rows}
        source = FORMAT.open(root, split)
        assert source.class_names == tuple(rows.features["label"].names)
        assert {source.name(index): source.labels[index] for index in range(len(source))} == expected


def test_real_photographs(assets: Path) -> None:
    """Folders of this dataset are named by class index, with one image each."""
    source = FORMAT.open(assets / "imagenet-val-1000", None)
    assert len(source) == len(source.class_names) == 1000
    assert [int(source.name(index).split("/")[0]) for index in range(1000)] == source.labels.values.tolist()
    image, label = source.read(472)
    assert (label, min(image.height, image.width)) == (472, 256)
    assert [len(FORMAT.open(assets / "pets", split)) for split in FORMAT.list_splits(assets / "pets")] == [740, 444]


def test_class_folders_with_images_at_any_depth(tmp_path: Path) -> None:
    write_images(tmp_path, "dog/1.jpg", "cat/2.jpg", "cat/night/deep/1.JPEG", "cat-like/x.Png", "cat/night.jpg")
    assert FORMAT.list_splits(tmp_path) == ()
    source = FORMAT.open(tmp_path, None)
    assert source.class_names == ("cat", "cat-like", "dog")
    expected = ["cat-like/x.Png", "cat/2.jpg", "cat/night.jpg", "cat/night/deep/1.JPEG", "dog/1.jpg"]
    assert names_of(tmp_path) == expected == sorted(expected)
    assert source.labels.values.tolist() == [1, 0, 0, 0, 2]


def test_images_without_folders_have_no_labels(tmp_path: Path) -> None:
    write_images(tmp_path, "b.jpg", "a.png")
    source = FORMAT.open(tmp_path, None)
    assert names_of(tmp_path) == ["a.png", "b.jpg"]
    assert (source.class_names, source.labels[0], source.labels.has_several) == ((), (), True)


def test_unlabelled_split_beside_a_labelled_one(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/1.png", "test/2.png")
    assert FORMAT.list_splits(tmp_path) == ("train", "test")
    assert FORMAT.open(tmp_path, "train").class_names == ("cat", "dog")
    test = FORMAT.open(tmp_path, "test")
    assert (names_of(tmp_path, "test"), test.class_names, test.labels[1]) == (["test/1.png", "test/2.png"], (), ())


@pytest.mark.parametrize(
    ("folders", "splits"),
    [
        (("train",), ("train",)),
        (("Training", "VALIDATION", "testing"), ("train", "val", "test")),
        (("dev", "test"), ("val", "test")),
        (("train", "valid"), ("train", "val")),
        (("train", "bus", "car"), ()),  # classes of vehicles
        (("test",), ()),
    ],
)
def test_which_folders_are_splits(tmp_path: Path, folders: tuple[str, ...], splits: tuple[str, ...]) -> None:
    write_images(tmp_path, *(f"{folder}/1.png" for folder in folders))
    assert FORMAT.list_splits(tmp_path) == splits
    if not splits:
        assert FORMAT.open(tmp_path, None).class_names == tuple(sorted(folders))
    for split in splits:
        assert len(FORMAT.open(tmp_path, split)) == 1


def test_folders_without_images_do_not_hide_splits(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.png", "val/cat/1.png")
    (tmp_path / "notes" / "old").mkdir(parents=True)
    (tmp_path / "notes" / "boxes.xml").write_text("<a/>")
    assert FORMAT.list_splits(tmp_path) == ("train", "val")


def test_splits_have_the_same_classes(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.png", "train/eel/1.png", "val/bee/1.png", "val/eel/1.png")
    (tmp_path / "val" / "cat").mkdir()
    assert FORMAT.open(tmp_path, "train").class_names == FORMAT.open(tmp_path, "val").class_names == ("bee", "cat", "eel")
    assert FORMAT.open(tmp_path, "train").labels.values.tolist() == [1, 2]
    assert FORMAT.open(tmp_path, "val").labels.values.tolist() == [0, 2]


def test_class_list_gives_order_and_names(tmp_path: Path) -> None:
    write_images(tmp_path, "n02/1.png", "n01/1.png")
    (tmp_path / "n03").mkdir()
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfn03\tthe third\r\nn02\r\nn01\tna\xc3\xafve cat\r\n\r\n")
    source = FORMAT.open(tmp_path, None)
    assert source.class_names == ("the third", "n02", "naïve cat")
    assert (names_of(tmp_path), source.labels.values.tolist()) == (["n01/1.png", "n02/1.png"], [2, 1])
    assert tmp_path / "classes.txt" in source.files()


def test_class_list_makes_split_names_classes(tmp_path: Path) -> None:
    write_images(tmp_path, "train/night/1.png", "test/1.png", "bus/1.png")
    check_error(tmp_path, "test, train.* beside bus")
    (tmp_path / "classes.txt").write_text("bus\ntrain\ntest\n")
    assert FORMAT.list_splits(tmp_path) == ()
    assert FORMAT.open(tmp_path, None).class_names == ("bus", "train", "test")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"cat\n\ndog\n", r"classes\.txt line 2 is empty"),
        (b"cat\nDog\n", r"classes\.txt .*dog"),
    ],
)
def test_bad_class_lists(tmp_path: Path, content: bytes, match: str) -> None:
    write_images(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "classes.txt").write_bytes(content)
    check_error(tmp_path, match)


@pytest.mark.parametrize(
    ("images", "match"),
    [
        (("1.png", "cat/1.png"), r"1\.png.*cat"),
        (("1.png", "train/cat/1.png"), r"1\.png.* splits train"),
        (("train/cat/1.png", "cat/1.png"), "train.* beside cat"),
        (("train/cat/1.png", "val/cat/1.png", "cat/1.png"), "train, val.* beside cat"),
        (("test/cat/1.png",), "test.* no train"),
        (("val/1.png", "valid/1.png"), "val, valid.* no train"),
        (("train/1.png", "val/1.png", "dev/1.png"), "same split .dev, train, val"),
        (("cat/train/1.png", "cat/val/1.png", "dog/train/1.png"), "cat .*splits train, val"),
    ],
)
def test_ambiguous_folders_are_errors(tmp_path: Path, images: tuple[str, ...], match: str) -> None:
    check_error(write_images(tmp_path, *images), match)


def test_images_beside_classes_in_one_split(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.png", "val/cat/1.png", "val/1.png")
    check_error(tmp_path, r"/val has .*1\.png", split="train")


def test_empty_folders(tmp_path: Path) -> None:
    assert not FORMAT.matches(tmp_path)
    (tmp_path / "cat" / "deep").mkdir(parents=True)
    assert not FORMAT.matches(tmp_path)
    write_image(tmp_path / "dog" / "1.png")
    with pytest.warns(VitrineWarning, match=r"without images \(cat\)"):
        source = FORMAT.open(tmp_path, None)
    assert (source.class_names, source.empty_folders) == (("dog",), ("cat",))


def test_a_class_that_is_empty_in_one_split_only_is_a_class(tmp_path: Path) -> None:
    write_images(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/cat/1.png")
    (tmp_path / "test" / "dog").mkdir()
    source = FORMAT.open(tmp_path, "test")
    assert (source.class_names, source.empty_folders) == (("cat", "dog"), ())


def test_other_paths_are_not_recognised(tmp_path: Path) -> None:
    write_image(tmp_path / "1.png")
    assert not FORMAT.matches(tmp_path / "1.png")
    assert not FORMAT.matches(tmp_path / "absent")


def test_left_out_files_give_one_warning(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    for path in ("all.zip", "train/extra.mp4", "train/cat/a.xml", "train/dog/b.xml", "train/dog/jpg", "val/cat/c.xml"):
        (root / path).write_bytes(b"")
    with pytest.warns(VitrineWarning) as caught:
        source = FORMAT.open(root, "train")
    (message,) = [str(warning.message) for warning in caught]
    assert f"{root}: left out 5 files" in message
    assert "all.zip, train/cat/a.xml, train/dog/b.xml" in message
    assert len(source) == 9


def test_numbers_sorted_as_text_give_a_warning(tmp_path: Path) -> None:
    write_images(tmp_path, "2/1.png", "10/1.png")
    with pytest.warns(VitrineWarning, match="sorted as text"):
        assert FORMAT.open(tmp_path, None).class_names == ("10", "2")
    (tmp_path / "classes.txt").write_text("2\n10\n")
    assert FORMAT.open(tmp_path, None).class_names == ("2", "10")


def test_single_class_with_subfolders_gives_a_warning(tmp_path: Path) -> None:
    write_images(tmp_path, "photos/cat/1.png", "photos/dog/1.png")
    with pytest.warns(VitrineWarning, match=r"photos .*cat, dog"):
        assert FORMAT.open(tmp_path, None).class_names == ("photos",)


def test_unreadable_files_are_bad_images(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    (tmp_path / "text.png").write_text("no image")
    write_image(tmp_path / "well.png")
    source = FORMAT.open(tmp_path, None)
    os.remove(tmp_path / "well.png")
    os.mkfifo(tmp_path / "well.png")  # opening it normally would wait forever
    for index, reason in enumerate(["No such file", "symbolic links", "not a readable image", "not a regular file"]):
        with pytest.raises(BadImage, match=f"{source.name(index)}.*{reason}"):
            source.read(index)


@pytest.mark.parametrize("name", [b"caf\xe9.png", "caf\u00e9 \u2028.png".encode(), b"back\\slash.png", b"line\nbreak.png"])
def test_odd_file_names(tmp_path: Path, name: bytes) -> None:
    write_image(tmp_path / "plain.png")
    os.rename(tmp_path / "plain.png", os.path.join(os.fsencode(tmp_path), name))
    source = FORMAT.open(tmp_path, None)
    assert os.fsencode(source.name(0)) == name
    assert source.read(0)[0].height == 4
    assert source.files()[0].exists()


def test_unreadable_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, "cat/1.png")
    scandir = os.scandir

    def deny(folder: str | Path) -> object:
        if str(folder).endswith("cat"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(module.os, "scandir", deny)
    check_error(tmp_path, "/cat .*Permission denied")
    with pytest.raises(ValueError, match=r"/cat .*Permission denied"):  # not: an unknown kind of data
        find_data(tmp_path)


def test_recognition_does_not_read_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(20):
        write_images(tmp_path, f"{index:02}/1.png", f"{index:02}/2.png")
    listed: list[str] = []
    scandir = os.scandir

    def count(folder: str) -> object:
        listed.append(folder)
        return scandir(folder)

    monkeypatch.setattr(module.os, "scandir", count)
    assert FORMAT.matches(tmp_path)
    assert len(listed) == 2
    for index in range(400):
        (tmp_path / f"bare/{index}").mkdir(parents=True)
    listed.clear()
    assert not FORMAT.matches(tmp_path / "bare")
    assert len(listed) == module.SHALLOW_FOLDERS


def test_pickled_source_works_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_folder(tmp_path)
    monkeypatch.chdir(root.parent)
    source = FORMAT.open(Path("photos"), "train")
    source.read(0)
    packed = pickle.dumps(source)
    monkeypatch.chdir("/")
    again = pickle.loads(packed)
    np.testing.assert_array_equal(again.read(4)[0].to_numpy(), source.read(4)[0].to_numpy())
    assert (again.name(4), again.labels[4], again.class_names) == ("train/cat/001.png", 1, source.class_names)
    assert all(path.is_absolute() and path.exists() for path in again.files())

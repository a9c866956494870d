"""Finding and opening data by path, by name and as splits."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrine
from tests.data.sources.test_cifar import make_cifar
from tests.data.sources.test_folder import make_folder
from tests.data.sources.test_imagenet import make_imagenet
from tests.data.sources.test_webdataset import draw, write_tar
from vitrine.data.config import DataConfig
from vitrine.data.open_data import (
    BUILT_IN,
    DATASET_FORMATS,
    find_data,
    load_format,
    open_data,
    open_test,
    open_train_and_test,
    open_train_data,
)
from vitrine.data.source import Source


def test_public_name() -> None:
    assert vitrine.open_data is open_data


def test_formats_have_different_names() -> None:
    names = [load_format(name).name for name in DATASET_FORMATS]
    assert len({*names, *BUILT_IN, "hub"}) == len(names) + len(BUILT_IN) + 1


def test_paths_without_data_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing does not exist"):
        find_data(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "letter.doc").write_text("Dear all")
    for name in ("empty", "letter.doc"):
        with pytest.raises(ValueError, match=f"{name} is not a recognised dataset"):
            find_data(str(tmp_path / name))
    with pytest.raises(ValueError, match=r"hf://datasets/org/name"):
        find_data("hf://org/name")


def test_official_datasets_are_not_image_folders(tmp_path: Path) -> None:
    for make, kind in ((make_cifar, "cifar"), (make_imagenet, "imagenet"), (make_folder, "folder")):
        folder = tmp_path / kind
        folder.mkdir()
        assert find_data(make(folder)).kind == kind


def test_built_in_names() -> None:
    assert find_data("digits").splits == ("train", "test")
    assert open_data("shapes:count", "val").class_names[0] == "one-dot"
    assert open_data("shapes@16", "validation").read(0)[0].height == 16
    with pytest.raises(ValueError, match=r"digits:zero"):
        find_data("digits:zero")
    with pytest.raises(ValueError, match=r"colour"):
        open_data("shapes:color", "val")


def test_folder_named_like_a_built_in_dataset_is_ambiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made").mkdir()
    make_folder(tmp_path / "made").rename(tmp_path / "digits")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"\./digits"):
        find_data("digits")
    assert find_data("./digits").kind == "folder"
    assert find_data(Path("digits").absolute()).kind == "folder"


def test_training_uses_the_train_split_or_everything(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("cat", "dog"):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(tmp_path / split / name / "1.png")
    divided = find_data(tmp_path)
    assert [divided.open_train().name(index) for index in range(2)] == ["train/cat/1.png", "train/dog/1.png"]
    assert len(find_data(tmp_path / "train").open_train()) == 2


def open_one(**settings: object) -> Source:
    source, held_out = open_train_data(DataConfig(**settings))
    assert held_out is None
    return source


def list_all_names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def test_split_exclude_list_and_subset_of_a_config(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("digits/train[0]\ndigits/train[7]\n")
    assert len(open_one(source="digits")) == 1437
    assert len(open_one(source="digits", split="test")) == 360
    less = open_one(source="digits", exclude=tmp_path / "out.txt")
    assert len(less) == 1435
    assert less.name(0) == "digits/train[1]"
    five = open_one(source="digits", subset="5/class", exclude=tmp_path / "out.txt")
    assert np.bincount(five.labels.values).tolist() == [5] * 10
    assert not {five.name(index) for index in range(50)} & {"digits/train[0]", "digits/train[7]"}
    other = open_one(source="digits", subset="5/class", subset_seed=1)
    assert {other.name(index) for index in range(50)} != {five.name(index) for index in range(50)}


def test_images_are_loaded_into_memory_on_request(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for index in range(3):
            Image.new("RGB", (6, 5), (index, 0, 0)).save(tmp_path / name / f"{index}.png")
    none = np.zeros(0, np.int64)
    assert open_one(source=str(tmp_path)).read_block(none) is None
    held = open_one(source=str(tmp_path), in_memory=True)
    assert held.read_block(np.array([4])).tolist() == [[[[1, 0, 0]] * 6] * 5]
    assert held.name(4) == "dog/1.png"


def test_held_out_part_is_the_same_in_memory(tmp_path: Path) -> None:
    for index in range(20):
        folder = tmp_path / "ab"[index % 2]
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(folder / f"{index:02}.png")
    settings = {"source": str(tmp_path), "subset": "80%", "held_out": 0.25}
    parts = [open_train_data(DataConfig(**settings, in_memory=in_memory)) for in_memory in (False, True)]
    names = [[list_all_names(part) for part in pair] for pair in parts]
    assert names[0] == names[1]
    assert [len(part) for part in names[0]] == [12, 4]
    assert not set(names[0][0]) & set(names[0][1])


def write_splits(folder: Path, *splits: str, num_each: int = 1) -> str:
    for split in splits:
        for name in ("cat", "dog"):
            (folder / split / name).mkdir(parents=True)
            for index in range(num_each):
                Image.new("RGB", (4, 4), (index, 0, 0)).save(folder / split / name / f"{index}.png")
    return str(folder)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        (("train", "val", "test"), "test"),
        (("train", "validation"), "validation"),
        (("train", "testing"), "testing"),
        (("val", "test"), "test"),
    ],
)
def test_evaluation_uses_test_or_else_val(splits: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    data = write_splits(tmp_path, *splits)
    assert list_all_names(open_test(data)) == [f"{expected}/cat/0.png", f"{expected}/dog/0.png"]


def test_evaluation_uses_the_named_split(tmp_path: Path) -> None:
    data = write_splits(tmp_path, "train", "val", "test")
    assert list_all_names(open_test(data, "train")) == ["train/cat/0.png", "train/dog/0.png"]
    assert list_all_names(open_test(data, "validation")) == ["val/cat/0.png", "val/dog/0.png"]
    with pytest.raises(ValueError, match=r"no split 'real'.* train, val, test"):
        open_test(data, "real")


def test_evaluation_uses_everything_without_splits(tmp_path: Path) -> None:
    data = write_splits(tmp_path, "train")
    assert len(open_test(f"{data}/train")) == 2
    with pytest.raises(ValueError, match=r"no splits, but 'test'"):
        open_test(f"{data}/train", "test")


def test_training_images_are_not_evaluated_on_by_default(tmp_path: Path) -> None:
    data = write_splits(tmp_path, "train")
    for call in (open_test, open_train_and_test):
        with pytest.raises(ValueError, match="expected test or val"):
            call(data)


def test_evaluation_of_built_in_data_and_real_labels(tmp_path: Path) -> None:
    assert list_all_names(open_test("digits"))[0] == "digits/test[0]"
    imagenet = make_imagenet(tmp_path / "imagenet")
    (imagenet / "real.json").write_text("[[2], [], [1, 0], [2, 1], [0]]")
    assert not open_test(str(imagenet)).labels.has_several
    assert open_test(str(imagenet), "real").labels[2] == (0, 1)


def test_existing_splits_are_used_for_training_and_test(tmp_path: Path) -> None:
    data = write_splits(tmp_path, "train", "val", num_each=3)
    train, test = open_train_and_test(data)
    assert list_all_names(train) == [f"train/{name}/{index}.png" for name in ("cat", "dog") for index in range(3)]
    assert list_all_names(test) == [f"val/{name}/{index}.png" for name in ("cat", "dog") for index in range(3)]
    with pytest.raises(ValueError, match=r"held_out=0\.2 .* train, val"):
        open_train_and_test(data, 0.2)


def test_without_splits_a_fraction_of_each_class_is_held_out(tmp_path: Path) -> None:
    data = f"{write_splits(tmp_path, 'all', num_each=10)}/all"
    train, test = open_train_and_test(data, 0.3)
    assert np.bincount(train.labels.values).tolist() == [7, 7]
    assert np.bincount(test.labels.values).tolist() == [3, 3]
    assert sorted(list_all_names(train) + list_all_names(test)) == sorted(list_all_names(open_data(data)))
    assert train.class_names == test.class_names == ("cat", "dog")
    assert list_all_names(open_train_and_test(data, 0.3)[1]) == list_all_names(test)
    assert list_all_names(open_train_and_test(data, 0.3, seed=1)[1]) != list_all_names(test)


@pytest.mark.parametrize("splits", [("train", "test"), ("all",)])
def test_subset_equals_that_of_a_run(splits: tuple[str, ...], tmp_path: Path) -> None:
    """The subset is taken from the training images, or before a part is held out."""
    data = (
        write_splits(tmp_path, *splits, num_each=10) if len(splits) > 1 else f"{write_splits(tmp_path, 'all', num_each=10)}/all"
    )
    held_out = 0.0 if len(splits) > 1 else 0.5
    train, test = open_train_and_test(data, held_out or None, subset="4/class")
    wanted, other = open_train_data(DataConfig(source=data, subset="4/class", held_out=held_out))
    assert list_all_names(train) == list_all_names(wanted)
    assert np.bincount(train.labels.values).tolist() == ([4, 4] if len(splits) > 1 else [2, 2])
    assert list_all_names(test) == list_all_names(other or open_data(data, "test"))


@pytest.mark.parametrize("held_out", [0.0, 0.01, 0.99, 1.0])
def test_both_parts_need_images(held_out: float, tmp_path: Path) -> None:
    data = f"{write_splits(tmp_path, 'all', num_each=5)}/all"
    with pytest.raises(ValueError, match=rf"held_out={held_out} of 10 images"):
        open_train_and_test(data, held_out)


def test_splits_with_different_classes_are_errors(tmp_path: Path) -> None:
    for split, names in (("train", "cat\ndog\n"), ("test", "dog\ncat\n")):
        write_tar(tmp_path / split / "0.tar", {"a.png": draw(0), "a.cls": "1"})
        (tmp_path / split / "classes.txt").write_text(names)
    with pytest.raises(ValueError, match=r"classes .* differ between train and test"):
        open_train_and_test(str(tmp_path))
    (tmp_path / "test" / "classes.txt").write_text("cat\ndog\n")
    assert [len(part) for part in open_train_and_test(str(tmp_path))] == [1, 1]


def test_real_folders(assets: Path) -> None:
    expected = {"pets": (740, 444, 37), "flowers102": (1020, 523, 102), "cifar10-12k": (10_000, 2_000, 10)}
    for name, (num_train, num_test, num_classes) in expected.items():
        data = find_data(assets / name)
        assert data.kind == "folder"
        assert data.splits == ("train", "test")
        train, test = data.open("train"), data.open("test")
        assert (len(train), len(test), len(train.class_names)) == (num_train, num_test, num_classes)
    thousand = open_data(assets / "imagenet-val-1000")
    assert thousand.labels.values.tolist() == list(range(1000))
    image, _ = thousand.read(3)
    assert min(image.height, image.width) == 256

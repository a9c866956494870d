"""How a task's images are divided: sizes and shares of the benchmark, no image in two splits, the same whoever asks."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sources.test_factors import ROWS, write_rows
from tests.data.sources.test_vtab import make_vtab
from vitrine.data.opening import find_data
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.vtab_splits import SPLITS, divide, open_task_split
from vitrine.data.vtab_tasks import TASKS, find_task


def make_source(split: str | None, num_images: int) -> Source:
    """Sorted by class, as the images of a folder are."""
    labels = Labels.one_each(np.arange(num_images) * 10 // num_images)
    pixels = np.zeros((num_images, 1, 1, 3), np.uint8)
    return ArraySource(pixels, labels, tuple("abcdefghij"), f"{split or 'all'}")


def open_all(task: str, sizes: dict[str | None, int]) -> dict[str, Source]:
    splits = tuple(split for split in sizes if split is not None)
    return {
        split: open_task_split(find_task(task), splits, lambda each: make_source(each, sizes[each]), split) for split in SPLITS
    }


def list_names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


@pytest.mark.parametrize(
    ("task", "sizes", "lengths"),
    [
        ("dtd", {"train": 1880, "val": 1880, "test": 1880}, (800, 200, 1880)),
        ("caltech101", {"train": 3060, "test": 6084}, (800, 200, 6084)),
        ("pets", {"train": 740, "test": 444}, (592, 148, 444)),  # 80/20 of too few
        ("cifar100", {"train": 1000, "test": 300}, (800, 100, 300)),  # 90/10
        ("eurosat", {None: 27_000}, (800, 200, 5400)),  # 60/20/20
        ("eurosat", {None: 1000}, (600, 200, 200)),
        ("dsprites_location", {None: 1000}, (800, 100, 100)),  # 80/10/10
        ("smallnorb_azimuth", {"train": 24_300, "test": 24_300}, (800, 200, 12_150)),  # half of test is val
        ("clevr_count", {"train": 70_000, "val": 15_000}, (800, 200, 15_000)),  # what was published as val is the test
        ("photos", {"train": 1020, "test": 523}, (800, 200, 523)),
    ],
)
def test_sizes_and_that_no_image_is_in_two_splits(
    task: str, sizes: dict[str | None, int], lengths: tuple[int, int, int]
) -> None:
    sources = open_all(task, sizes)
    assert tuple(len(sources[split]) for split in ("train", "val", "test")) == lengths
    names = {split: list_names(source) for split, source in sources.items()}
    apart = [*names["train"], *names["val"], *names["test"]]
    assert len(set(apart)) == len(apart)
    assert names["train800val200"] == [*names["train"], *names["val"]]


def test_the_first_are_the_first_of_a_shuffle_that_never_changes() -> None:
    """Without one, the first 800 of sorted images would be of two classes of ten."""
    sources, again = (open_all("pets", {"train": 5000, "test": 100}) for _ in range(2))
    for split in ("train", "val"):
        assert list_names(sources[split]) == list_names(again[split])
        assert set(sources[split].labels.values.tolist()) == set(range(10))
    assert list_names(sources["train"])[:4] == ["train[4]", "train[43]", "train[45]", "train[58]"]
    assert list_names(sources["test"]) == list_names(make_source("test", 100))


def test_lists_of_the_community_are_followed(tmp_path: Path) -> None:
    folder = make_vtab(tmp_path / "oxford_iiit_pet")
    plain, task = find_data(folder), find_data(f"vtab:pets:{folder}")
    assert task.splits == plain.splits == SPLITS
    for split in SPLITS:
        assert list_names(task.open(split)) == list_names(plain.open(split))
        assert task.open(split).labels.values.tolist() == plain.open(split).labels.values.tolist()


def test_annotations_become_classes(tmp_path: Path) -> None:
    write_rows(tmp_path, ROWS)
    data = find_data(f"vtab:dsprites_location:{tmp_path}")
    assert data.open("train800val200").labels.values.tolist() == [0, 15, 6]
    assert len(data.open("test").class_names) == 16


def test_generated_tasks_have_a_thousand_images() -> None:
    data = find_data("vtab:shapes_count:shapes:count")
    whole = data.open("train800val200")
    assert (len(whole), len(data.open("test"))) == (1000, 2000)
    assert len(set(list_names(whole))) == 1000
    block = whole.read_block(np.array([999, 0]))
    assert block is not None
    np.testing.assert_array_equal(block[0], data.open("val").read(199)[0].pixels())
    np.testing.assert_array_equal(block[1], whole.read(0)[0].pixels())


@pytest.mark.parametrize("splits", [("train",), ("test",), ("val", "test")])
def test_what_is_missing_is_said(splits: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"The data of dtd has the splits .*, and train and test were needed: add what is"):
        divide(TASKS["dtd"], splits)


@pytest.mark.parametrize("name", ["vtab:", "vtab:pets", "vtab:pets:", "vtab::shapes"])
def test_a_task_needs_its_data(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} was given, and a task and its data were needed: write it as vtab:pets:DATA"):
        find_data(name)


def test_fewer_test_images_are_some_of_them(tmp_path: Path) -> None:
    folder = make_vtab(tmp_path / "kitti")
    np.savez(tmp_path / "made.npz", x_train=np.zeros((20, 4, 4), np.uint8), y_train=np.arange(20) % 2)
    with np.load(tmp_path / "made.npz") as made:
        np.savez(tmp_path / "pets.npz", **made, x_test=np.zeros((50, 4, 4), np.uint8), y_test=np.arange(50) % 2)
    for task, where, whole in (("kitti_distance", folder, 3), ("pets", tmp_path / "pets.npz", 50)):
        every = find_data(f"vtab:{task}:{where}")
        few, more = (find_data(f"vtab:{task}@{limit}:{where}") for limit in (2, 99))
        assert (len(every.open("test")), len(few.open("test")), len(more.open("test"))) == (whole, 2, whole)
        assert set(list_names(few.open("test"))) < set(list_names(every.open("test")))
        assert list_names(few.open("train800val200")) == list_names(every.open("train800val200"))


@pytest.mark.parametrize("limit", ["", "0", "-1", "x", "1.5"])
def test_the_number_of_test_images_is_a_number(limit: str) -> None:
    with pytest.raises(
        ValueError, match=r"asks for '.*' test images, and a whole number of at least 1 was needed: write pets@500"
    ):
        find_data(f"vtab:pets@{limit}:shapes")

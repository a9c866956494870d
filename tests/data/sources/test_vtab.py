"""Tests of data/sources/vtab.py.

The community's lists of VTAB-1k: what they list is what there is, and each line that cannot be right is named.
How a task's images are divided: sizes and shares of the benchmark, no image in two splits, the same whoever asks.
The table of tasks against the benchmark's, written out here.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.open_data import find_data, open_train_and_test
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.data.sources.vtab import (
    FORMAT,
    GENERATED,
    GROUPS,
    SPLITS,
    TASKS,
    assign_parts,
    find_task,
    open_task_split,
    resolve_task_name,
)

TRAIN, VAL, TEST = ((0, 0), (1, 1), (2, 2), (3, 0)), ((4, 1), (5, 2)), ((6, 2), (7, 3), (8, 0))  # number, class


def make_vtab(folder: Path) -> Path:
    """Four classes, of which the last is only in the test."""
    (folder / "images").mkdir(parents=True)
    for number, _ in (*TRAIN, *VAL, *TEST):
        Image.new("RGB", (5, 4), (10 * number, 0, 0)).save(folder / "images" / f"a {number}.png")
    for name, lines in (("train800", TRAIN), ("val200", VAL), ("train800val200", (*TRAIN, *VAL)), ("test", TEST)):
        (folder / f"{name}.txt").write_text("".join(f"images/a {number}.png {label}\n" for number, label in lines))
    return folder


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return make_vtab(tmp_path / "pets")


def test_splits_are_the_lists(task: Path) -> None:
    assert FORMAT.list_splits(task) == ("train", "val", "test", "train800val200")
    for split, lines in {"train": TRAIN, "val": VAL, "test": TEST, "train800val200": (*TRAIN, *VAL)}.items():
        source = FORMAT.open(task, split)
        assert [source.name(index) for index in range(len(source))] == [f"images/a {number}.png" for number, _ in lines]
        assert source.labels.values.tolist() == [label for _, label in lines]
        assert source.class_names == ("0", "1", "2", "3")
        pixels = source.read(1)[0].to_numpy()
        np.testing.assert_array_equal(pixels, np.broadcast_to([10 * lines[1][0], 0, 0], (4, 5, 3)))


def test_it_is_data_like_any_other(task: Path) -> None:
    """By default what is trained on and what is watched are disjoint; the usual names of the splits do as well."""
    data = find_data(task)
    assert data.kind == "vtab"
    assert len(data.open("train800")) == len(data.open_train()) == len(TRAIN)
    assert len(data.open("val200")) == len(VAL)
    train, test = open_train_and_test(str(task))
    assert (len(train), len(test)) == (len(TRAIN), len(TEST))


def test_a_list_of_both_is_not_needed(task: Path) -> None:
    listed = FORMAT.open(task, "train800val200")
    (task / "train800val200.txt").unlink()
    assert FORMAT.list_splits(task) == ("train", "val", "test", "train800val200")
    joined = FORMAT.open(task, "train800val200")
    assert [joined.name(index) for index in range(6)] == [listed.name(index) for index in range(6)]
    assert joined.labels.values.tolist() == listed.labels.values.tolist()


def test_one_list_is_enough_to_know_it(task: Path) -> None:
    for name in ("train800", "val200"):
        (task / f"{name}.txt").unlink()
    assert FORMAT.matches(task)
    assert FORMAT.list_splits(task) == ("test", "train800val200")
    (task / "train800val200.txt").unlink()
    assert not FORMAT.matches(task)


def test_classes_may_have_names(task: Path) -> None:
    (task / "classes.txt").write_text("cat\ndog\nowl\nfox\nhen\n")
    assert FORMAT.open(task, "val").class_names == ("cat", "dog", "owl", "fox", "hen")
    assert task / "classes.txt" in FORMAT.open(task, "val").files()
    (task / "classes.txt").write_text("cat\ndog\nowl\n")
    with pytest.raises(ValueError, match=r"line 2 has class 3"):
        FORMAT.open(task, "val")


@pytest.mark.parametrize("line", ["images/a.png", "7", "images/a.png x", "images/a.png -1", "images/a.png 9999999999"])
def test_a_line_that_is_none_is_named(task: Path, line: str) -> None:
    (task / "val200.txt").write_text(f"images/a 4.png 1\n{line}\n")
    with pytest.raises(ValueError, match=r"val200\.txt line 2"):
        FORMAT.open(task, "train")


def test_an_image_twice_is_named(task: Path) -> None:
    (task / "val200.txt").write_text("images/a 4.png 1\n./images/a 4.png 2\n")
    with pytest.raises(ValueError, match=r"line 2 lists images/a 4\.png.*line 1"):
        FORMAT.open(task, "val")


def test_images_that_were_not_unpacked_are_missed(task: Path) -> None:
    (task / "images" / "a 0.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"line 1 lists images/a 0\.png"):
        FORMAT.open(task, "train")


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


def test_generated_tasks_have_a_thousand_images() -> None:
    data = find_data("vtab:shapes_count:shapes:count")
    whole = data.open("train800val200")
    assert (len(whole), len(data.open("test"))) == (1000, 2000)
    assert len(set(list_names(whole))) == 1000
    block = whole.read_block(np.array([999, 0]))
    assert block is not None
    np.testing.assert_array_equal(block[0], data.open("val").read(199)[0].to_numpy())
    np.testing.assert_array_equal(block[1], whole.read(0)[0].to_numpy())


@pytest.mark.parametrize("splits", [("train",), ("test",), ("val", "test")])
def test_what_is_missing_is_said(splits: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="train and test"):
        assign_parts(TASKS["dtd"], splits)


@pytest.mark.parametrize("name", ["vtab:", "vtab:pets", "vtab:pets:", "vtab::shapes"])
def test_a_task_needs_its_data(name: str) -> None:
    with pytest.raises(ValueError, match="vtab:pets:DATA"):
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
    with pytest.raises(ValueError, match="pets@500"):
        find_data(f"vtab:pets@{limit}:shapes")


# Classes, in the order of table 9 of arXiv:2010.11929.
CLASSES = {
    "natural": {"caltech101": 102, "cifar100": 100, "dtd": 47, "flowers102": 102, "pets": 37, "sun397": 397, "svhn": 10},
    "specialised": {"patch_camelyon": 2, "eurosat": 10, "resisc45": 45, "diabetic_retinopathy": 5},
    "structured": {
        "clevr_count": 8,
        "clevr_distance": 6,
        "dmlab": 6,
        "dsprites_location": 16,
        "dsprites_orientation": 16,
        "kitti_distance": 4,
        "smallnorb_azimuth": 18,
        "smallnorb_elevation": 9,
    },
}


def test_there_are_19_tasks_in_three_groups() -> None:
    found = {group: {task.name: task.num_classes for task in TASKS.values() if task.group == group} for group in GROUPS}
    assert found == CLASSES
    assert list(TASKS) == [name for group in CLASSES.values() for name in group]
    assert len(TASKS) == 19


def test_what_is_not_done_to_images_is_bit_s() -> None:
    """Appendix F of arXiv:1912.11370."""
    assert {name for name, task in TASKS.items() if not task.flip} == {
        "dsprites_location",
        "dsprites_orientation",
        "smallnorb_azimuth",
    }
    assert {name for name, task in TASKS.items() if not task.crop} == {
        "clevr_count",
        "clevr_distance",
        "dmlab",
        "dsprites_location",
        "kitti_distance",
    }


def test_shares_are_the_benchmark_s() -> None:
    tenth = {"caltech101", "cifar100", "svhn", "clevr_count", "clevr_distance", "dsprites_location", "dsprites_orientation"}
    assert {name for name, task in TASKS.items() if task.val_fraction == 0.1} == tenth
    assert {task.val_fraction for name, task in TASKS.items() if name not in tenth} == {0.2}  # Pets 80/20, EuroSAT 60/20/20
    assert {name for name, task in TASKS.items() if task.test_fraction == 0.1} == {"dsprites_location", "dsprites_orientation"}
    assert {name for name, task in TASKS.items() if task.splits_test} == {"smallnorb_azimuth", "smallnorb_elevation"}


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("pets", "pets"),
        ("oxford_iiit_pet", "pets"),
        ("Oxford-IIIT-Pet", "pets"),
        ("cifar", "cifar100"),
        ("cifar10", "cifar10"),
        ("dsprites_loc", "dsprites_location"),
        ("smallnorb_azi", "smallnorb_azimuth"),
        ("kitti", "kitti_distance"),
        ("My Photos", "My Photos"),
    ],
)
def test_names_that_people_use(folder: str, name: str) -> None:
    assert resolve_task_name(folder) == name


def test_names_are_told_apart() -> None:
    called = [each for task in TASKS.values() for each in (task.name, *task.folders)]
    assert len(set(called)) == len(called)


def test_other_data_is_a_task_of_its_own_group() -> None:
    assert find_task("pets") is TASKS["pets"]
    assert find_task("shapes_count") is GENERATED["shapes:count"]
    other = find_task("photos")
    assert (other.name, other.group, other.num_classes) == ("photos", "other", None)

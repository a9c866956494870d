"""Tests of data/quality/check.py.

Planted defects are found, each under its name, and clean data is clean.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import draw_picture, encode, write_classes, write_picture
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import find_data
from vitrine.data.quality.check import (
    DataCheck,
    check_data,
    group_duplicates,
    list_images_to_exclude,
)
from vitrine.data.quality.duplicates import DuplicatePairs
from vitrine.data.subsets import exclude_images


@pytest.fixture
def folder(tmp_path: Path, cache: Path) -> Path:
    """Two classes of four pictures to train on and two to test on."""
    return write_classes(tmp_path / "data", {"train": 4, "test": 2})


def check(folder: Path) -> DataCheck:
    return check_data(find_data(folder))


def list_findings(found: DataCheck) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.kind, tuple(found.name(place) for place in finding.images)) for finding in found.issues]


def copy(folder: Path, source: str, target: str) -> None:
    (folder / target).write_bytes((folder / source).read_bytes())


def test_clean_data_is_clean(folder: Path) -> None:
    found = check(folder)
    assert found.is_clean
    assert found.issues == ()
    assert list_images_to_exclude(found) == []
    assert {split: counts.tolist() for split, counts in found.count_classes().items()} == {"train": [4, 4], "test": [2, 2]}


def test_a_broken_file(folder: Path) -> None:
    path = folder / "train" / "cat" / "1.jpg"
    path.write_bytes(path.read_bytes()[:500])
    found = check(folder)
    assert list_findings(found) == [("unreadable", ("train/cat/1.jpg",))]
    assert "truncated" in found.issues[0].detail
    assert not found.is_clean
    assert list_images_to_exclude(found) == ["train/cat/1.jpg"]


def test_copies_within_a_split(folder: Path) -> None:
    copy(folder, "train/cat/1.jpg", "train/cat/9.jpg")
    (folder / "train" / "dog" / "8.jpg").write_bytes(encode(draw_picture(5), 50))  # the first dog
    found = check(folder)
    assert list_findings(found) == [
        ("exact copies", ("train/cat/1.jpg", "train/cat/9.jpg")),
        ("near copies", ("train/dog/0.jpg", "train/dog/8.jpg")),
    ]
    assert list_images_to_exclude(found) == ["train/cat/9.jpg", "train/dog/8.jpg"]


def test_an_image_in_train_and_test(folder: Path) -> None:
    copy(folder, "test/cat/1.jpg", "train/cat/9.jpg")
    found = check(folder)
    assert list_findings(found) == [("in two splits", ("train/cat/9.jpg", "test/cat/1.jpg"))]
    assert found.issues[0].detail == "identical bytes, in both test and train"
    assert list_images_to_exclude(found) == ["train/cat/9.jpg"]


def test_an_image_under_two_labels(folder: Path) -> None:
    copy(folder, "train/cat/0.jpg", "train/dog/9.jpg")
    copy(folder, "train/cat/0.jpg", "test/dog/9.jpg")
    found = check(folder)
    assert list_findings(found) == [("two labels", ("train/cat/0.jpg", "train/dog/9.jpg", "test/dog/9.jpg"))]
    assert found.issues[0].detail == "identical bytes, in both test and train, labelled cat, dog"
    assert set(list_images_to_exclude(found)) == {"train/cat/0.jpg", "train/dog/9.jpg"}


def test_a_class_that_is_never_shown(folder: Path) -> None:
    write_picture(folder / "test" / "emu" / "0.jpg", 77)
    found = check(folder)
    assert [(finding.kind, finding.detail) for finding in found.issues] == [("no training images", "class emu")]
    assert list_images_to_exclude(found) == []


def test_what_is_worth_a_look_is_not_wrong(folder: Path) -> None:
    Image.new("RGB", (100, 90), "white").save(folder / "train" / "cat" / "4.png")
    draw_picture(50, (20, 200)).save(folder / "train" / "cat" / "5.png")
    draw_picture(51, (9, 12)).save(folder / "train" / "cat" / "6.png")
    draw_picture(52).save(folder / "train" / "cat" / "7.jpg", "PNG")
    found = check(folder)
    assert {found.name(finding.images[0]): finding.detail for finding in found.issues} == {
        "train/cat/4.png": "one colour all over",
        "train/cat/5.png": "20 x 200 pixels, a strip",
        "train/cat/6.png": "only 9 x 12 pixels",
        "train/cat/7.jpg": "PNG under another format's name",
    }
    assert {finding.kind for finding in found.issues} == {"suspicious"}
    assert found.is_clean
    assert list_images_to_exclude(found) == []


def test_the_list_can_be_excluded(folder: Path, tmp_path: Path) -> None:
    copy(folder, "train/cat/1.jpg", "train/cat/9.jpg")
    (tmp_path / "list.txt").write_text("\n".join(list_images_to_exclude(check(folder))))
    kept = exclude_images(find_data(folder).open("train"), tmp_path / "list.txt")
    assert [kept.name(number) for number in range(len(kept)) if "cat" in kept.name(number)] == [
        f"train/cat/{number}.jpg" for number in range(4)
    ]


def test_pairs_become_groups_around_a_first_image() -> None:
    """What is alike by way of a third only is no group: 5 is like 3, not like 0."""
    pairs = DuplicatePairs(
        np.array([[0, 3], [0, 2], [2, 3], [3, 5], [1, 4]]), np.array([1.0, 0.9, 0.8, 0.8, 1.0]), np.arange(5) == 0
    )
    assert group_duplicates(pairs) == [([0, 2, 3], 0.9), ([1, 4], 0.9999), ([3, 5], 0.8)]
    assert group_duplicates(DuplicatePairs(np.zeros((0, 2), np.int64), np.zeros(0), np.zeros(0, bool))) == []


def test_an_image_without_a_label_has_no_other_one(tmp_path: Path, cache: Path) -> None:
    write_picture(tmp_path / "a.jpg", 0)
    write_picture(tmp_path / "b.jpg", 0)
    rows = ['{"file": "a.jpg", "label": "cat", "split": "train"}', '{"file": "b.jpg", "split": "test"}']
    (tmp_path / "list.jsonl").write_text("\n".join(rows))
    found = check(tmp_path / "list.jsonl")
    assert list_findings(found) == [("in two splits", ("a.jpg", "b.jpg")), ("single image", ("a.jpg",))]
    assert list_images_to_exclude(found) == ["a.jpg"]


def test_copies_in_test_are_not_for_training_to_leave_out(folder: Path) -> None:
    copy(folder, "test/cat/1.jpg", "test/cat/9.jpg")
    found = check(folder)
    assert [finding.kind for finding in found.issues] == ["exact copies"]
    assert list_images_to_exclude(found) == []


def test_a_split_that_is_made_of_others_is_not_compared_with_them(tmp_path: Path, cache: Path) -> None:
    lists: dict[str, list[str]] = {"train800": [], "val200": [], "test": []}
    for number in range(6):
        write_picture(tmp_path / "pets" / "images" / f"{number}.jpg", number)
        lists[("train800", "val200", "test")[number % 3]].append(f"images/{number}.jpg {number % 2}")
    lists["train800val200"] = lists["train800"] + lists["val200"]
    for name, lines in lists.items():
        (tmp_path / "pets" / f"{name}.txt").write_text("\n".join(lines))
    found = check(tmp_path / "pets")
    assert set(found.sources) == {"train", "val", "test"}
    assert found.is_clean


def test_data_that_is_not_divided(tmp_path: Path, cache: Path) -> None:
    for number in range(3):
        write_picture(tmp_path / "data" / "cat" / f"{number}.jpg", number % 2)
    found = check(tmp_path / "data")
    assert list_findings(found) == [("exact copies", ("cat/0.jpg", "cat/2.jpg"))]
    assert list_images_to_exclude(found) == ["cat/2.jpg"]


def test_images_with_several_labels(tmp_path: Path, cache: Path) -> None:
    rows = ["file,label"]
    for number, labels in enumerate(["a;b", "b;a", "a"]):
        write_picture(tmp_path / "data" / f"{number}.jpg", seed=0)
        rows.append(f"{number}.jpg,{labels}")
    (tmp_path / "data" / "list.csv").write_text("\n".join(rows))
    found = check(tmp_path / "data" / "list.csv")
    assert [finding.kind for finding in found.issues] == ["two labels"]


def test_an_empty_class_folder_and_a_single_image_are_worth_a_look(folder: Path) -> None:
    (folder / "train" / "yak").mkdir()
    write_picture(folder / "train" / "gnu" / "1.jpg", 77)
    with pytest.warns(VitrineWarning, match="yak"):
        found = check_data(folder)
    assert [(issue.kind, issue.detail) for issue in found.issues] == [
        ("empty class folder", "folder yak"),
        ("single image", "the only image of class gnu"),
    ]
    assert [found.name(image) for image in found.issues[1].images] == ["train/gnu/1.jpg"]
    assert found.is_clean

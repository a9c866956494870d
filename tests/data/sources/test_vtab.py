"""The community's lists of VTAB-1k: what they list is what there is, and each line that cannot be right is named."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.opening import find_data, open_train_and_test
from vitrine.data.sources.vtab import KIND

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
    assert KIND.list_splits(task) == ("train", "val", "test", "train800val200")
    for split, lines in {"train": TRAIN, "val": VAL, "test": TEST, "train800val200": (*TRAIN, *VAL)}.items():
        source = KIND.open(task, split)
        assert [source.name(index) for index in range(len(source))] == [f"images/a {number}.png" for number, _ in lines]
        assert source.labels.values.tolist() == [label for _, label in lines]
        assert source.class_names == ("0", "1", "2", "3")
        pixels = source.read(1)[0].pixels()
        np.testing.assert_array_equal(pixels, np.broadcast_to([10 * lines[1][0], 0, 0], (4, 5, 3)))


def test_it_is_data_like_any_other(task: Path) -> None:
    """By default what is trained on and what is watched are disjoint; the usual names of the splits do as well."""
    data = find_data(task)
    assert data.kind == "vtab"
    assert len(data.open("train800")) == len(data.open_train()) == len(TRAIN)
    assert len(data.open("val200")) == len(VAL)
    train, test = open_train_and_test(str(task), 0.1)
    assert (len(train), len(test)) == (len(TRAIN), len(TEST))


def test_a_list_of_both_is_not_needed(task: Path) -> None:
    listed = KIND.open(task, "train800val200")
    (task / "train800val200.txt").unlink()
    assert KIND.list_splits(task) == ("train", "val", "test", "train800val200")
    joined = KIND.open(task, "train800val200")
    assert [joined.name(index) for index in range(6)] == [listed.name(index) for index in range(6)]
    assert joined.labels.values.tolist() == listed.labels.values.tolist()


def test_one_list_is_enough_to_know_it(task: Path) -> None:
    for name in ("train800", "val200"):
        (task / f"{name}.txt").unlink()
    assert KIND.is_mine(task)
    assert KIND.list_splits(task) == ("test", "train800val200")
    (task / "train800val200.txt").unlink()
    assert not KIND.is_mine(task)


def test_classes_may_have_names(task: Path) -> None:
    (task / "classes.txt").write_text("cat\ndog\nowl\nfox\nhen\n")
    assert KIND.open(task, "val").class_names == ("cat", "dog", "owl", "fox", "hen")
    assert task / "classes.txt" in KIND.open(task, "val").files()
    (task / "classes.txt").write_text("cat\ndog\nowl\n")
    with pytest.raises(
        ValueError, match=r"test\.txt line 2 has the class 3, and classes\.txt lists 3, counted from 0: mend one"
    ):
        KIND.open(task, "val")


@pytest.mark.parametrize("line", ["images/a.png", "7", "images/a.png x", "images/a.png -1", "images/a.png 9999999999"])
def test_a_line_that_is_none_is_named(task: Path, line: str) -> None:
    (task / "val200.txt").write_text(f"images/a 4.png 1\n{line}\n")
    with pytest.raises(ValueError, match=r"val200\.txt line 2 is .*, and a path and a class, .* were needed: mend it"):
        KIND.open(task, "train")


def test_an_image_twice_is_named(task: Path) -> None:
    (task / "val200.txt").write_text("images/a 4.png 1\n./images/a 4.png 2\n")
    with pytest.raises(ValueError, match=r"line 2 lists images/a 4\.png, as does .*line 1, and once was needed"):
        KIND.open(task, "val")


def test_images_that_were_not_unpacked_are_missed(task: Path) -> None:
    (task / "images" / "a 0.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"train800\.txt line 1 lists images/a 0\.png, and there is no such file in"):
        KIND.open(task, "train")

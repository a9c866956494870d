"""Fingerprints of data: what they notice, what they do not, and how changes are told."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data import fingerprint as module
from vitrine.data.fingerprint import DataFingerprint, SplitFingerprint
from vitrine.data.open_data import open_data
from vitrine.data.source import ArraySource, Labels
from vitrine.data.subsets import select_subset


def write_image(path: Path, value: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        write_image(tmp_path / "photos" / name)
    return tmp_path / "photos"


def compute(folder: Path) -> SplitFingerprint:
    return SplitFingerprint.compute(open_data(str(folder)))


def rename_class(folder: Path) -> None:
    (folder / "cat").rename(folder / "aaa")


def move_image(folder: Path) -> None:
    (folder / "cat" / "2.png").rename(folder / "dog" / "3.png")


def grow_file(folder: Path) -> None:
    path = folder / "dog" / "2.png"
    path.write_bytes(path.read_bytes() + b"\0")


CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "renamed class": (rename_class, ["missing classes (cat)", "new classes (aaa)"]),
    "new class": (lambda folder: write_image(folder / "eel" / "1.png"), ["new classes (eel)"]),
    "new image": (lambda folder: write_image(folder / "cat" / "3.png"), ["new images (cat/3.png)"]),
    "removed image": (lambda folder: (folder / "dog" / "1.png").unlink(), ["missing images (dog/1.png)"]),
    "moved image": (move_image, ["missing images (cat/2.png)", "new images (dog/3.png)"]),
    "another size": (grow_file, ["files with another size (dog/2.png)"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_noticed_and_named(change: str, folder: Path) -> None:
    make, expected = CHANGES[change]
    before = compute(folder)
    assert before.list_changes(compute(folder)) == []
    make(folder)
    assert before.list_changes(compute(folder)) == expected


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_large_splits_are_noticed_by_digests(change: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 3)
    before = compute(folder)
    assert before.images is None
    assert before.files is None
    CHANGES[change][0](folder)
    [*changes] = before.list_changes(compute(folder))
    assert changes
    if change == "new image":
        assert changes == ["cat had 2 images and has 3"]


def test_the_place_of_the_data_does_not_matter(folder: Path) -> None:
    before = compute(folder)
    folder.rename(folder.parent / "moved")
    assert compute(folder.parent / "moved") == before


def test_labels_and_order_are_noticed() -> None:
    pixels = np.zeros((3, 2, 2, 1), np.uint8)
    one, other = (
        SplitFingerprint.compute(ArraySource(pixels, Labels.one_each(labels), ("a", "b"), "x"))
        for labels in ([0, 1, 1], [0, 0, 1])
    )
    assert one.list_changes(other) == ["images with other labels (x[1])"]
    swapped = SplitFingerprint.compute(ArraySource(pixels, Labels.one_each([0, 1, 1]), ("b", "a"), "x"))
    assert one.list_changes(swapped) == ["classes in another order"]


def test_a_subset_is_that_of_its_images(folder: Path) -> None:
    source = open_data(str(folder))
    half = SplitFingerprint.compute(select_subset(source, "50%"))
    assert sum(half.class_counts) == 2
    assert compute(folder).list_changes(half)[0].startswith("missing images")


def test_splits_and_steps_are_kept_in_json(folder: Path) -> None:
    source = open_data(str(folder))
    before = DataFingerprint.compute({"train": source, "val": None, "test": source}, 7)
    saved = DataFingerprint.from_json(json.loads(json.dumps(before.to_json())))
    assert saved == before
    assert saved.total_steps == 7
    assert before.list_changes(DataFingerprint.compute({"train": source, "val": source, "test": None}, 7)) == [
        "test is missing",
        "val is new",
    ]
    rename_class(folder)
    renamed = DataFingerprint.compute({"train": open_data(str(folder)), "test": source}, 7)
    assert not before.has_classes_of(renamed)
    assert before.list_changes(renamed)[0].startswith("train has missing classes (cat)")

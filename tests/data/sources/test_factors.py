"""Annotations instead of classes: the rule of the task makes the class, and the list is checked as any other."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitrine.data.label_rules import label_dsprites_location, label_kitti_distance
from vitrine.data.sources.factors import find_factors, list_factor_splits, open_factors

ROWS = (
    {"file": "images/0.png", "split": "train", "x_position": 0},
    {"file": "images/1.png", "split": "train", "x_position": 31},
    {"file": "images/2.png", "split": "validation", "x_position": 13, "label": None},
    {"file": "images/3.png", "split": "test", "x_position": 13, "label": 2},
)


def write_rows(folder: Path, rows: tuple[dict[str, Any], ...]) -> Path:
    (folder / "images").mkdir(exist_ok=True)
    for row in rows:
        Image.new("RGB", (4, 4)).save(folder / row["file"])
    path = folder / "annotations.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_rule_makes_the_classes(tmp_path: Path) -> None:
    path = write_rows(tmp_path, ROWS)
    assert list_factor_splits(path, label_dsprites_location) == ("train", "val", "test")
    sources = {split: open_factors(path, label_dsprites_location, 16, split) for split in ("train", "val", "test")}
    assert sources["train"].labels.values.tolist() == [0, 15]
    assert sources["val"].labels.values.tolist() == [6]
    assert sources["test"].labels.values.tolist() == [2]  # a class that is written down stays
    assert {source.class_names for source in sources.values()} == {tuple(map(str, range(16)))}
    assert sources["train"].name(1) == "images/1.png"
    assert path in sources["train"].files()


def test_a_scene_of_kitti(tmp_path: Path) -> None:
    objects = [{"type": "Pedestrian", "location": [0, 0, 4.0]}, {"type": "Van", "location": [2.5, 1.6, 14.0]}]
    path = write_rows(tmp_path, ({"file": "images/0.png", "objects": objects},))
    source = open_factors(path, label_kitti_distance, 4, None)
    assert source.labels.values.tolist() == [1]
    assert source.class_names == ("0", "1", "2", "3")


def test_the_list_is_a_file_or_lies_in_the_folder(tmp_path: Path) -> None:
    assert find_factors(tmp_path) is None
    path = write_rows(tmp_path, ROWS)
    assert find_factors(tmp_path) == find_factors(path) == path
    assert find_factors(tmp_path / "other.jsonl") is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"x_position": 32},
            r"annotations\.jsonl line 1 has x_position=32, and a whole number from 0 to 31 was needed: correct",
        ),
        ({"x_position": None}, r"line 1 has x_position=None"),
        ({"label": 16}, r"annotations\.jsonl has labels that are no classes from 0 to 15"),
        ({"label": "left"}, r"annotations\.jsonl has labels that are no classes from 0 to 15"),
        ({"split": "holiday"}, r"line 1 has the split 'holiday', and train, val or test was needed"),
        ({"file": "images/1.png"}, r"line 2 names 'images/1.png' as line 1 does"),
    ],
)
def test_what_cannot_be_right_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = write_rows(tmp_path, ({**ROWS[0], **change}, *ROWS[1:]))
    with pytest.raises(ValueError, match=sentence):
        open_factors(path, label_dsprites_location, 16, "train")

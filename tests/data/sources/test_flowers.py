"""Oxford Flowers-102: MATLAB's lists are followed, as scipy writes and reads them."""

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from PIL import Image

from vitrine.data.sources.flowers import FORMAT

LABELS = [77, 77, 1, 102, 1, 102, 77, 1]
SPLITS = {"trnid": [1, 3, 4], "valid": [2, 5], "tstid": [6, 7, 8]}


def make_flowers(folder: Path) -> Path:
    (folder / "jpg").mkdir(parents=True)
    for number in range(1, len(LABELS) + 1):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(folder / "jpg" / f"image_{number:05d}.jpg", "PNG")
    write_lists(folder)
    return folder


def write_lists(folder: Path, labels: Any = LABELS, **splits: Any) -> None:
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.array([labels], dtype="u1")}, do_compression=True)
    lists = {name: np.array([numbers], dtype="u2") for name, numbers in {**SPLITS, **splits}.items()}
    scipy.io.savemat(folder / "setid.mat", lists, do_compression=True)


@pytest.fixture
def flowers(tmp_path: Path) -> Path:
    return make_flowers(tmp_path / "flowers-102")


def test_splits_are_the_official_lists(flowers: Path) -> None:
    assert FORMAT.name == "flowers"
    assert FORMAT.list_splits(flowers) == ("train", "val", "test")
    for split, key in {"train": "trnid", "val": "valid", "test": "tstid"}.items():
        source = FORMAT.open(flowers, split)
        numbers = scipy.io.loadmat(flowers / "setid.mat")[key][0]
        labels = scipy.io.loadmat(flowers / "imagelabels.mat")["labels"][0]
        assert [source.name(index) for index in range(len(source))] == [f"jpg/image_{number:05d}.jpg" for number in numbers]
        assert [source.class_names[label] for label in source.labels.values] == [str(labels[number - 1]) for number in numbers]
        assert [source.read(index)[0].to_numpy()[0, 0, 0] for index in range(len(source))] == numbers.tolist()
        assert source.class_names == tuple(map(str, range(1, 103)))
        assert source.files()[len(source) :] == [flowers / "imagelabels.mat", flowers / "setid.mat"]


def test_the_order_is_that_of_the_list(flowers: Path) -> None:
    write_lists(flowers, trnid=[4, 1, 3])
    source = FORMAT.open(flowers, "train")
    assert [source.name(index)[-5] for index in range(3)] == ["4", "1", "3"]
    assert source.labels.values.tolist() == [101, 76, 0]


def test_numbers_may_be_doubles_in_a_column(flowers: Path) -> None:
    """MATLAB makes doubles of whatever is not said to be something else."""
    lists = {name: np.array(numbers, dtype=np.float64)[:, None] for name, numbers in SPLITS.items()}
    scipy.io.savemat(flowers / "setid.mat", lists)
    assert FORMAT.open(flowers, "train").labels.values.tolist() == [76, 0, 101]


def test_names_come_from_the_file_beside(flowers: Path, assets: Path) -> None:
    shutil.copy(assets / "flowers102" / "cat_to_name.json", flowers)
    source = FORMAT.open(flowers, "train")
    assert len(source.class_names) == 102
    assert source.files()[-1] == flowers / "cat_to_name.json"
    assert [source.class_names[label] for label in source.labels.values] == [
        "passion flower",
        "pink primrose",
        "blackberry lily",
    ]


@pytest.mark.parametrize("names", [{"1": "rose"}, [1, 2], {str(number): 5 for number in range(1, 103)}])
def test_names_must_be_of_all_classes(names: object, flowers: Path) -> None:
    (flowers / "cat_to_name.json").write_text(json.dumps(names))
    with pytest.raises(ValueError, match=r"cat_to_name\.json must have a name for each of the classes '1' to '102'"):
        FORMAT.open(flowers, "train")


def test_every_usual_place_will_do(flowers: Path) -> None:
    assert FORMAT.open(flowers.parent, "val").name(0) == "jpg/image_00002.jpg"
    (flowers / "102flowers").mkdir()
    shutil.move(flowers / "jpg", flowers / "102flowers")
    assert FORMAT.open(flowers, "val").name(0) == "jpg/image_00002.jpg"
    for name in ("imagelabels.mat", "setid.mat"):
        shutil.move(flowers / name, flowers / "102flowers")
    assert FORMAT.open(flowers, "val").files()[0] == flowers / "102flowers" / "jpg" / "image_00002.jpg"


def test_other_data_is_not_taken_for_it(flowers: Path, assets: Path) -> None:
    assert FORMAT.matches(flowers)
    assert not FORMAT.matches(flowers / "jpg")
    assert not FORMAT.matches(flowers / "setid.mat")
    assert not FORMAT.matches(assets / "flowers102")  # sorted into folders by class


def test_a_source_can_be_sent(flowers: Path) -> None:
    source = FORMAT.open(flowers, "train")
    source.read(0)
    assert pickle.loads(pickle.dumps(source)).fetch(1) == source.fetch(1)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"labels": [0, *LABELS[1:]]},
            "imagelabels.mat has 0 in labels, position 1",
        ),
        ({"labels": [*LABELS[:7], 103]}, "imagelabels.mat has 103 in labels, position 8"),
        ({"labels": LABELS[:7]}, "setid.mat has 8 in tstid, position 3"),
        ({"trnid": [0, 1]}, "setid.mat has 0 in trnid, position 1"),
        ({"trnid": [1, 2]}, "setid.mat has image 2 in both trnid and valid"),
        ({"trnid": [1, 1]}, "setid.mat has image 1 in trnid twice"),
        ({"trnid": []}, "setid.mat has no row of numbers in trnid"),
    ],
)
def test_wrong_numbers_are_named(change: dict[str, list[int]], sentence: str, flowers: Path) -> None:
    write_lists(flowers, **change)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FORMAT.open(flowers, "train")


@pytest.mark.parametrize("value", ["text", np.ones((3, 3)), np.array([[1.5, 2]]), np.array([[np.nan, np.inf]])])
def test_what_is_no_row_of_whole_numbers_costs_a_sentence(value: object, flowers: Path) -> None:
    scipy.io.savemat(flowers / "imagelabels.mat", {"labels": value})
    with pytest.raises(ValueError, match=r"imagelabels\.mat has (no row of numbers in labels|1\.5 in labels|nan in labels)"):
        FORMAT.open(flowers, "train")


def test_missing_and_damaged_files_cost_a_sentence(flowers: Path) -> None:
    (flowers / "jpg" / "image_00003.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"setid\.mat lists image_00003\.jpg"):
        FORMAT.open(flowers, "train")
    assert len(FORMAT.open(flowers, "val")) == 2
    content = (flowers / "setid.mat").read_bytes()
    (flowers / "setid.mat").write_bytes(content[:-20])
    with pytest.raises(ValueError, match=r"setid\.mat is not a complete MATLAB file"):
        FORMAT.open(flowers, "train")
    (flowers / "setid.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"setid\.mat does not exist"):
        FORMAT.open(flowers, "train")

"""Oxford-IIIT Pet: its lists are followed, and each line that cannot be right is named."""

import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.data.sources.pets import FORMAT

TRAIN = """\
#Image CLASS-ID SPECIES BREED ID
#ID: 1:37 Class ids
Abyssinian_1 1 1 1
Abyssinian_10 1 1 1
american_bulldog_100 2 2 1
basset_hound_3 3 2 2
"""
TEST = "Abyssinian_2 1 1 1\namerican_bulldog_7 2 2 1\n"


def make_pets(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    (folder / "annotations" / "trainval.txt").write_text(TRAIN)
    (folder / "annotations" / "test.txt").write_text(TEST)
    names = [line.split()[0] for line in (TRAIN + TEST).splitlines() if not line.startswith("#")]
    for shade, name in enumerate(names):
        # In the published set some files of this name are GIF or BMP.
        Image.new("RGB", (4, 3), (shade, 0, 0)).save(folder / "images" / f"{name}.jpg", ["JPEG", "BMP"][shade % 2])
    (folder / "images" / "Abyssinian_100.mat").touch()  # there are some, of nobody's use
    return folder


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return make_pets(tmp_path / "oxford-iiit-pet")


def test_splits_are_the_official_lists(pets: Path) -> None:
    assert FORMAT.name == "pets"
    assert FORMAT.list_splits(pets) == ("train", "test")
    train, test = FORMAT.open(pets, "train"), FORMAT.open(pets, "test")
    assert train.class_names == test.class_names == ("Abyssinian", "american_bulldog", "basset_hound")
    assert [train.name(index) for index in range(4)] == [
        "images/Abyssinian_1.jpg",
        "images/Abyssinian_10.jpg",
        "images/american_bulldog_100.jpg",
        "images/basset_hound_3.jpg",
    ]
    assert train.labels.values.tolist() == [0, 0, 1, 2]
    assert test.labels.values.tolist() == [0, 1]
    images = [pets / "images" / "Abyssinian_2.jpg", pets / "images" / "american_bulldog_7.jpg"]
    assert test.files() == [*images, pets / "annotations" / "trainval.txt", pets / "annotations" / "test.txt"]
    image, label = train.read(3)
    np.testing.assert_array_equal(image.to_numpy(), np.full((3, 4, 3), [3, 0, 0]))
    assert label == 2


def test_the_folder_above_will_do(pets: Path) -> None:
    assert FORMAT.matches(pets)
    assert FORMAT.matches(pets.parent)
    assert FORMAT.list_splits(pets.parent) == ("train", "test")
    assert FORMAT.open(pets.parent, "test").name(0) == FORMAT.open(pets, "test").name(0) == "images/Abyssinian_2.jpg"


def test_other_data_is_not_taken_for_it(pets: Path, assets: Path) -> None:
    assert not FORMAT.matches(pets / "images")
    assert not FORMAT.matches(pets / "nowhere")
    assert not FORMAT.matches(assets / "pets")  # sorted into folders by breed


def test_without_its_test_list_there_is_train(pets: Path) -> None:
    (pets / "annotations" / "test.txt").unlink()
    assert FORMAT.list_splits(pets) == ("train",)
    assert len(FORMAT.open(pets, "train")) == 4


def test_a_source_can_be_sent(pets: Path) -> None:
    source = FORMAT.open(pets, "train")
    source.read(0)
    assert pickle.loads(pickle.dumps(source)).fetch(1) == source.fetch(1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("Abyssinian_9 1 1", "trainval.txt, line 7 is 'Abyssinian_9 1 1'"),
        ("Abyssinian 1 1 1", "trainval.txt, line 7 is 'Abyssinian 1 1 1'"),
        ("Abyssinian_9 1 3 1", "trainval.txt, line 7 is 'Abyssinian_9 1 3 1'"),
        ("Abyssinian_9 one 1 1", "trainval.txt, line 7 is 'Abyssinian_9 one 1 1'"),
        (f"Abyssinian_9 {'1' * 5000} 1 1", "trainval.txt, line 7 is 'Abyssinian_9 111"),
        ("Abyssinian_9 0 1 1", "trainval.txt, line 7 has class 0"),
        ("Abyssinian_9 38 1 1", "trainval.txt, line 7 has class 38"),
        ("Abyssinian_9 2 1 1", "line 7 gives Abyssinian class 2"),
        ("Abyssinian_9 4 1 1", "line 7 gives Abyssinian class 4"),
        ("Abyssinian_1 1 1 1", "trainval.txt, line 7 lists Abyssinian_1"),
        ("Abyssinian_2 1 1 1", "test.txt, line 1 lists Abyssinian_2"),
        ("Bombay_1 8 1 5", "annotations lists no image of class 4"),
        ("Abyssinian_9 1 1 1", "line 7 lists Abyssinian_9"),
        ("../../Abyssinian_1 4 1 1", "line 7 lists ../../Abyssinian_1"),
    ],
)
def test_a_wrong_line_is_named(line: str, sentence: str, pets: Path) -> None:
    (pets / "annotations" / "trainval.txt").write_text(TRAIN + line + "\n")
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(sentence)):
        FORMAT.open(pets, "train")


def test_lists_that_are_empty_or_no_text_cost_a_sentence(pets: Path) -> None:
    (pets / "annotations" / "test.txt").write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match=r"test\.txt is not UTF-8"):
        FORMAT.open(pets, "train")
    for name in ("trainval.txt", "test.txt"):
        (pets / "annotations" / name).write_text("# nothing\n")
    with pytest.raises(ValueError, match=r"trainval\.txt lists no image"):
        FORMAT.open(pets, "train")


def test_a_missing_image_of_the_other_split_is_no_matter(pets: Path) -> None:
    (pets / "images" / "Abyssinian_2.jpg").unlink()
    assert len(FORMAT.open(pets, "train")) == 4
    shutil.rmtree(pets / "images")
    assert not FORMAT.matches(pets)

"""Label files of ImageNet: lines as published, the devkit's order against that of wnids, and lines that cannot be right."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from tests.data.sources.test_matlab import build_structures
from vitrine.data.sources.imagenet_labels import (
    BY_ID,
    find_file,
    list_label_files,
    load_real,
    load_synsets,
    load_truth,
    load_words,
    order_real,
)

# The first six validation images, as TensorFlow's file and Caffe's have them: both published, neither by us.
FIRST_WNIDS = ["n01751748", "n09193705", "n02105855", "n04263257", "n03125729", "n01735189"]
FIRST_INDICES = [65, 970, 230, 809, 516, 57]


def write_meta(path: Path, rows: list[tuple[int, str, str, int]]) -> None:
    """The structures of the devkit's meta.mat: ILSVRC2012_ID, WNID, words, num_children, and what we do not need."""
    synsets = [
        {
            "ILSVRC2012_ID": np.uint16(number),
            "WNID": wnid,
            "words": words,
            "gloss": f"what {words} means",
            "num_children": np.uint8(num_children),
            "children": np.arange(num_children),
            "wordnet_height": np.uint8(0),
            "num_train_images": np.uint16(1300),
        }
        for number, wnid, words, num_children in rows
    ]
    scipy.io.savemat(path, {"synsets": build_structures(synsets)}, do_compression=True)


def test_published_lines_agree(tmp_path: Path, assets: Path) -> None:
    words = load_words([assets / "imagenet-val-1000"])
    assert words is not None
    assert len(words) == 1000
    assert words["n01440764"] == "tench, Tinca tinca"
    wnids = sorted(words)
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").write_text("\n".join(FIRST_WNIDS) + "\n")
    assert load_truth([tmp_path]).to_classes(wnids).tolist() == FIRST_INDICES
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").unlink()
    lines = [f"ILSVRC2012_val_{number:08d}.JPEG {index}" for number, index in enumerate(FIRST_INDICES, start=1)]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    truth = load_truth([tmp_path])
    assert [wnids[index] for index in truth.to_classes(wnids)] == FIRST_WNIDS


def test_kaggle_lines_are_put_in_order(tmp_path: Path) -> None:
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\r\n"
        "ILSVRC2012_val_00000002,n09193705 85 1 499 272 \r\n"
        "ILSVRC2012_val_00000003,n02105855\r\n"
        "ILSVRC2012_val_00000001,n01751748 111 108 230 173 n01751748 42 9 322 285 \r\n"
    )
    truth = load_truth([tmp_path])
    assert (truth.labels, truth.lines) == (FIRST_WNIDS[:3], [4, 2, 3])


def test_numbers_of_the_devkit_go_by_its_own_order(tmp_path: Path) -> None:
    write_meta(tmp_path / "meta.mat", [(1, "n03", "c", 0), (2, "n02", "b", 0)])
    with pytest.raises(ValueError, match=r"meta\.mat has no ILSVRC2012_ID, WNID, words and num_children in synset 1"):
        load_synsets(tmp_path / "meta.mat")
    write_meta(tmp_path / "meta.mat", [(2, "n00000001", "a, b", 0), (1, "n00000002", "c", 0), (3, "n00000003", "animal", 2)])
    assert load_synsets(tmp_path / "meta.mat") == [(2, "n00000001", "a, b"), (1, "n00000002", "c")]
    assert load_words([tmp_path]) == {"n00000001": "a, b", "n00000002": "c"}
    (tmp_path / BY_ID).write_text("1\n2\n1\n")
    truth = load_truth([tmp_path])
    assert truth.labels == ["n00000002", "n00000001", "n00000002"]
    assert truth.to_classes(["n00000001", "n00000002"]).tolist() == [1, 0, 1]


def test_a_file_that_can_be_used_is_taken_before_one_that_cannot(tmp_path: Path) -> None:
    (tmp_path / BY_ID).write_text("490\n")
    with pytest.raises(FileNotFoundError, match=rf"{BY_ID} has numbers of classes that only meta\.mat of the same devkit"):
        load_truth([tmp_path])
    (tmp_path / "val.txt").write_text("val/ILSVRC2012_val_00000001.JPEG 65\n")
    assert load_truth([tmp_path]).labels == [65]
    write_meta(tmp_path / "meta.mat", [(490, "n01751748", "sea snake", 0)])
    assert load_truth([tmp_path]).labels == ["n01751748"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "val.txt",
            "ILSVRC2012_val_00000001.JPEG\n",
            "val.txt, line 1 is 'ILSVRC2012_val_00000001.JPEG', which is no label as",
        ),
        ("val.txt", "n01440764/a.JPEG 0\n", "val.txt, line 1 is 'n01440764/a.JPEG 0', which is no label"),
        ("val.txt", "", "val.txt has no label for validation image 1, which was needed"),
        ("val.txt", "ILSVRC2012_val_00000002.JPEG 0", "val.txt has no label for validation image 1, which"),
        ("val.txt", "ILSVRC2012_val_00000001 0\n" * 2, "val.txt, line 2 has a second label for image 1, and one was needed"),
        ("val.txt", "ILSVRC2012_val_00000001 2", "val.txt, line 1 has the class 2, which is not among the 2 of this data"),
        (
            "LOC_val_solution.csv",
            "ILSVRC2012_val_00000001,cat 1 2 3 4",
            "line 1 is 'ILSVRC2012_val_00000001,cat 1 2 3 4', which",
        ),
        (
            "imagenet_2012_validation_synset_labels.txt",
            "n00000001\nn00000009\n",
            "line 2 has the class n00000009, which is not among the 2 of this data",
        ),
        (BY_ID, "1\n-2\n", "line 2 is '-2', which is no label"),
        (BY_ID, "1\n3\n", "line 2 has the class 3, which "),
        (BY_ID, "1" * 5000, "line 1 is '111"),
    ],
)
def test_a_wrong_line_is_named(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    write_meta(tmp_path / "meta.mat", [(1, "n00000001", "a", 0), (2, "n00000002", "b", 0)])
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_truth([tmp_path]).to_classes(["n00000001", "n00000002"])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(1, "n00000001", "a", 2)], "meta.mat has no classes, or two with one"),
        ([(1, "n00000001", "a", 0), (1, "n00000002", "b", 0)], "meta.mat has no classes, or two with one"),
        ([(1, "n00000001", "a", 0), (2, "n00000001", "b", 0)], "meta.mat has no classes, or two with one"),
        ([(1, "dog", "a", 0)], "meta.mat has no ILSVRC2012_ID, WNID, words and num_children in synset 1"),
    ],
)
def test_wrong_synsets_cost_a_sentence(rows: list[tuple[int, str, str, int]], sentence: str, tmp_path: Path) -> None:
    write_meta(tmp_path / "meta.mat", rows)
    with pytest.raises(ValueError, match=sentence):
        load_synsets(tmp_path / "meta.mat")


@pytest.mark.parametrize("value", [np.arange(3), "text", build_structures([{"WNID": "n00000001"}])])
def test_a_mat_file_of_something_else_costs_a_sentence(value: object, tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "meta.mat", {"synsets": value})
    with pytest.raises(ValueError, match=r"meta\.mat has no (structures in synsets|ILSVRC2012_ID, WNID)"):
        load_synsets(tmp_path / "meta.mat")


@pytest.mark.parametrize("text", ["n01440764\n", "tench\n", "n01440764 a\nn01440764 b\n", "n0144 tench\n"])
def test_names_without_words_or_twice_cost_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "synset_words.txt").write_text(text)
    with pytest.raises(ValueError, match=r"synset_words\.txt, line \d is .*, and each wnid once, with its words"):
        load_words([tmp_path])


def test_files_are_looked_for_in_every_place(tmp_path: Path) -> None:
    (tmp_path / "devkit").mkdir()
    (tmp_path / "devkit" / "b").touch()
    assert find_file([tmp_path, tmp_path / "devkit"], ["a", "b"]) == tmp_path / "devkit" / "b"
    (tmp_path / "b").touch()
    assert find_file([tmp_path, tmp_path / "devkit"], ["a", "b"]) == tmp_path / "b"
    assert find_file([tmp_path], ["a"]) is None
    assert load_words([tmp_path]) is None
    with pytest.raises(FileNotFoundError, match=r"has no labels for its validation images: add one of LOC_val_solution\.csv, "):
        load_truth([tmp_path])


def test_real_labels_are_sets(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[[1], [], [2, 0, 2]]")
    labels = order_real(load_real(tmp_path / "real.json", 3), np.array([3, 1, 2]))
    assert [labels[index] for index in range(3)] == [(0, 2), (1,), ()]


@pytest.mark.parametrize("each", [3, -1, True, 1.0, "1", None, [0]])
def test_wrong_real_labels_are_named(each: object, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps([[0], [each]]))
    with pytest.raises(ValueError, match=r"real\.json has .* for image 2, and classes from 0 to 2 were needed"):
        load_real(tmp_path / "real.json", 3)
    (tmp_path / "real.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match=r"real\.json is not a list of lists of classes"):
        load_real(tmp_path / "real.json", 3)


def test_label_files_are_those_of_the_split(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    files = [first / "LOC_synset_mapping.txt", second / "meta.mat", second / BY_ID, first / "real.json"]
    for path in (*files, second / "real.json"):
        path.touch()
    assert list_label_files([first, second], "train") == files[:2]
    assert list_label_files([first, second], "val") == files[:3]
    assert list_label_files([first, second], "real") == files

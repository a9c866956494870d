"""Tests of data/sources/imagenet.py.

Label files of ImageNet: lines as published, the devkit's order against that of wnids, and lines that cannot be right.
ImageNet in every layout that it comes in: the same images must have the same labels.
"""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.sources.test_matlab import build_structures
from vitrine.data.source import Source
from vitrine.data.sources.imagenet import (
    BY_ID,
    FORMAT,
    find_file,
    list_label_files,
    load_real,
    load_synsets,
    load_validation_labels,
    load_words,
    order_real,
)

# The first six validation images, as TensorFlow's file and Caffe's have them: both published, neither by us.
FIRST_WNIDS = ["n01751748", "n09193705", "n02105855", "n04263257", "n03125729", "n01735189"]
FIRST_INDICES = [65, 970, 230, 809, 516, 57]


def write_meta(path: Path, rows: list[tuple[int, str, str, int]]) -> None:
    """The structures of the devkit's meta.mat: ILSVRC2012_ID, WNID, words, num_children"""
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
    assert load_validation_labels([tmp_path]).to_classes(wnids).tolist() == FIRST_INDICES
    (tmp_path / "imagenet_2012_validation_synset_labels.txt").unlink()
    lines = [f"ILSVRC2012_val_{number:08d}.JPEG {index}" for number, index in enumerate(FIRST_INDICES, start=1)]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    truth = load_validation_labels([tmp_path])
    assert [wnids[index] for index in truth.to_classes(wnids)] == FIRST_WNIDS


def test_kaggle_lines_are_put_in_order(tmp_path: Path) -> None:
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\r\n"
        "ILSVRC2012_val_00000002,n09193705 85 1 499 272 \r\n"
        "ILSVRC2012_val_00000003,n02105855\r\n"
        "ILSVRC2012_val_00000001,n01751748 111 108 230 173 n01751748 42 9 322 285 \r\n"
    )
    truth = load_validation_labels([tmp_path])
    assert (truth.labels, truth.lines) == (FIRST_WNIDS[:3], [4, 2, 3])


def test_numbers_of_the_devkit_go_by_its_own_order(tmp_path: Path) -> None:
    write_meta(tmp_path / "meta.mat", [(1, "n03", "c", 0), (2, "n02", "b", 0)])
    with pytest.raises(ValueError, match=r"meta\.mat has no ILSVRC2012_ID, WNID, words and num_children in synset 1"):
        load_synsets(tmp_path / "meta.mat")
    write_meta(tmp_path / "meta.mat", [(2, "n00000001", "a, b", 0), (1, "n00000002", "c", 0), (3, "n00000003", "animal", 2)])
    assert load_synsets(tmp_path / "meta.mat") == [(2, "n00000001", "a, b"), (1, "n00000002", "c")]
    assert load_words([tmp_path]) == {"n00000001": "a, b", "n00000002": "c"}
    (tmp_path / BY_ID).write_text("1\n2\n1\n")
    truth = load_validation_labels([tmp_path])
    assert truth.labels == ["n00000002", "n00000001", "n00000002"]
    assert truth.to_classes(["n00000001", "n00000002"]).tolist() == [1, 0, 1]


def test_a_file_that_can_be_used_is_taken_before_one_that_cannot(tmp_path: Path) -> None:
    (tmp_path / BY_ID).write_text("490\n")
    with pytest.raises(FileNotFoundError, match=rf"{BY_ID} .*meta\.mat"):
        load_validation_labels([tmp_path])
    (tmp_path / "val.txt").write_text("val/ILSVRC2012_val_00000001.JPEG 65\n")
    assert load_validation_labels([tmp_path]).labels == [65]
    write_meta(tmp_path / "meta.mat", [(490, "n01751748", "sea snake", 0)])
    assert load_validation_labels([tmp_path]).labels == ["n01751748"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "val.txt",
            "ILSVRC2012_val_00000001.JPEG\n",
            "val.txt, line 1 is 'ILSVRC2012_val_00000001.JPEG'",
        ),
        ("val.txt", "n01440764/a.JPEG 0\n", "val.txt, line 1 is 'n01440764/a.JPEG 0'"),
        ("val.txt", "", "val.txt has no label for validation image 1"),
        ("val.txt", "ILSVRC2012_val_00000002.JPEG 0", "val.txt has no label for validation image 1"),
        ("val.txt", "ILSVRC2012_val_00000001 0\n" * 2, "val.txt, line 2 has a second label for image 1"),
        ("val.txt", "ILSVRC2012_val_00000001 2", "val.txt, line 1 has class 2"),
        (
            "LOC_val_solution.csv",
            "ILSVRC2012_val_00000001,cat 1 2 3 4",
            "line 1 is 'ILSVRC2012_val_00000001,cat 1 2 3 4', which",
        ),
        (
            "imagenet_2012_validation_synset_labels.txt",
            "n00000001\nn00000009\n",
            "line 2 has class n00000009",
        ),
        (BY_ID, "1\n-2\n", "line 2 is '-2'"),
        (BY_ID, "1\n3\n", "line 2 has class 3, which "),
        (BY_ID, "1" * 5000, "line 1 is '111"),
    ],
)
def test_a_wrong_line_is_named(name: str, text: str, sentence: str, tmp_path: Path) -> None:
    write_meta(tmp_path / "meta.mat", [(1, "n00000001", "a", 0), (2, "n00000002", "b", 0)])
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_validation_labels([tmp_path]).to_classes(["n00000001", "n00000002"])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([(1, "n00000001", "a", 2)], "meta.mat has no classes"),
        ([(1, "n00000001", "a", 0), (1, "n00000002", "b", 0)], "meta.mat has no classes"),
        ([(1, "n00000001", "a", 0), (2, "n00000001", "b", 0)], "meta.mat has no classes"),
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
    with pytest.raises(ValueError, match=r"synset_words\.txt, line \d is"):
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
        load_validation_labels([tmp_path])


def test_real_labels_are_sets(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("[[1], [], [2, 0, 2]]")
    labels = order_real(load_real(tmp_path / "real.json", 3), np.array([3, 1, 2]))
    assert [labels[index] for index in range(3)] == [(0, 2), (1,), ()]


@pytest.mark.parametrize("each", [3, -1, True, 1.0, "1", None, [0]])
def test_wrong_real_labels_are_named(each: object, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps([[0], [each]]))
    with pytest.raises(ValueError, match=r"real\.json has .* for image 2"):
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


WORDS = {"n01440764": "tench, Tinca tinca", "n01443537": "goldfish, Carassius auratus", "n02012849": "crane"}
WNIDS = tuple(WORDS)
TRUTH = [2, 0, 1, 2, 0]
IDS = {"n02012849": 1, "n01440764": 2, "n01443537": 3}  # the devkit's order is not that of wnids
DEVKIT = Path("ILSVRC2012_devkit_t12") / "data"


def make_imagenet(folder: Path) -> Path:
    make_train(folder)
    make_val(folder)
    write_wnids(folder, TRUTH)
    (folder / "synset_words.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    return folder


def make_train(folder: Path) -> None:
    for shade, wnid in enumerate(WNIDS):
        (folder / "train" / wnid).mkdir(parents=True)
        for number in (10, 9):
            image = Image.new("RGB", (4, 3), (shade, number, 0))
            image.save(folder / "train" / wnid / f"{wnid}_{number}.JPEG", "PNG")


def make_val(folder: Path, num_images: int = len(TRUTH)) -> None:
    (folder / "val").mkdir(parents=True)
    for number in range(1, num_images + 1):
        Image.new("RGB", (4, 3), (number, 0, 0)).save(folder / "val" / f"ILSVRC2012_val_{number:08d}.JPEG", "PNG")


def write_ids(folder: Path, truth: list[int]) -> None:
    (folder / DEVKIT).mkdir(parents=True)
    text = "".join(f"{IDS[WNIDS[label]]}\n" for label in truth)
    (folder / DEVKIT / "ILSVRC2012_validation_ground_truth.txt").write_text(text)
    rows = [(number, wnid, WORDS[wnid], 0) for wnid, number in IDS.items()]
    write_meta(folder / DEVKIT / "meta.mat", [*rows, (4, "n00015388", "animal", 3)])


def write_solution(folder: Path, truth: list[int]) -> None:
    rows = [
        f"ILSVRC2012_val_{number:08d},{WNIDS[label]} 1 2 3 4 {WNIDS[0]} 5 6 7 8 \n" for number, label in enumerate(truth, 1)
    ]
    (folder / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(reversed(rows)))


def write_indices(folder: Path, truth: list[int]) -> None:
    rows = [f"ILSVRC2012_val_{number:08d}.JPEG {label}\n" for number, label in enumerate(truth, 1)]
    (folder / "val.txt").write_text("".join(rows))


def write_wnids(folder: Path, truth: list[int]) -> None:
    (folder / "imagenet_2012_validation_synset_labels.txt").write_text("".join(f"{WNIDS[label]}\n" for label in truth))


WRITERS = [write_ids, write_solution, write_indices, write_wnids]


def sort_val(folder: Path, truth: list[int]) -> None:
    """As people do with a script, so that the label file is not needed."""
    for number, label in enumerate(truth, start=1):
        (folder / "val" / WNIDS[label]).mkdir(exist_ok=True)
        name = f"ILSVRC2012_val_{number:08d}.JPEG"
        shutil.move(folder / "val" / name, folder / "val" / WNIDS[label] / name)


def describe(source: Source) -> list[tuple[str, object]]:
    return [(source.name(index), source.labels[index]) for index in range(len(source))]


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    return make_imagenet(tmp_path / "imagenet")


def test_train_is_sorted_by_class_and_name(imagenet: Path) -> None:
    assert FORMAT.name == "imagenet"
    assert FORMAT.matches(imagenet)
    assert FORMAT.list_splits(imagenet) == ("train", "val")
    source = FORMAT.open(imagenet, "train")
    names = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in WNIDS for number in (10, 9)]
    assert describe(source) == list(zip(names, [0, 0, 1, 1, 2, 2], strict=True))
    assert source.class_names == tuple(WORDS.values())
    assert source.files() == [imagenet / name for name in (*names, "synset_words.txt")]
    assert source.read(3)[0].to_numpy()[0, 0].tolist() == [1, 9, 0]
    assert pickle.loads(pickle.dumps(source)).fetch(3) == source.fetch(3)


def test_val_has_the_labels_of_its_file(imagenet: Path) -> None:
    source = FORMAT.open(imagenet, "val")
    assert describe(source) == [(f"val/ILSVRC2012_val_{number:08d}.JPEG", TRUTH[number - 1]) for number in range(1, 6)]
    assert [source.read(index)[0].to_numpy()[0, 0, 0] for index in range(5)] == [1, 2, 3, 4, 5]
    assert source.class_names == tuple(WORDS.values())
    labels = imagenet / "imagenet_2012_validation_synset_labels.txt"
    assert source.files()[5:] == [imagenet / "synset_words.txt", labels]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(truth=st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_all_label_files_say_the_same(truth: list[int], tmp_path_factory: pytest.TempPathFactory) -> None:
    for writer in WRITERS:
        folder = tmp_path_factory.mktemp("imagenet")
        for wnid in WNIDS:
            (folder / "train" / wnid).mkdir(parents=True)
        (folder / "val").mkdir()
        for number in range(1, len(truth) + 1):
            (folder / "val" / f"ILSVRC2012_val_{number:08d}.JPEG").touch()
        writer(folder, truth)
        assert FORMAT.open(folder, "val").labels.values.tolist() == truth, writer.__name__


def test_val_in_folders_needs_no_label_file(imagenet: Path) -> None:
    flat = {name.rpartition("/")[2]: label for name, label in describe(FORMAT.open(imagenet, "val"))}
    sort_val(imagenet, TRUTH)
    (imagenet / "imagenet_2012_validation_synset_labels.txt").unlink()
    source = FORMAT.open(imagenet, "val")
    names = [name for name, _ in describe(source)]
    assert names == sorted(names)
    assert names[0] == "val/n01440764/ILSVRC2012_val_00000002.JPEG"
    assert {name.rpartition("/")[2]: label for name, label in describe(source)} == flat


def test_kaggle_packs_them_deeper(tmp_path: Path) -> None:
    inner = tmp_path / "ILSVRC" / "Data" / "CLS-LOC"
    make_train(inner)
    make_val(inner)
    (inner / "test").mkdir()  # without labels
    write_solution(tmp_path, TRUTH)
    (tmp_path / "LOC_synset_mapping.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    assert FORMAT.matches(tmp_path)
    assert FORMAT.list_splits(tmp_path) == ("train", "val")
    source = FORMAT.open(tmp_path, "val")
    assert source.labels.values.tolist() == TRUTH
    assert source.class_names == tuple(WORDS.values())
    assert source.files()[0] == inner / "val" / "ILSVRC2012_val_00000001.JPEG"
    for above in (tmp_path / "ILSVRC", inner.parent, inner):
        assert describe(FORMAT.open(above, "train")) == describe(FORMAT.open(tmp_path, "train"))


@pytest.mark.parametrize("writer", WRITERS)
def test_val_alone_is_enough(writer: Callable[[Path, list[int]], None], tmp_path: Path) -> None:
    make_val(tmp_path)
    assert not FORMAT.matches(tmp_path)
    writer(tmp_path, TRUTH)
    assert FORMAT.matches(tmp_path)
    assert FORMAT.list_splits(tmp_path) == ("val",)
    if writer is write_indices:
        with pytest.raises(FileNotFoundError, match=r"val\.txt numbers the classes"):
            FORMAT.open(tmp_path, "val")
        (tmp_path / "synset_words.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    source = FORMAT.open(tmp_path, "val")
    assert source.labels.values.tolist() == TRUTH
    assert source.class_names == (tuple(WORDS.values()) if writer in (write_ids, write_indices) else WNIDS)


def test_val_alone_in_folders_counts_as_names_do(tmp_path: Path) -> None:
    make_val(tmp_path, 3)
    sort_val(tmp_path, [2, 1, 2])
    assert FORMAT.matches(tmp_path)
    assert FORMAT.open(tmp_path, "val").class_names == WNIDS[1:]
    (tmp_path / "synset_words.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    source = FORMAT.open(tmp_path, "val")
    assert (source.labels.values.tolist(), source.class_names) == ([1, 2, 2], tuple(WORDS.values()))


@pytest.mark.parametrize("is_sorted", [False, True])
def test_real_has_the_images_of_val_with_any_number_of_labels(is_sorted: bool, imagenet: Path) -> None:
    real = [[2], [], [1, 0], [2, 1], [0]]
    (imagenet / "real.json").write_text(json.dumps(real))
    if is_sorted:
        sort_val(imagenet, TRUTH)
    assert FORMAT.list_splits(imagenet) == ("train", "val", "real")
    val, source = FORMAT.open(imagenet, "val"), FORMAT.open(imagenet, "real")
    assert [name for name, _ in describe(val)] == [name for name, _ in describe(source)]
    assert source.labels.has_several
    for name, labels in describe(source):
        number = int(name[-13:-5])
        assert labels == tuple(sorted(real[number - 1]))
    assert source.class_names == val.class_names


def test_real_needs_no_other_labels(imagenet: Path) -> None:
    (imagenet / "imagenet_2012_validation_synset_labels.txt").unlink()
    (imagenet / "real.json").write_text(json.dumps([[]] * 5))
    assert len(FORMAT.open(imagenet, "real")) == 5


def test_without_names_classes_are_called_by_wnid(imagenet: Path) -> None:
    (imagenet / "synset_words.txt").unlink()
    assert FORMAT.open(imagenet, "train").class_names == WNIDS


def test_hidden_and_other_files_are_no_images(imagenet: Path) -> None:
    (imagenet / "train" / "n01440764.tar").touch()
    (imagenet / "train" / ".cache").mkdir()
    (imagenet / "train" / WNIDS[0] / "._n01440764_9.JPEG").touch()
    (imagenet / "train" / WNIDS[0] / "Thumbs.db").touch()
    (imagenet / "val" / "valprep.sh").touch()
    assert len(FORMAT.open(imagenet, "train")) == 6
    assert len(FORMAT.open(imagenet, "val")) == 5


def test_no_file_is_asked_about_itself(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million of them, on a network drive."""
    asked: list[str] = []
    stat = os.stat

    def watch(path: object, *arguments: object, **options: object) -> os.stat_result:
        asked.append(str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", watch)
    for split in ("train", "val"):
        FORMAT.open(imagenet, split)
    assert asked
    assert not [path for path in asked if path.endswith(".JPEG")]


def test_other_data_is_not_taken_for_it(imagenet: Path, assets: Path, tmp_path: Path) -> None:
    assert not FORMAT.matches(assets / "imagenet-val-1000")
    assert not FORMAT.matches(assets / "cifar10-12k")
    assert not FORMAT.matches(imagenet / "train")
    assert not FORMAT.matches(imagenet / "synset_words.txt")
    assert not FORMAT.matches(tmp_path / "nowhere")
    tiny = tmp_path / "tiny-imagenet-200"
    (tiny / "train" / WNIDS[0] / "images").mkdir(parents=True)
    assert not FORMAT.matches(tiny)
    (imagenet / "train" / "my_own_class").mkdir()
    assert not FORMAT.matches(imagenet)


def remove_label_file(folder: Path) -> None:
    (folder / "imagenet_2012_validation_synset_labels.txt").unlink()


def write_too_many(folder: Path) -> None:
    write_wnids(folder, [*TRUTH, 0])


def remove_middle(folder: Path) -> None:
    (folder / "val" / "ILSVRC2012_val_00000003.JPEG").rename(folder / "val" / "ILSVRC2012_val_00000009.JPEG")


def double_one(folder: Path) -> None:
    (folder / "val" / "ILSVRC2012_val_00000003.JPEG").rename(folder / "val" / "ILSVRC2012_val_00000002.jpg")


def add_stranger(folder: Path) -> None:
    (folder / "val" / "holiday.jpg").touch()


def add_folder(folder: Path) -> None:
    (folder / "val" / WNIDS[0]).mkdir()


def remove_class(folder: Path) -> None:
    shutil.rmtree(folder / "train" / WNIDS[1])


def sort_unknown(folder: Path) -> None:
    sort_val(folder, TRUTH)
    (folder / "val" / WNIDS[0]).rename(folder / "val" / "n09999999")


def empty_class(folder: Path) -> None:
    sort_val(folder, TRUTH)
    for path in (folder / "val" / WNIDS[0]).iterdir():
        path.unlink()


def unname(folder: Path) -> None:
    (folder / "synset_words.txt").write_text("n01440764 tench\n")


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (remove_label_file, r"has no labels for its validation images: add one of LOC_val_solution\.csv"),
        (write_too_many, r"synset_labels\.txt has 6 labels for 5 images in val"),
        (remove_middle, r"val has no ILSVRC2012_val_00000003"),
        (double_one, r"val has no ILSVRC2012_val_00000003"),
        (add_stranger, r"val/holiday\.jpg .*ILSVRC2012_val_00000001"),
        (add_folder, r"class folders and outside"),
        (remove_class, r"synset_labels\.txt, line 3 has class n01443537"),
        (sort_unknown, r"val/n09999999 is not among the 3 classes"),
        (empty_class, r"val/n01440764 contains no images"),
        (unname, r"imagenet has no name for n01443537"),
    ],
)
def test_what_does_not_fit_costs_a_sentence(spoil: Callable[[Path], None], sentence: str, imagenet: Path) -> None:
    spoil(imagenet)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        FORMAT.open(imagenet, "val")


def test_real_labels_must_fit_too(imagenet: Path) -> None:
    (imagenet / "real.json").write_text(json.dumps([[0]] * 4))
    with pytest.raises(ValueError, match=r"real\.json has 4 labels for 5 images in val"):
        FORMAT.open(imagenet, "real")
    (imagenet / "real.json").write_text(json.dumps([[0]] * 4 + [[3]]))
    with pytest.raises(ValueError, match=r"real\.json has '\[3\]' for image 5"):
        FORMAT.open(imagenet, "real")

"""ImageNet in every layout that it comes in: the same images must have the same labels."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.sources.test_imagenet_labels import write_meta
from vitrine.data.source import Source
from vitrine.data.sources.imagenet import KIND

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
    assert KIND.name == "imagenet"
    assert KIND.is_mine(imagenet)
    assert KIND.list_splits(imagenet) == ("train", "val")
    source = KIND.open(imagenet, "train")
    names = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in WNIDS for number in (10, 9)]
    assert describe(source) == list(zip(names, [0, 0, 1, 1, 2, 2], strict=True))
    assert source.class_names == tuple(WORDS.values())
    assert source.files() == [imagenet / name for name in (*names, "synset_words.txt")]
    assert source.read(3)[0].pixels()[0, 0].tolist() == [1, 9, 0]
    assert pickle.loads(pickle.dumps(source)).fetch(3) == source.fetch(3)


def test_val_has_the_labels_of_its_file(imagenet: Path) -> None:
    source = KIND.open(imagenet, "val")
    assert describe(source) == [(f"val/ILSVRC2012_val_{number:08d}.JPEG", TRUTH[number - 1]) for number in range(1, 6)]
    assert [source.read(index)[0].pixels()[0, 0, 0] for index in range(5)] == [1, 2, 3, 4, 5]
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
        assert KIND.open(folder, "val").labels.values.tolist() == truth, writer.__name__


def test_val_in_folders_needs_no_label_file(imagenet: Path) -> None:
    flat = {name.rpartition("/")[2]: label for name, label in describe(KIND.open(imagenet, "val"))}
    sort_val(imagenet, TRUTH)
    (imagenet / "imagenet_2012_validation_synset_labels.txt").unlink()
    source = KIND.open(imagenet, "val")
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
    assert KIND.is_mine(tmp_path)
    assert KIND.list_splits(tmp_path) == ("train", "val")
    source = KIND.open(tmp_path, "val")
    assert source.labels.values.tolist() == TRUTH
    assert source.class_names == tuple(WORDS.values())
    assert source.files()[0] == inner / "val" / "ILSVRC2012_val_00000001.JPEG"
    for above in (tmp_path / "ILSVRC", inner.parent, inner):
        assert describe(KIND.open(above, "train")) == describe(KIND.open(tmp_path, "train"))


@pytest.mark.parametrize("writer", WRITERS)
def test_val_alone_is_enough(writer: Callable[[Path, list[int]], None], tmp_path: Path) -> None:
    make_val(tmp_path)
    assert not KIND.is_mine(tmp_path)
    writer(tmp_path, TRUTH)
    assert KIND.is_mine(tmp_path)
    assert KIND.list_splits(tmp_path) == ("val",)
    if writer is write_indices:
        with pytest.raises(
            FileNotFoundError, match=r"val\.txt counts classes, and nothing says which they are: put synset_words"
        ):
            KIND.open(tmp_path, "val")
        (tmp_path / "synset_words.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    source = KIND.open(tmp_path, "val")
    assert source.labels.values.tolist() == TRUTH
    assert source.class_names == (tuple(WORDS.values()) if writer in (write_ids, write_indices) else WNIDS)


def test_val_alone_in_folders_counts_as_names_do(tmp_path: Path) -> None:
    make_val(tmp_path, 3)
    sort_val(tmp_path, [2, 1, 2])
    assert KIND.is_mine(tmp_path)
    assert KIND.open(tmp_path, "val").class_names == WNIDS[1:]
    (tmp_path / "synset_words.txt").write_text("".join(f"{wnid} {words}\n" for wnid, words in WORDS.items()))
    source = KIND.open(tmp_path, "val")
    assert (source.labels.values.tolist(), source.class_names) == ([1, 2, 2], tuple(WORDS.values()))


@pytest.mark.parametrize("is_sorted", [False, True])
def test_real_has_the_images_of_val_with_any_number_of_labels(is_sorted: bool, imagenet: Path) -> None:
    real = [[2], [], [1, 0], [2, 1], [0]]
    (imagenet / "real.json").write_text(json.dumps(real))
    if is_sorted:
        sort_val(imagenet, TRUTH)
    assert KIND.list_splits(imagenet) == ("train", "val", "real")
    val, source = KIND.open(imagenet, "val"), KIND.open(imagenet, "real")
    assert [name for name, _ in describe(val)] == [name for name, _ in describe(source)]
    assert source.labels.has_several
    for name, labels in describe(source):
        number = int(name[-13:-5])
        assert labels == tuple(sorted(real[number - 1]))
    assert source.class_names == val.class_names


def test_real_needs_no_other_labels(imagenet: Path) -> None:
    (imagenet / "imagenet_2012_validation_synset_labels.txt").unlink()
    (imagenet / "real.json").write_text(json.dumps([[]] * 5))
    assert len(KIND.open(imagenet, "real")) == 5


def test_without_names_classes_are_called_by_wnid(imagenet: Path) -> None:
    (imagenet / "synset_words.txt").unlink()
    assert KIND.open(imagenet, "train").class_names == WNIDS


def test_hidden_and_other_files_are_no_images(imagenet: Path) -> None:
    (imagenet / "train" / "n01440764.tar").touch()
    (imagenet / "train" / ".cache").mkdir()
    (imagenet / "train" / WNIDS[0] / "._n01440764_9.JPEG").touch()
    (imagenet / "train" / WNIDS[0] / "Thumbs.db").touch()
    (imagenet / "val" / "valprep.sh").touch()
    assert len(KIND.open(imagenet, "train")) == 6
    assert len(KIND.open(imagenet, "val")) == 5


def test_no_file_is_asked_about_itself(imagenet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million of them, on a network drive."""
    asked: list[str] = []
    stat = os.stat

    def watch(path: object, *arguments: object, **options: object) -> os.stat_result:
        asked.append(str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", watch)
    for split in ("train", "val"):
        KIND.open(imagenet, split)
    assert asked
    assert not [path for path in asked if path.endswith(".JPEG")]


def test_other_data_is_not_taken_for_it(imagenet: Path, assets: Path, tmp_path: Path) -> None:
    assert not KIND.is_mine(assets / "imagenet-val-1000")
    assert not KIND.is_mine(assets / "cifar10-12k")
    assert not KIND.is_mine(imagenet / "train")
    assert not KIND.is_mine(imagenet / "synset_words.txt")
    assert not KIND.is_mine(tmp_path / "nowhere")
    tiny = tmp_path / "tiny-imagenet-200"
    (tiny / "train" / WNIDS[0] / "images").mkdir(parents=True)
    assert not KIND.is_mine(tiny)
    (imagenet / "train" / "my_own_class").mkdir()
    assert not KIND.is_mine(imagenet)


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
        (write_too_many, r"synset_labels\.txt has 6 labels for 5 images in val, and one each was needed"),
        (remove_middle, r"val has no ILSVRC2012_val_00000003, and all were needed: unpack it again"),
        (double_one, r"val has no ILSVRC2012_val_00000003, and all were needed"),
        (add_stranger, r"val/holiday\.jpg must be named as in ILSVRC2012_val_00000001\.JPEG: rename or move it"),
        (add_folder, r"val has images both flat and in folders: move all of them into one form"),
        (remove_class, r"synset_labels\.txt, line 3 has the class n01443537, which is not among the 2 of this data"),
        (sort_unknown, r"val/n09999999 is not among the 3 classes of train or the names: add it"),
        (empty_class, r"val/n01440764 has no image \(\.jpeg, \.jpg, \.png, \.webp\): unpack it again, or remove it"),
        (unname, r"imagenet has no words for n01443537 in its list of names: add a line, or remove the list"),
    ],
)
def test_what_does_not_fit_costs_a_sentence(spoil: Callable[[Path], None], sentence: str, imagenet: Path) -> None:
    spoil(imagenet)
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        KIND.open(imagenet, "val")


def test_real_labels_must_fit_too(imagenet: Path) -> None:
    (imagenet / "real.json").write_text(json.dumps([[0]] * 4))
    with pytest.raises(ValueError, match=r"real\.json has 4 labels for 5 images in val"):
        KIND.open(imagenet, "real")
    (imagenet / "real.json").write_text(json.dumps([[0]] * 4 + [[3]]))
    with pytest.raises(ValueError, match=r"real\.json has '\[3\]' for image 5, and classes from 0 to 2 were needed"):
        KIND.open(imagenet, "real")

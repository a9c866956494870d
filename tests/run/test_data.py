"""Which images a run learns from, is watched on and is tested on, from small arrays and folders of known content."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrine.data import opening
from vitrine.data.config import DataConfig, LoaderConfig
from vitrine.data.opening import Data
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels, Source
from vitrine.evaluate.config import EvaluationConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import SupervisedConfig
from vitrine.recipe import Recipe
from vitrine.run import data as run_data
from vitrine.run.data import build_evaluation_loader, open_run_data

COUNTS = {"train": 30, "val": 9, "test": 7}


def write_arrays(path: Path, splits: tuple[str, ...] = ("train", "val", "test"), **more: np.ndarray) -> str:
    """Grey images of 8 x 8, of three classes in turn, none like another."""
    arrays: dict[str, np.ndarray] = {}
    for place, split in enumerate(splits):
        drawn = np.random.default_rng(place)
        arrays[f"x_{split}"] = drawn.integers(0, 256, (COUNTS[split], 8, 8), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(COUNTS[split]) % 3
    np.savez(path, allow_pickle=False, **{**arrays, **more})
    return str(path)


@pytest.fixture
def arrays(tmp_path: Path) -> str:
    return write_arrays(tmp_path / "made.npz")


def make(source: str, evaluation: EvaluationConfig | None = None, loss: Any = "softmax", **data: Any) -> Recipe:
    return Recipe(
        model=ModelSettings(name="ViT-Ti/16", image_size=8, patch_size=4, num_channels=1),
        data=DataConfig(source=source, **data),
        loader=LoaderConfig(batch_size=4, num_workers=0),
        supervised=SupervisedConfig(loss=loss),
        evaluation=evaluation or EvaluationConfig(batch_size=4),
        total_steps=2,
    )


def names(source: Source | None) -> list[str]:
    assert source is not None
    return [source.name(index) for index in range(len(source))]


def test_each_split_has_its_use(arrays: str) -> None:
    data = open_run_data(make(arrays))
    assert names(data.train) == [f"made.npz/x_train[{index}]" for index in range(30)]
    assert names(data.watched) == [f"made.npz/x_val[{index}]" for index in range(9)]
    assert names(data.test) == [f"made.npz/x_test[{index}]" for index in range(7)]
    assert data.watched_name == "val"
    assert data.class_names == ("0", "1", "2")


def test_what_is_held_out_is_watched_and_not_trained_on(arrays: str) -> None:
    data = open_run_data(make(arrays, held_out=0.2))
    assert data.watched_name == "held_out"
    assert len(names(data.watched)) == 6
    assert sorted(names(data.train) + names(data.watched)) == sorted(f"made.npz/x_train[{index}]" for index in range(30))
    assert len(names(data.test)) == 7


def test_without_validation_images_nothing_is_watched(tmp_path: Path) -> None:
    data = open_run_data(make(write_arrays(tmp_path / "made.npz", ("train", "test"))))
    assert data.watched is None
    assert data.test is not None


def test_data_that_is_not_divided_is_all_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "made.npz"
    np.savez(path, images=np.zeros((6, 8, 8), np.uint8), labels=np.arange(6) % 2)
    data = open_run_data(make(str(path)))
    assert len(data.train) == 6
    assert data.watched is data.test is None


def test_validation_images_are_the_test_where_there_is_no_other_and_they_chose_nothing(tmp_path: Path) -> None:
    """As in ImageNet, whose test labels nobody has."""
    source = write_arrays(tmp_path / "made.npz", ("train", "val"))
    watched_on_val = open_run_data(make(source))
    assert len(names(watched_on_val.watched)) == 9
    assert names(watched_on_val.test) == names(watched_on_val.watched)  # of the last weights, and not of the best
    assert open_run_data(make(source, EvaluationConfig(patience=0))).test is None
    held_out = open_run_data(make(source, held_out=0.2))
    assert held_out.watched_name == "held_out"
    assert names(held_out.test) == [f"made.npz/x_val[{index}]" for index in range(9)]
    assert open_run_data(make(source, held_out=0.2, split="val")).test is None
    assert open_run_data(make(source, EvaluationConfig(test=False), held_out=0.2)).test is None


def test_test_images_are_left_alone_while_settings_are_chosen(arrays: str) -> None:
    data = open_run_data(make(arrays, EvaluationConfig(test=False)))
    assert data.test is None
    assert data.watched is not None


@pytest.mark.parametrize(("split", "watched", "test"), [("val", None, 7), ("validation", None, 7), ("test", 9, None)])
def test_what_is_trained_on_is_neither_watched_nor_tested_on(
    split: str, watched: int | None, test: int | None, arrays: str
) -> None:
    """However the split is spelled."""
    data = open_run_data(make(arrays, split=split))
    assert [None if source is None else len(source) for source in (data.watched, data.test)] == [watched, test]


def test_a_subset_is_of_the_training_images_alone(arrays: str) -> None:
    data = open_run_data(make(arrays, subset="2/class"))
    assert len(data.train) == 6
    assert data.watched is not None
    assert data.test is not None
    assert (len(data.watched), len(data.test)) == (9, 7)


def test_all_three_are_held_in_memory_if_so_wished(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for split in ("train", "valid", "test"):
        for name, grey in (("a", 10), ("b", 200)):
            (root / split / name).mkdir(parents=True)
            Image.new("L", (8, 8), grey).save(root / split / name / "1.png")
    for in_memory in (False, True):
        data = open_run_data(make(str(root), in_memory=in_memory))
        for source in (data.train, data.watched, data.test):
            assert source is not None
            assert (source.read_block(np.arange(2)) is not None) == in_memory
            assert source.class_names == ("a", "b")


def test_images_without_labels_cost_a_sentence(tmp_path: Path) -> None:
    for index in range(3):
        Image.new("L", (8, 8)).save(tmp_path / f"{index}.png")
    with pytest.raises(
        ValueError, match=r"has no labels, and learning from labels needs them: give images in folders by class"
    ):
        open_run_data(make(str(tmp_path)))


def test_several_labels_want_the_sigmoid_loss(tmp_path: Path) -> None:
    path = str(tmp_path / "made.npz")
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.array([[1, 0], [1, 1], [0, 1], [0, 0]]))
    with pytest.raises(ValueError, match=r"several labels per image, of which supervised.loss=softmax knows one: take sigmoid"):
        open_run_data(make(path))
    assert len(open_run_data(make(path, loss="sigmoid")).train) == 4


@pytest.mark.parametrize("names_there", [("cat", "dog", "horse"), ("dog", "cat"), ()])
@pytest.mark.parametrize("split", ["val", "test"])
def test_classes_of_the_splits_have_to_be_the_same(
    split: str, names_there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kinds on disk settle them for all splits; of the hub's data sets each split has its own."""

    def open_split(name: str | None) -> Source:
        class_names = names_there if name == split else ("cat", "dog")
        labels = Labels.one_each([0, 1]) if class_names else Labels.none_each(2)
        return ArraySource(np.zeros((2, 8, 8, 1), np.uint8), labels, class_names, str(name))

    for module in (opening, run_data):
        monkeypatch.setattr(module, "find_data", lambda name: Data(name, "made", ("train", "val", "test"), open_split))
    with pytest.raises(ValueError, match=rf"of pets are not the same in {split} as in training \({len(names_there)} and 2"):
        open_run_data(make("pets"))


@pytest.mark.parametrize("patience", [0, 2])
def test_patience_without_images_to_evaluate_on_is_refused(patience: int, tmp_path: Path) -> None:
    """It would be ignored otherwise: the run would go to its end, and take its last weights for the best."""
    recipe = make(write_arrays(tmp_path / "made.npz", ("train", "test")), EvaluationConfig(patience=patience))
    with pytest.raises(ValueError, match=r"evaluation\.patience.*data\.held_out"):
        open_run_data(recipe)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_an_evaluation_sees_every_image_once_whoever_shares_it(num_ranks: int, batch_size: int, arrays: str) -> None:
    recipe = make(arrays, EvaluationConfig(batch_size=batch_size))
    source = open_run_data(recipe).test
    assert source is not None
    seen: dict[int, torch.Tensor] = {}
    for rank in range(num_ranks):
        loader = build_evaluation_loader(
            source, build_inception_preprocessing((8, 8), 1), recipe, rank=rank, num_ranks=num_ranks
        )
        for batch in loader.read_once():
            for index, image, label in zip(batch.index.tolist(), batch.image, batch.label.tolist(), strict=True):
                assert index not in seen
                assert label == index % 3
                seen[index] = image
    assert sorted(seen) == list(range(7))
    pixels = np.load(arrays)["x_test"]
    for index, image in seen.items():  # as they are: nothing of training is done to them
        np.testing.assert_array_equal(image.numpy()[0], pixels[index])


def test_an_evaluation_leaves_out_what_cannot_be_read_if_training_does(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(3):
            Image.new("L", (8, 8), 40 * index).save(tmp_path / name / f"{index}.png")
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    recipe = make(str(tmp_path), bad_images="skip")
    loader = build_evaluation_loader(open_run_data(recipe).train, build_inception_preprocessing((8, 8), 1), recipe)
    with pytest.warns(match=r"Skipped .*a/1\.png"):
        seen = [index for batch in loader.read_once() for index in batch.index.tolist()]
    assert seen == [0, 2, 3, 4, 5]


def test_of_vtab_s_thousand_images_none_is_watched(tmp_path: Path) -> None:
    """Its 200 for validation are among them."""
    source = f"vtab:photos:{write_arrays(tmp_path / 'made.npz', ('train', 'test'))}"
    whole = open_run_data(make(source, split="train800val200"))
    assert (len(whole.train), whole.watched, len(names(whole.test))) == (30, None, 7)
    part = open_run_data(make(source, split="train800"))
    assert (len(part.train), part.watched_name, len(names(part.watched))) == (24, "val", 6)
    assert not set(names(part.train)) & set(names(part.watched))

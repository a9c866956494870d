"""The features that commands fit something to, against the model's own."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.evaluate.test_prediction import draw_images, featurise_by_hand
from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.commands.feature_options import FeatureOptions
from vitrine.core.notices import Notice
from vitrine.data.opening import open_train_and_test
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.features import Features
from vitrine.formats.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("cache")

HERE = ReadingConfig(num_workers=0, batch_size=3)


def draw_classes(folder: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """Images in a folder for each class."""
    for number, (name, count) in enumerate(counts.items()):
        draw_images(folder / name, count, seed=100 * seed + number)
    return folder


def draw_divided(folder: Path, classes: Sequence[str], num_train: int, num_test: int, test: str = "test") -> Path:
    draw_classes(folder / "train", dict.fromkeys(classes, num_train), seed=1)
    draw_classes(folder / test, dict.fromkeys(classes, num_test), seed=2)
    return folder


def assert_features(found: Features, checkpoint: Checkpoint, files: Sequence[Path], labels: Sequence[int]) -> None:
    torch.testing.assert_close(found.values, featurise_by_hand(checkpoint, files))
    assert found.labels.tolist() == list(labels)
    assert found.index.tolist() == list(range(len(files)))


@pytest.mark.parametrize("test", ["test", "val"])
def test_divided_data_stays_divided(test: str, tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2, test)
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(held_out=0.9, reading=HERE).compute(checkpoint, str(folder))
    assert split.num_classes == 2  # the data's, whatever the model's
    assert_features(split.train, checkpoint, sorted((folder / "train").rglob("*.png")), [0, 0, 0, 1, 1, 1])
    assert_features(split.test, checkpoint, sorted((folder / test).rglob("*.png")), [0, 0, 1, 1])


def test_some_of_the_images_are_fitted_to(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2)
    split = FeatureOptions(subset="2/class", reading=HERE).compute(make_checkpoint(cases.VIT), str(folder))
    assert (split.train.labels.tolist(), split.test.labels.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])


def test_of_what_is_not_divided_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 4, "bee": 8})
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(held_out=0.25, reading=HERE).compute(checkpoint, str(folder), seed=3)
    sources = open_train_and_test(str(folder), 0.25, seed=3)
    for found, source in zip((split.train, split.test), sources, strict=True):
        files = [folder / source.name(index) for index in range(len(source))]
        assert_features(found, checkpoint, files, [int(file.parent.name == "bee") for file in files])
    assert split.train.labels.bincount().tolist() == [3, 6]
    other = FeatureOptions(held_out=0.25, reading=HERE).compute(checkpoint, str(folder), seed=4)
    assert not torch.equal(other.test.values, split.test.values)


def test_features_are_found_again_without_the_model_at_work(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    options = FeatureOptions(reading=HERE)
    first = options.compute(checkpoint, str(folder))
    assert len(list(cache.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(checkpoint.model, "encode", lambda images: pytest.fail("the model was run"))
    second = options.compute(checkpoint, str(folder))
    assert torch.equal(first.train.values, second.train.values)
    assert torch.equal(first.test.values, second.test.values)


def test_labels_are_those_of_now(tmp_path: Path) -> None:
    """A class that was renamed is another number, and its features are the same."""
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint, options = make_checkpoint(cases.VIT), FeatureOptions(reading=HERE)
    first = options.compute(checkpoint, str(folder))
    for part in ("train", "test"):
        (folder / part / "ant").rename(folder / part / "cat")
    second = options.compute(checkpoint, str(folder))
    assert second.train.labels.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(second.train.values, first.train.values[[2, 3, 0, 1]])


def test_without_a_cache_nothing_is_kept_nor_found(tmp_path: Path, cache: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    split = FeatureOptions(no_cache=True, reading=HERE).compute(checkpoint, str(folder))
    assert not cache.exists()
    FeatureOptions(reading=HERE).compute(checkpoint, str(folder))
    for path in cache.rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    again = FeatureOptions(no_cache=True, reading=HERE).compute(checkpoint, str(folder))  # and no word on the damage
    assert torch.equal(again.train.values, split.train.values)


def test_two_images_of_two_classes_are_enough(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 1, "bee": 1})
    split = FeatureOptions(held_out=0.5, reading=HERE).compute(make_checkpoint(cases.VIT), str(folder))
    assert sorted([*split.train.labels.tolist(), *split.test.labels.tolist()]) == [0, 1]


def test_a_bad_image_stops_it_or_is_left_out(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 1)
    (folder / "train" / "bee" / "1.png").write_text("no image")
    checkpoint = make_checkpoint(cases.VIT)
    skipping = FeatureOptions(reading=ReadingConfig(num_workers=0, bad_images="skip"))
    with pytest.warns(Notice, match=r"Skipped train/bee/1\.png"):
        split = skipping.compute(checkpoint, str(folder))
    assert split.train.index.tolist() == [0, 1, 2, 3, 5]
    assert split.train.labels.tolist() == [0, 0, 0, 1, 1]
    with pytest.warns(Notice, match=r"Without train/bee/1\.png"):
        again = skipping.compute(checkpoint, str(folder))  # from the cache
    assert (again.train.index.tolist(), again.train.labels.tolist()) == ([0, 1, 2, 3, 5], [0, 0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"train/bee/1\.png is not an image that can be read"):
        FeatureOptions(reading=HERE).compute(checkpoint, str(folder))  # what was kept does not hide it


def test_mistakes_are_said_in_a_sentence(tmp_path: Path) -> None:
    checkpoint, options = make_checkpoint(cases.VIT), FeatureOptions(reading=HERE)
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 1, 1)
    with pytest.raises(FileNotFoundError, match="There is no data at"):
        options.compute(checkpoint, str(tmp_path / "none"))
    for share in (0.0, 1.0, -1.0, 0.01):
        with pytest.raises(ValueError, match=f"held_out={share} of 2 images leaves one of the two parts empty"):
            FeatureOptions(held_out=share, reading=HERE).compute(checkpoint, str(folder / "train"))
    with pytest.raises(ValueError, match=r"one has one class only, ant, and nothing to tell it from: give two or more"):
        options.compute(checkpoint, str(draw_classes(tmp_path / "one", {"ant": 10})))

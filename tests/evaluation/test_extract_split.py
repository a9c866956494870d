"""Features of train and test, which few-shot and the probes are fitted to, against the model's own."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.formats import cases
from tests.formats.cases import make_checkpoint
from tests.photos import draw_classes, draw_divided
from vitrine.core.console import VitrineWarning
from vitrine.data.open_data import open_train_and_test
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import Features, FeatureSplit
from vitrine.evaluation.predictor import Predictor, extract_split
from vitrine.formats.checkpoint import Checkpoint

pytestmark = pytest.mark.usefixtures("cache")

INFERENCE = InferenceConfig(num_workers=0, batch_size=3)


def extract(
    checkpoint: Checkpoint, data: Path, inference: InferenceConfig = INFERENCE, seed: int = 0, **options: object
) -> FeatureSplit:
    return extract_split(Predictor(checkpoint, "cpu", inference), str(data), seed=seed, **options)


@torch.no_grad()
def assert_features(features: Features, checkpoint: Checkpoint, files: Sequence[Path], labels: Sequence[int]) -> None:
    images = torch.stack([checkpoint.preprocessing.load(file) for file in files])
    expected = checkpoint.model.pool(checkpoint.model.encode(checkpoint.preprocessing.normalise(images)))
    torch.testing.assert_close(features.values, expected)
    assert features.labels.tolist() == list(labels)
    assert features.index.tolist() == list(range(len(files)))


@pytest.mark.parametrize("test", ["test", "val"])
def test_the_splits_of_the_data_are_used(test: str, tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2, test)
    checkpoint = make_checkpoint(cases.VIT)
    with pytest.raises(ValueError, match=r"held_out=0\.9"):
        extract(checkpoint, folder, held_out=0.9)
    split = extract(checkpoint, folder)
    assert split.num_classes == 2  # of the data, not of the model
    assert_features(split.train, checkpoint, sorted((folder / "train").rglob("*.png")), [0, 0, 0, 1, 1, 1])
    assert_features(split.test, checkpoint, sorted((folder / test).rglob("*.png")), [0, 0, 1, 1])


def test_a_subset_is_of_the_training_images(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2)
    split = extract(make_checkpoint(cases.VIT), folder, subset="2/class")
    assert (split.train.labels.tolist(), split.test.labels.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])


def test_a_fraction_of_each_class_is_held_out_of_undivided_data(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 4, "bee": 8})
    checkpoint = make_checkpoint(cases.VIT)
    split = extract(checkpoint, folder, seed=3, held_out=0.25)
    sources = open_train_and_test(str(folder), 0.25, seed=3)
    for features, source in zip((split.train, split.test), sources, strict=True):
        files = [folder / source.name(index) for index in range(len(source))]
        assert_features(features, checkpoint, files, [int(file.parent.name == "bee") for file in files])
    assert split.train.labels.bincount().tolist() == [3, 6]
    other = extract(checkpoint, folder, seed=4, held_out=0.25)
    assert not torch.equal(other.test.values, split.test.values)


def test_cached_features_need_no_model(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    first = extract(checkpoint, folder)
    assert len(list(cache.rglob("*.safetensors"))) == 2
    monkeypatch.setattr(checkpoint.model, "encode", lambda images: pytest.fail("the model was run"))
    second = extract(checkpoint, folder)
    assert torch.equal(first.train.values, second.train.values)
    assert torch.equal(first.test.values, second.test.values)


def test_cached_features_get_the_present_labels(tmp_path: Path) -> None:
    """A renamed class has another number; its features are the same."""
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    first = extract(checkpoint, folder)
    for part in ("train", "test"):
        (folder / part / "ant").rename(folder / part / "cat")
    second = extract(checkpoint, folder)
    assert second.train.labels.tolist() == [0, 0, 1, 1]
    torch.testing.assert_close(second.train.values, first.train.values[[2, 3, 0, 1]])


def test_without_the_cache_nothing_is_written_or_read(tmp_path: Path, cache: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    split = extract(checkpoint, folder, use_cache=False)
    assert not cache.exists()
    extract(checkpoint, folder)
    for path in cache.rglob("*.safetensors"):
        path.write_bytes(b"damaged")
    again = extract(checkpoint, folder, use_cache=False)  # without a warning about the damage
    assert torch.equal(again.train.values, split.train.values)


def test_two_images_of_two_classes_are_enough(tmp_path: Path) -> None:
    folder = draw_classes(tmp_path / "photos", {"ant": 1, "bee": 1})
    split = extract(make_checkpoint(cases.VIT), folder, held_out=0.5)
    assert sorted([*split.train.labels.tolist(), *split.test.labels.tolist()]) == [0, 1]


def test_a_bad_image_is_an_error_or_skipped(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 1)
    (folder / "train" / "bee" / "1.png").write_text("not an image")
    checkpoint = make_checkpoint(cases.VIT)
    skipping = InferenceConfig(num_workers=0, bad_images="skip")
    for _ in range(2):  # computed, then from the cache
        with pytest.warns(VitrineWarning, match=r"train/bee/1\.png"):
            split = extract(checkpoint, folder, skipping)
        assert split.train.index.tolist() == [0, 1, 2, 3, 5]
        assert split.train.labels.tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match=r"train/bee/1\.png"):
        extract(checkpoint, folder)  # the cached features do not hide it


def test_unsuitable_data_is_an_error(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 1, 1)
    with pytest.raises(FileNotFoundError, match="none"):
        extract(checkpoint, tmp_path / "none")
    for held_out in (0.0, 1.0, -1.0, 0.01):
        with pytest.raises(ValueError, match=f"held_out={held_out} .*2 images"):
            extract(checkpoint, folder / "train", held_out=held_out)
    with pytest.raises(ValueError, match=r"one class.*ant"):
        extract(checkpoint, draw_classes(tmp_path / "one", {"ant": 10}))
    (tmp_path / "flat").mkdir()
    for number, path in enumerate((folder / "train").rglob("*.png")):
        path.rename(tmp_path / "flat" / f"{number}.png")
    with pytest.raises(ValueError, match="no labels"):
        extract(checkpoint, tmp_path / "flat", held_out=0.5)

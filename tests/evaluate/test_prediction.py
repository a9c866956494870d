"""What a classifier says of files, against its softmax computed by hand."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.prediction import Prediction, predict_files
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig

HERE = ReadingConfig(batch_size=2, num_workers=0, bad_images="skip")


def draw_images(folder: Path, num_images: int, seed: int = 0, size: tuple[int, int] = (30, 28)) -> list[Path]:
    """PNG files 0.png, 1.png, .. of noise, each with a tint of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    files = [folder / f"{number}.png" for number in range(num_images)]
    for file in files:
        pixels = generator.integers(0, 60, (*size, 3)) + generator.integers(0, 196, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(file)
    return files


@torch.no_grad()
def featurise_by_hand(checkpoint: Checkpoint, files: Sequence[Path]) -> Tensor:
    """float32 (N, D), in one batch: as the commands have it, so that what is fitted to them differs not even by rounding."""
    images = torch.stack([checkpoint.preprocessing.load(file) for file in files])
    return checkpoint.model.pool(checkpoint.model.encode(checkpoint.preprocessing.normalise(images)))


@torch.no_grad()
def make_classifier(files: Sequence[Path], config: ModelConfig = cases.VIT, seed: int = 0) -> Checkpoint:
    """Random weights, and a head whose answers and certainty differ from one of these images to the next."""
    checkpoint = make_checkpoint(config)
    features = featurise_by_hand(checkpoint, files)
    head = checkpoint.model.head
    weight = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    head.weight.copy_(weight * 2 / (features @ weight.T).std(dim=0).mean())
    head.bias.copy_(-head.weight @ features.mean(dim=0))
    return checkpoint


@torch.no_grad()
def compute_shares(checkpoint: Checkpoint, files: Sequence[Path]) -> np.ndarray:
    """The probabilities of all classes (N, K), by hand."""
    return checkpoint.model.head(featurise_by_hand(checkpoint, files)).double().softmax(dim=1).numpy()


def assert_predicted(found: Prediction, shares: np.ndarray, names: Sequence[str], num_answers: int) -> None:
    order = np.argsort(-shares)[:num_answers]
    assert found.classes == tuple(names[place] for place in order)
    assert found.probabilities == pytest.approx(shares[order].tolist(), rel=1e-4)  # single precision


def test_answers_are_the_softmax_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 5)
    checkpoint = make_classifier(files)
    files = [files[place] for place in (3, 0, 4, 1, 2)]
    shares = compute_shares(checkpoint, files)
    predictions = predict_files(checkpoint, files, 3, HERE)
    assert predictions.unreadable == {}
    assert [found.image for found in predictions.found] == list(map(str, files))
    for found, row in zip(predictions.found, shares, strict=True):
        assert_predicted(found, row, [f"class {number}" for number in range(5)], 3)
    assert len({found.classes[0] for found in predictions.found}) > 1


def test_folders_are_looked_through_and_no_file_is_answered_twice(tmp_path: Path) -> None:
    deep = draw_images(tmp_path / "photos" / "größe" / "猫", 2)
    first = draw_images(tmp_path / "photos", 1)
    (tmp_path / "photos" / "notes.txt").write_text("no image, and not named as one")
    checkpoint = make_classifier([*deep, *first])
    predictions = predict_files(checkpoint, [deep[1], tmp_path / "photos", first[0]], 1, HERE)
    assert [found.image for found in predictions.found] == [str(deep[1]), str(first[0]), str(deep[0])]
    assert predictions.unreadable == {}


def test_all_classes_add_up_to_one_and_there_are_no_more(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    for found in predict_files(make_classifier(files), files, 100, HERE).found:
        assert sorted(found.classes) == [f"class {number}" for number in range(5)]
        assert sum(found.probabilities) == pytest.approx(1)
        assert list(found.probabilities) == sorted(found.probabilities, reverse=True)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_few_classes_are_enough(tmp_path: Path, num_classes: int) -> None:
    files = draw_images(tmp_path, 3)
    predictions = predict_files(make_classifier(files, replace(cases.VIT, num_classes=num_classes)), files, 5, HERE)
    assert [len(found.classes) for found in predictions.found] == [num_classes] * 3


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    checkpoint = replace(make_classifier(files), class_names=None)
    [found] = predict_files(checkpoint, files[:1], 5, HERE).found
    assert_predicted(found, compute_shares(checkpoint, files)[0], "01234", 5)


def test_an_image_may_have_any_size_and_any_colours(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    Image.fromarray(pixels).convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(np.stack([pixels] * 4, axis=2)).save(tmp_path / "transparent.webp")
    for number, size in enumerate([(1, 1), (1, 300), (300, 1)]):
        Image.new("RGB", size, (9, 200, 30)).save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.iterdir())
    checkpoint = make_classifier(files)
    predictions = predict_files(checkpoint, [tmp_path], 5, HERE)
    assert predictions.unreadable == {}
    for found, row in zip(predictions.found, compute_shares(checkpoint, files), strict=True):
        assert_predicted(found, row, [f"class {number}" for number in range(5)], 5)


def test_files_that_give_no_image_do_not_stop_the_rest(tmp_path: Path) -> None:
    good = draw_images(tmp_path, 4)
    (tmp_path / "cut.png").write_bytes(good[0].read_bytes()[:-200])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "words.jpg").write_text("no image")
    files = [tmp_path / "words.jpg", good[0], tmp_path / "gone.png", good[1], tmp_path / "cut.png", tmp_path / "empty.png"]
    predictions = predict_files(make_classifier(good), [*files, *good[2:]], 2, HERE)
    assert [found.image for found in predictions.found] == list(map(str, good))
    assert list(predictions.unreadable) == [str(files[place]) for place in (0, 2, 4, 5)]
    reasons = list(predictions.unreadable.values())
    assert ["not an image that can be read" in reason for reason in reasons] == [True, False, False, True]
    assert "No such file or directory" in reasons[1]
    assert "cut short" in reasons[2]
    assert "\n" not in "".join(reasons)


def test_no_image_at_all_is_no_error_here(tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("no image")
    predictions = predict_files(make_classifier(draw_images(tmp_path / "good", 2)), [tmp_path / "words.png"], 2, HERE)
    assert predictions.found == []
    assert list(predictions.unreadable) == [str(tmp_path / "words.png")]


def test_other_processes_read_the_same(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 5)
    checkpoint = make_classifier(files)
    (tmp_path / "words.png").write_text("no image")
    alone = predict_files(checkpoint, [tmp_path], 2, HERE)
    assert predict_files(checkpoint, [tmp_path], 2, replace(HERE, num_workers=2)) == alone


def test_mistakes_are_said_in_a_sentence(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    with pytest.raises(ValueError, match=r"The model has no head, and a classifier was needed: fine-tune it first"):
        predict_files(make_checkpoint(replace(cases.VIT, num_classes=0)), files, 5, HERE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no image in it, at whatever depth: give another folder, or files"):
        predict_files(make_classifier(files), [tmp_path / "empty"], 5, HERE)

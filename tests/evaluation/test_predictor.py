"""Tests of evaluation/predictor.py.

A checkpoint over files and pixels, against the same model image by image.
What a classifier says of files, against its softmax computed by hand.
"""

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
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.image_files import FileSource
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import FeatureCache
from vitrine.evaluation.predictor import ImagePrediction, answer_images, featurise_images, predict_files, read_images
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig, ViTConfig

NAMES = tuple(f"bild {index} größer.png" for index in range(7))
LABELS = Labels.one_each([0, 4, 2, 1, 3, 0, 2])
READING = InferenceConfig(batch_size=3, num_workers=0)


@pytest.fixture(autouse=True)
def no_cache_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    """Images of several sizes."""
    (tmp_path / "images").mkdir()
    for index, name in enumerate(NAMES):
        pixels = np.random.default_rng(index).integers(0, 256, (20 + 5 * index, 41 - 3 * index, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    return FileSource(tmp_path / "images", NAMES, LABELS, tuple("abcde"))


@torch.no_grad()
def predict_one_by_one(checkpoint: Checkpoint, paths: Sequence[Path]) -> Tensor:
    model = checkpoint.model.eval()
    return torch.cat([model(checkpoint.preprocessing.normalise(checkpoint.preprocessing.load(path))[None]) for path in paths])


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_answers_are_those_that_the_model_gives_to_each_image(config: ModelConfig, source: FileSource) -> None:
    checkpoint = make_checkpoint(config)
    found = answer_images(checkpoint, source, READING)
    logits = predict_one_by_one(checkpoint, source.files())
    assert found.index.tolist() == list(range(7))
    assert torch.equal(found.classes, logits.argsort(dim=1, descending=True))
    torch.testing.assert_close(found.probabilities, logits.softmax(dim=1).sort(dim=1, descending=True).values)
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(LABELS.values), reduction="none")
    torch.testing.assert_close(found.losses, losses)


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_the_head_makes_the_model_s_logits_of_features(config: ModelConfig, source: FileSource) -> None:
    checkpoint = make_checkpoint(config)
    found = featurise_images(checkpoint, source, READING)
    with torch.no_grad():
        logits = checkpoint.model.head(found.values)
    torch.testing.assert_close(logits, predict_one_by_one(checkpoint, source.files()))
    assert found.labels.tolist() == LABELS.values.tolist()
    assert found.index.tolist() == list(range(7))


@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_how_images_are_read_changes_nothing(batch_size: int, num_workers: int, source: FileSource) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    reading = InferenceConfig(batch_size=batch_size, num_workers=num_workers)
    expected, found = (answer_images(checkpoint, source, each) for each in (READING, reading))
    assert torch.equal(found.classes, expected.classes)
    torch.testing.assert_close(found.probabilities, expected.probabilities)


def test_a_model_in_training_is_measured_without_dropout(source: FileSource) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5, dropout_rate=0.5))
    expected = predict_one_by_one(checkpoint, source.files())
    checkpoint.model.train()
    torch.testing.assert_close(answer_images(checkpoint, source, READING).classes, expected.argsort(dim=1, descending=True))
    checkpoint.model.train()
    first, second = (featurise_images(checkpoint, source, READING).values for _ in range(2))
    assert torch.equal(first, second)


def test_as_many_answers_as_wished(source: FileSource) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    assert answer_images(checkpoint, source, READING, num_answers=2).classes.shape == (7, 2)
    assert answer_images(checkpoint, source, READING, num_answers=50).classes.shape == (7, 5)


def test_features_from_the_cache_are_those_without_it(source: FileSource, tmp_path: Path) -> None:
    checkpoint, cache = make_checkpoint(cases.VIT), FeatureCache(tmp_path / "cache")
    plain, first, second = (featurise_images(checkpoint, source, READING, cache=each) for each in (None, cache, cache))
    for name, tensor in vars(plain).items():
        assert torch.equal(getattr(first, name), tensor)
        assert torch.equal(getattr(second, name), tensor)
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1


def test_features_in_the_cache_need_no_model_to_be_run(source: FileSource, tmp_path: Path) -> None:
    checkpoint, cache = make_checkpoint(cases.VIT), FeatureCache(tmp_path / "cache")
    featurise_images(checkpoint, source, READING, cache=cache)
    ran: list[object] = []
    checkpoint.model.register_forward_pre_hook(lambda *arguments: ran.append(arguments))
    checkpoint.model.blocks[0].register_forward_pre_hook(lambda *arguments: ran.append(arguments))
    featurise_images(checkpoint, source, READING, cache=cache)
    assert ran == []
    featurise_images(checkpoint, source, READING)
    assert ran != []


def test_grey_models_take_images_of_colour(source: FileSource) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5, num_channels=1))
    found = answer_images(checkpoint, source, READING)
    assert torch.equal(found.classes, predict_one_by_one(checkpoint, source.files()).argsort(dim=1, descending=True))


def test_pixels_in_memory_are_answered_as_their_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 30, 26, 3), dtype=np.uint8)
    for name, image in zip("abc", pixels, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    labels = Labels.one_each([0, 1, 2])
    sources = (
        ArraySource(pixels, labels, ("x", "y", "z"), "made"),
        FileSource(tmp_path, ("a.png", "b.png", "c.png"), labels, ()),
    )
    checkpoint = make_checkpoint(cases.VIT)
    first, second = (answer_images(checkpoint, source, READING) for source in sources)
    for name, tensor in vars(first).items():
        assert torch.equal(getattr(second, name), tensor)


def test_one_image(source: FileSource) -> None:
    one = FileSource(source.root, NAMES[:1], Labels.one_each([0]), tuple("abcde"))
    assert len(answer_images(make_checkpoint(cases.VIT), one, READING)) == 1
    assert featurise_images(make_checkpoint(cases.VIT), one, READING).values.shape == (1, 16)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_a_bad_image_is_left_out_when_so_wished(batch_size: int, source: FileSource) -> None:
    whole = answer_images(make_checkpoint(cases.VIT), source, READING)
    (source.root / NAMES[3]).write_bytes(b"no image")
    content = (source.root / NAMES[5]).read_bytes()
    (source.root / NAMES[5]).write_bytes(content[: len(content) // 2])  # its head is good
    kept = [0, 1, 2, 4, 6]
    reading = InferenceConfig(batch_size=batch_size, num_workers=0, bad_images="skip")
    with pytest.warns(VitrineWarning, match=r"^Skipped "):
        found = answer_images(make_checkpoint(cases.VIT), source, reading)
    assert found.index.tolist() == kept
    torch.testing.assert_close(found.losses, whole.losses[kept])
    with pytest.warns(VitrineWarning, match=r"^Skipped "):
        assert featurise_images(make_checkpoint(cases.VIT), source, reading).index.tolist() == kept


def test_a_bad_image_is_named_otherwise(source: FileSource) -> None:
    (source.root / NAMES[3]).write_bytes(b"no image")
    for measure in (answer_images, featurise_images):
        with pytest.raises(BadImage, match=r"^bild 3 größer\.png is not a readable image"):
            measure(make_checkpoint(cases.VIT), source, READING)


def test_images_come_once_in_order_and_as_the_checkpoint_prepares_them(source: FileSource) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    batches = list(read_images(checkpoint, source, READING, "reading"))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    expected = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()])
    assert torch.equal(torch.cat([batch.image for batch in batches]), expected)
    assert not torch.equal(expected[0], build_inception_preprocessing((24, 24)).load(source.files()[0]))


def test_nothing_is_printed_where_there_is_no_terminal(source: FileSource, capsys: pytest.CaptureFixture[str]) -> None:
    answer_images(make_checkpoint(cases.VIT), source, READING)
    featurise_images(make_checkpoint(cases.VIT), source, READING)
    assert capsys.readouterr() == ("", "")


HERE = InferenceConfig(batch_size=2, num_workers=0, bad_images="skip")


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


def assert_predicted(found: ImagePrediction, shares: np.ndarray, names: Sequence[str], num_answers: int) -> None:
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
    assert ["not a readable image" in reason for reason in reasons] == [True, False, False, True]
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

"""A checkpoint over files and pixels, against the same model image by image."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.formats import cases
from tests.formats.cases import make_checkpoint
from vitrine.core.notices import Notice
from vitrine.data.decode import BadImage
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.files import FileSource
from vitrine.evaluate.config import ReadingConfig
from vitrine.evaluate.feature_cache import FeatureCache
from vitrine.evaluate.measuring import answer_images, featurise_images, read_images
from vitrine.formats.checkpoint import Checkpoint
from vitrine.models.config import ModelConfig, ViTConfig

NAMES = tuple(f"bild {index} größer.png" for index in range(7))
LABELS = Labels.one_each([0, 4, 2, 1, 3, 0, 2])
READING = ReadingConfig(batch_size=3, num_workers=0)


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
    reading = ReadingConfig(batch_size=batch_size, num_workers=num_workers)
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
    reading = ReadingConfig(batch_size=batch_size, num_workers=0, bad_images="skip")
    with pytest.warns(Notice, match=r"^Skipped "):
        found = answer_images(make_checkpoint(cases.VIT), source, reading)
    assert found.index.tolist() == kept
    torch.testing.assert_close(found.losses, whole.losses[kept])
    with pytest.warns(Notice, match=r"^Skipped "):
        assert featurise_images(make_checkpoint(cases.VIT), source, reading).index.tolist() == kept


def test_a_bad_image_is_named_otherwise(source: FileSource) -> None:
    (source.root / NAMES[3]).write_bytes(b"no image")
    for measure in (answer_images, featurise_images):
        with pytest.raises(BadImage, match=r"^bild 3 größer\.png is not an image that can be read"):
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

"""Predictor and the functions predict and features, against the model image by image and softmax computed by hand."""

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.formats import cases
from tests.formats.cases import make_checkpoint, save_quietly
from tests.photos import draw_divided, draw_images
from vitrine.core import runtime
from vitrine.core.console import VitrineWarning
from vitrine.data.image import BadImage
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.data.source import ArraySource, Labels
from vitrine.data.sources.image_files import FileSource
from vitrine.engines.engine import TorchEngine
from vitrine.evaluation.config import InferenceConfig
from vitrine.evaluation.features import FeatureCache
from vitrine.evaluation.few_shot import few_shot
from vitrine.evaluation.predictor import ImagePrediction, ImagesLike, Predictor, PredictResult, features, predict
from vitrine.evaluation.probes import probe
from vitrine.formats.checkpoint import Calibration, Checkpoint
from vitrine.models.config import ModelConfig, ViTConfig
from vitrine.models.cost import compute_cost

NAMES = tuple(f"bild {index} größer.png" for index in range(7))
CLASS_NAMES = [f"class {number}" for number in range(5)]
LABELS = Labels.one_each([0, 4, 2, 1, 3, 0, 2])
INFERENCE = InferenceConfig(batch_size=3, num_workers=0)


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    """Write images of several sizes."""
    (tmp_path / "images").mkdir()
    for index, name in enumerate(NAMES):
        pixels = np.random.default_rng(index).integers(0, 256, (20 + 5 * index, 41 - 3 * index, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / name)
    return FileSource(tmp_path / "images", NAMES, LABELS, tuple("abcde"))


def make_predictor(checkpoint: Checkpoint | None = None, inference: InferenceConfig = INFERENCE) -> Predictor:
    return Predictor(checkpoint or make_checkpoint(cases.VIT), "cpu", inference)


@torch.no_grad()
def compute_logits(checkpoint: Checkpoint, paths: Sequence[Path]) -> Tensor:
    """Compute logits image by image, without loader and predictor."""
    model = checkpoint.model.eval()
    return torch.cat([model(checkpoint.preprocessing.normalise(checkpoint.preprocessing.load(path))[None]) for path in paths])


@torch.no_grad()
def featurise_by_hand(checkpoint: Checkpoint, files: Sequence[Path]) -> Tensor:
    """Compute features float32 (N, D) in one batch, as the commands do, so that they are bit-equal."""
    images = torch.stack([checkpoint.preprocessing.load(file) for file in files])
    return checkpoint.model.pool(checkpoint.model.encode(checkpoint.preprocessing.normalise(images)))


@torch.no_grad()
def make_classifier(files: Sequence[Path], config: ModelConfig = cases.VIT, seed: int = 0) -> Checkpoint:
    """Make a model with random weights and a head whose predictions and confidences differ between these images."""
    checkpoint = make_checkpoint(config)
    values = featurise_by_hand(checkpoint, files)
    head = checkpoint.model.head
    weight = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(seed))
    head.weight.copy_(weight * 2 / (values @ weight.T).std(dim=0).mean())
    head.bias.copy_(-head.weight @ values.mean(dim=0))
    return checkpoint


@torch.no_grad()
def compute_probabilities(checkpoint: Checkpoint, files: Sequence[Path]) -> np.ndarray:
    """Compute the probabilities of all classes (N, K) by hand."""
    return checkpoint.model.head(featurise_by_hand(checkpoint, files)).double().softmax(dim=1).numpy()


def assert_predicted(prediction: ImagePrediction, probabilities: np.ndarray, names: Sequence[str], top: int) -> None:
    order = np.argsort(-probabilities)[:top]
    assert prediction.classes == tuple(names[label] for label in order)
    assert prediction.probabilities == pytest.approx(probabilities[order].tolist(), rel=1e-4)  # single precision


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_predictions_equal_the_model_image_by_image(config: ModelConfig, source: FileSource) -> None:
    checkpoint = make_checkpoint(config)
    topk = make_predictor(checkpoint).predict_source(source)
    logits = compute_logits(checkpoint, source.files())
    assert topk.index.tolist() == list(range(7))
    assert torch.equal(topk.classes, logits.argsort(dim=1, descending=True))
    torch.testing.assert_close(topk.probabilities, logits.softmax(dim=1).sort(dim=1, descending=True).values)
    losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(LABELS.values), reduction="none")
    torch.testing.assert_close(topk.losses, losses)


@pytest.mark.parametrize("config", [cases.VIT, cases.HYBRID, cases.BIT])
def test_head_of_features_gives_logits(config: ModelConfig, source: FileSource) -> None:
    checkpoint = make_checkpoint(config)
    result = make_predictor(checkpoint).features(source)
    with torch.no_grad():
        logits = checkpoint.model.head(result.values)
    torch.testing.assert_close(logits, compute_logits(checkpoint, source.files()))
    assert result.labels.tolist() == LABELS.values.tolist()
    assert result.index.tolist() == list(range(7))


@pytest.mark.parametrize("batch_size", [1, 7, 100])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_batch_size_and_workers_change_nothing(batch_size: int, num_workers: int, source: FileSource) -> None:
    expected = make_predictor().predict_source(source)
    topk = make_predictor(inference=InferenceConfig(batch_size=batch_size, num_workers=num_workers)).predict_source(source)
    assert torch.equal(topk.classes, expected.classes)
    torch.testing.assert_close(topk.probabilities, expected.probabilities)


def test_model_in_training_mode_is_evaluated_without_dropout(source: FileSource) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5, dropout_rate=0.5))
    expected = compute_logits(checkpoint, source.files())
    checkpoint.model.train()
    topk = make_predictor(checkpoint).predict_source(source)
    torch.testing.assert_close(topk.classes, expected.argsort(dim=1, descending=True))


def test_top_limits_the_number_of_classes(source: FileSource) -> None:
    assert make_predictor().predict_source(source, top=2).classes.shape == (7, 2)
    assert make_predictor().predict_source(source, top=50).classes.shape == (7, 5)


def test_cached_features_equal_computed_ones(source: FileSource, tmp_path: Path) -> None:
    predictor, cache = make_predictor(), FeatureCache(tmp_path / "cache")
    plain, first, second = (predictor.features(source, each) for each in (None, cache, cache))
    for name, tensor in vars(plain).items():
        assert torch.equal(getattr(first, name), tensor)
        assert torch.equal(getattr(second, name), tensor)
    assert len(list((tmp_path / "cache").glob("*.safetensors"))) == 1


def test_cached_features_do_not_run_the_model(source: FileSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, cache = make_predictor(), FeatureCache(tmp_path / "cache")
    predictor.features(source, cache)
    monkeypatch.setattr(predictor.engine, "features", lambda images: pytest.fail("the model was run"))
    predictor.features(source, cache)


def test_grey_model_takes_colour_images(source: FileSource) -> None:
    checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5, num_channels=1))
    topk = make_predictor(checkpoint).predict_source(source)
    assert torch.equal(topk.classes, compute_logits(checkpoint, source.files()).argsort(dim=1, descending=True))


def test_pixels_in_memory_equal_their_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 30, 26, 3), dtype=np.uint8)
    for name, image in zip("abc", pixels, strict=True):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    labels = Labels.one_each([0, 1, 2])
    sources = (
        ArraySource(pixels, labels, ("x", "y", "z"), "made"),
        FileSource(tmp_path, ("a.png", "b.png", "c.png"), labels, ()),
    )
    first, second = (make_predictor().predict_source(each) for each in sources)
    for name, tensor in vars(first).items():
        assert torch.equal(getattr(second, name), tensor)


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_bad_images_are_skipped_with_a_warning(batch_size: int, source: FileSource) -> None:
    whole = make_predictor().predict_source(source)
    (source.root / NAMES[3]).write_bytes(b"no image")
    content = (source.root / NAMES[5]).read_bytes()
    (source.root / NAMES[5]).write_bytes(content[: len(content) // 2])  # with a valid header
    kept = [0, 1, 2, 4, 6]
    predictor = make_predictor(inference=InferenceConfig(batch_size=batch_size, num_workers=0, bad_images="skip"))
    with pytest.warns(VitrineWarning, match=r"^Skipped "):
        topk = predictor.predict_source(source)
    assert topk.index.tolist() == kept
    torch.testing.assert_close(topk.losses, whole.losses[kept])
    with pytest.warns(VitrineWarning, match=r"^Skipped "):
        assert predictor.features(source).index.tolist() == kept


def test_bad_images_are_errors_by_default(source: FileSource) -> None:
    (source.root / NAMES[3]).write_bytes(b"no image")
    for compute in (make_predictor().predict_source, make_predictor().features):
        with pytest.raises(BadImage, match=r"^bild 3 größer\.png"):
            compute(source)


def test_images_are_read_once_in_order_and_preprocessed(source: FileSource) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    batches = list(make_predictor(checkpoint).read_images(source))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    expected = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()])
    assert torch.equal(torch.cat([batch.image for batch in batches]), expected)
    assert not torch.equal(expected[0], build_inception_preprocessing((24, 24)).load(source.files()[0]))


def test_attention_maps_of_a_layer(source: FileSource) -> None:
    checkpoint = make_checkpoint(cases.VIT)
    maps = make_predictor(checkpoint).attention(source.files(), layer=1)
    images = torch.stack([checkpoint.preprocessing.load(path) for path in source.files()])
    name = "blocks.1.attention"
    with torch.no_grad():
        expected = checkpoint.model.encode(checkpoint.preprocessing.normalise(images), keep=[name]).kept[name]
    torch.testing.assert_close(maps, expected)
    for config, layer in ((cases.VIT, 9), (cases.BIT, 0)):
        with pytest.raises(ValueError, match=f"layer {layer}"):
            make_predictor(make_checkpoint(config)).attention(source.files()[:1], layer)


def test_nothing_is_printed_without_a_terminal(source: FileSource, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = Predictor(make_checkpoint(cases.VIT), "cpu", INFERENCE, show_progress=True)
    predictor.predict_source(source)
    predictor.features(source)
    assert capsys.readouterr() == ("", "")


def test_model_may_be_a_path_a_checkpoint_or_an_engine(tmp_path: Path) -> None:
    files = draw_images(tmp_path / "images", 2)
    checkpoint = make_classifier(files)
    save_quietly(checkpoint, tmp_path / "model", "vitrine")
    models = (tmp_path / "model", str(tmp_path / "model"), checkpoint, TorchEngine(checkpoint))
    results = [Predictor(model, "cpu").predict(files) for model in models]
    assert all(result == results[0] for result in results)
    assert predict(checkpoint, files, device="cpu") == results[0]


def predict_by_twos(checkpoint: Checkpoint, images: ImagesLike, top: int = 5, num_workers: int = 0) -> PredictResult:
    return make_predictor(checkpoint, InferenceConfig(batch_size=2, num_workers=num_workers)).predict(images, top)


def test_predictions_are_the_softmax_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 5)
    checkpoint = make_classifier(files)
    files = [files[number] for number in (3, 0, 4, 1, 2)]
    probabilities = compute_probabilities(checkpoint, files)
    result = predict_by_twos(checkpoint, files, 3)
    assert result.unreadable == {}
    assert [prediction.image for prediction in result.predictions] == list(map(str, files))
    for prediction, row in zip(result.predictions, probabilities, strict=True):
        assert_predicted(prediction, row, CLASS_NAMES, 3)
    assert len({prediction.classes[0] for prediction in result.predictions}) > 1


def test_answers_below_the_limit_are_unsure(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 6)
    plain = make_classifier(files)
    best = compute_probabilities(plain, files).max(axis=1)
    low, high = (float(np.sort(best)[rank : rank + 2].mean()) for rank in (0, 3))
    checkpoint = replace(plain, calibration=Calibration(reject_below=low))

    def find_unsure(checkpoint: Checkpoint, reject_below: float | None) -> list[bool]:
        result = predict(checkpoint, files, device="cpu", inference=INFERENCE, reject_below=reject_below)
        assert result == make_predictor(checkpoint).predict(files, reject_below=reject_below)
        assert all(each.is_label is None and each.labels is None for each in result.predictions)
        return [each.is_unsure for each in result.predictions]

    assert find_unsure(plain, None) == [False] * 6
    assert sum(find_unsure(checkpoint, None)) == 1
    assert find_unsure(checkpoint, None) == find_unsure(plain, low) == (best < low).tolist()
    assert find_unsure(checkpoint, high) == (best < high).tolist()
    assert sum(find_unsure(checkpoint, high)) == 4
    assert find_unsure(checkpoint, 0) == [False] * 6
    assert find_unsure(plain, 1) == [True] * 6


@pytest.mark.parametrize("limit", [-0.1, 1.1, float("nan"), float("inf")])
def test_limit_of_unsure_answers_is_a_probability(limit: float, source: FileSource) -> None:
    with pytest.raises(ValueError, match=f"reject_below={limit}.*from 0 to 1"):
        make_predictor().predict(source, reject_below=limit)


def test_several_labels_are_sigmoids_above_their_thresholds(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 6)
    plain = make_classifier(files)
    with torch.no_grad():
        logits = plain.model.head(featurise_by_hand(plain, files)).double().numpy()
    thresholds = (0.02, 0.5, 0.9, 0.3, 0.999)
    checkpoint = replace(plain, calibration=Calibration(2.0, thresholds))
    probabilities = 1 / (1 + np.exp(-logits / 2.0))
    for top in (1, 3, 50):
        predictions = predict_by_twos(checkpoint, files, top).predictions
        for prediction, row in zip(predictions, probabilities, strict=True):
            order = np.argsort(-row)
            listed = [number for rank, number in enumerate(order) if rank < top or row[number] >= thresholds[number]]
            assert prediction.classes == tuple(CLASS_NAMES[number] for number in listed)
            assert prediction.probabilities == pytest.approx(row[listed].tolist(), rel=1e-4)  # single precision
            assert prediction.is_label == tuple(bool(row[number] >= thresholds[number]) for number in listed)
            labels = [number for number in order if row[number] >= thresholds[number]]
            assert prediction.labels == tuple(CLASS_NAMES[number] for number in labels)
            assert not prediction.is_unsure
    counts = [len(each.labels or ()) for each in predictions]
    assert len(set(counts)) > 1
    assert any(len(each.classes) > 1 for each in predict_by_twos(checkpoint, files, 1).predictions)
    with pytest.raises(ValueError, match=r"reject_below=0\.5 .* leave it out"):
        make_predictor(checkpoint).predict(files, reject_below=0.5)


def test_logits_of_several_labels_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    checkpoint = replace(make_classifier(files), calibration=Calibration(thresholds=(0.5,) * 5))
    with torch.no_grad():
        checkpoint.model.head.bias[3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        make_predictor(checkpoint).predict(files)


def test_images_may_be_paths_bytes_pil_images_and_arrays(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 4)
    checkpoint = make_classifier(files)
    expected = [each.probabilities for each in predict_by_twos(checkpoint, files).predictions]
    with Image.open(files[2]) as opened:
        images = [str(files[0]), files[1].read_bytes(), opened.copy(), np.asarray(Image.open(files[3]))]
    result = predict_by_twos(checkpoint, images)
    assert [each.image for each in result.predictions] == [str(files[0]), "image 1", "image 2", "image 3"]
    assert [each.probabilities for each in result.predictions] == expected
    stacked = np.stack([np.asarray(Image.open(file)) for file in files])
    assert [each.probabilities for each in predict_by_twos(checkpoint, stacked).predictions] == expected
    for number, image in enumerate(images):  # a single image, not in a list
        assert [each.probabilities for each in predict_by_twos(checkpoint, image).predictions] == pytest.approx(
            [pytest.approx(expected[number], rel=1e-5)]  # another batch size rounds differently
        )


def test_pil_images_of_any_mode_equal_their_files(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    grey = Image.fromarray(pixels)
    images = [
        grey,
        grey.convert("P"),
        Image.fromarray(np.stack([pixels] * 4, axis=2)),
        Image.fromarray(pixels.astype("uint16") * 256),
    ]
    files = [tmp_path / f"{number}.png" for number in range(len(images))]
    for image, file in zip(images, files, strict=True):
        image.save(file)
    for channels in (1, 3):
        checkpoint = make_checkpoint(ViTConfig(**cases.SMALL, num_classes=5, num_channels=channels))
        from_files, from_memory = (predict_by_twos(checkpoint, each).predictions for each in (files, images))
        assert [each.probabilities for each in from_memory] == [each.probabilities for each in from_files]


def test_labels_of_a_source_do_not_matter(source: FileSource) -> None:
    other = FileSource(source.root, NAMES, Labels.one_each([90, 7, 7, 7, 7, 7, 7]), tuple(map(str, range(91))))
    first, second = (predict_by_twos(make_checkpoint(cases.VIT), each) for each in (source, other))
    assert first == second
    assert len(first.predictions) == 7


def test_bad_objects_are_listed_and_wrong_types_raise(tmp_path: Path) -> None:
    [good] = draw_images(tmp_path, 1)
    checkpoint = make_checkpoint(cases.VIT)
    result = predict_by_twos(checkpoint, [b"no image", good.read_bytes(), np.zeros((4, 4, 3)), good])
    assert [each.image for each in result.predictions] == ["image 1", str(good)]
    assert list(result.unreadable) == ["image 0", "image 2"]
    assert "float64" in result.unreadable["image 2"]
    with pytest.raises(TypeError, match="int"):
        predict_by_twos(checkpoint, [3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no images"):
        predict_by_twos(checkpoint, [])


def test_threads_may_share_a_predictor(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 6)
    (tmp_path / "words.png").write_text("no image")
    predictor = make_predictor(make_classifier(files))
    expected = [predictor.predict([file, tmp_path / "words.png"]) for file in files]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda file: predictor.predict([file, tmp_path / "words.png"]), files * 3))
    assert results == expected * 3


def test_folders_are_searched_and_no_file_is_predicted_twice(tmp_path: Path) -> None:
    deep = draw_images(tmp_path / "photos" / "größe" / "猫", 2)
    first = draw_images(tmp_path / "photos", 1)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    result = predict_by_twos(make_classifier([*deep, *first]), [deep[1], tmp_path / "photos", first[0]], 1)
    assert [prediction.image for prediction in result.predictions] == [str(deep[1]), str(first[0]), str(deep[0])]
    assert result.unreadable == {}


def test_probabilities_of_all_classes_sum_to_one(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    for prediction in predict_by_twos(make_classifier(files), files, 100).predictions:
        assert sorted(prediction.classes) == CLASS_NAMES
        assert sum(prediction.probabilities) == pytest.approx(1)
        assert list(prediction.probabilities) == sorted(prediction.probabilities, reverse=True)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_fewer_classes_than_top(tmp_path: Path, num_classes: int) -> None:
    files = draw_images(tmp_path, 3)
    result = predict_by_twos(make_classifier(files, replace(cases.VIT, num_classes=num_classes)), files)
    assert [len(prediction.classes) for prediction in result.predictions] == [num_classes] * 3


def test_classes_without_names_are_numbers(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    checkpoint = replace(make_classifier(files), class_names=None)
    [prediction] = predict_by_twos(checkpoint, files[:1]).predictions
    assert_predicted(prediction, compute_probabilities(checkpoint, files)[0], "01234", 5)


def test_images_of_any_size_and_mode(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "grey.png")
    Image.fromarray(pixels).convert("P").save(tmp_path / "palette.gif")
    Image.fromarray(np.stack([pixels] * 4, axis=2)).save(tmp_path / "transparent.webp")
    for number, size in enumerate([(1, 1), (1, 300), (300, 1)]):
        Image.new("RGB", size, (9, 200, 30)).save(tmp_path / f"{number}.png")
    files = sorted(tmp_path.iterdir())
    checkpoint = make_classifier(files)
    result = predict_by_twos(checkpoint, tmp_path)
    assert result.unreadable == {}
    for prediction, row in zip(result.predictions, compute_probabilities(checkpoint, files), strict=True):
        assert_predicted(prediction, row, CLASS_NAMES, 5)


def test_unreadable_files_are_listed_with_reasons(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    good = draw_images(tmp_path, 4)
    (tmp_path / "cut.png").write_bytes(good[0].read_bytes()[:-200])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "words.jpg").write_text("no image")
    files = [tmp_path / "words.jpg", good[0], tmp_path / "gone.png", good[1], tmp_path / "cut.png", tmp_path / "empty.png"]
    result = predict_by_twos(make_classifier(good), [*files, *good[2:]], 2)
    assert [prediction.image for prediction in result.predictions] == list(map(str, good))
    assert list(result.unreadable) == [str(files[number]) for number in (0, 2, 4, 5)]
    for name, reason in result.unreadable.items():
        assert Path(name).name in reason
        assert "\n" not in reason
    assert "No such file" in result.unreadable[str(tmp_path / "gone.png")]
    assert not [warning for warning in recwarn if issubclass(warning.category, VitrineWarning)]


def test_only_unreadable_files_give_no_predictions(tmp_path: Path) -> None:
    (tmp_path / "words.png").write_text("no image")
    result = predict_by_twos(make_checkpoint(cases.VIT), tmp_path / "words.png", 2)
    assert result.predictions == []
    assert list(result.unreadable) == [str(tmp_path / "words.png")]


def test_worker_processes_give_the_same_result(tmp_path: Path) -> None:
    checkpoint = make_classifier(draw_images(tmp_path, 5))
    (tmp_path / "words.png").write_text("no image")
    assert predict_by_twos(checkpoint, tmp_path, 2, num_workers=2) == predict_by_twos(checkpoint, tmp_path, 2)


def test_model_without_head_and_empty_folder_are_rejected(tmp_path: Path) -> None:
    files = draw_images(tmp_path, 2)
    with pytest.raises(ValueError, match="head"):
        predict_by_twos(make_checkpoint(replace(cases.VIT, num_classes=0)), files)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        predict_by_twos(make_classifier(files), tmp_path / "empty")


def test_features_of_a_data_set_with_splits(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1)
    checkpoint = make_checkpoint(cases.VIT)
    result = features(checkpoint, folder, device="cpu", inference=INFERENCE)
    files = [folder / name for name in result.names]
    torch.testing.assert_close(torch.from_numpy(result.features), featurise_by_hand(checkpoint, files))
    assert [file.parts[-3] for file in files] == result.splits.tolist()
    assert [result.class_names[label] for label in result.labels] == [file.parts[-2] for file in files]
    only = features(checkpoint, folder, "test", device="cpu", inference=INFERENCE)
    np.testing.assert_allclose(only.features, result.features[result.splits == "test"], rtol=1e-5, atol=1e-6)
    buffer = tmp_path / "out.npz"
    result.save(buffer)
    arrays = np.load(io.BytesIO(buffer.read_bytes()))
    assert set(arrays) == {"features", "labels", "names", "splits", "class_names"}


class ListDataset:
    """A map-style dataset of (PIL image, label)."""

    classes = ("ant", "bee")

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.rglob("*.png"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self.files[index]) as image:
            return image.convert("RGB"), self.classes.index(self.files[index].parent.name)


def test_data_may_be_python_datasets(tmp_path: Path) -> None:
    folder = draw_divided(tmp_path / "photos", ("ant", "bee"), 3, 2)
    splits = {name: ListDataset(folder / name) for name in ("train", "test")}
    checkpoint = make_checkpoint(cases.VIT)
    from_folder, from_objects = (features(checkpoint, data, device="cpu", inference=INFERENCE) for data in (folder, splits))
    np.testing.assert_array_equal(from_objects.features, from_folder.features)
    np.testing.assert_array_equal(from_objects.labels, from_folder.labels)
    by_folder, by_objects = (
        few_shot(checkpoint, data, (1, None), device="cpu", inference=INFERENCE) for data in (folder, splits)
    )
    assert [each.accuracies for each in by_objects] == [each.accuracies for each in by_folder]
    by_folder, by_objects = (
        probe(checkpoint, data, ("means",), device="cpu", inference=INFERENCE) for data in (folder, splits)
    )
    assert by_objects.probes[0].accuracy == by_folder.probes[0].accuracy
    assert (by_objects.num_train_images, by_objects.num_test_images) == (6, 4)


def test_network_without_preprocessing_is_an_error() -> None:
    with pytest.raises(ValueError, match="Checkpoint"):
        Predictor(make_checkpoint(cases.VIT).model)


def test_a_batch_beyond_all_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = draw_images(tmp_path, 3)
    predictor = Predictor(make_classifier(files), "cpu")
    needed = 3 * compute_cost(predictor.engine.model.config).inference_activation_bytes
    monkeypatch.setattr(runtime, "measure_memory", lambda device: needed // 2)
    assert len(predictor.predict(files).predictions) == 3  # twice the memory is allowed: it is a lower bound
    monkeypatch.setattr(runtime, "measure_memory", lambda device: needed // 2 - 1)
    with pytest.raises(ValueError, match=r"3 images .*memory"):
        predictor.predict(files)
    assert len(predictor.predict(files[:1]).predictions) == 1

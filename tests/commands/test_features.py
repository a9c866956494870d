"""`vitrine features` from the command line: the arrays against the model's features, errors."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_evaluate import SINGLE, fail, run
from tests.data.sources.test_imagenet import make_imagenet
from tests.evaluation.test_predictor import featurise_by_hand
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from tests.photos import draw_classes, draw_divided, draw_images

pytestmark = pytest.mark.usefixtures("cache")

NO_WORKERS = ("--num-workers", 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_quietly(make_checkpoint(cases.VIT), folder / "vit", "vitrine")
    return folder / "vit"


def write(model: Path, data: Path, out: Path, *arguments: object) -> dict[str, np.ndarray]:
    run("features", model, data, "--out", out, *arguments, *NO_WORKERS)
    with np.load(out) as arrays:  # without pickle
        return dict(arrays)


def assert_features(values: np.ndarray, model: Path, files: list[Path]) -> None:
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, featurise_by_hand(load_quietly(model), files).numpy(), rtol=SINGLE, atol=1e-5)


def test_row_for_each_image(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"größe": 2, "ant": 3})
    arrays = write(model, data, tmp_path / "rows.npz")
    assert capsys.readouterr() == (f"{tmp_path / 'rows.npz'}: 5 images, 16 features\n", "")
    assert sorted(arrays) == ["class_names", "features", "labels", "names"]
    assert arrays["names"].tolist() == ["ant/0.png", "ant/1.png", "ant/2.png", "größe/0.png", "größe/1.png"]
    assert arrays["labels"].dtype == np.int64
    assert arrays["labels"].tolist() == [0, 0, 0, 1, 1]
    assert arrays["class_names"].tolist() == ["ant", "größe"]
    assert_features(arrays["features"], model, [data / name for name in arrays["names"]])


def test_all_splits_or_one(model: Path, tmp_path: Path) -> None:
    data = draw_divided(tmp_path / "photos", ("ant", "bee"), 2, 1, test="val")
    arrays = write(model, data, tmp_path / "rows.npz")
    files = [*sorted((data / "train").rglob("*.png")), *sorted((data / "val").rglob("*.png"))]
    assert [data / name for name in arrays["names"]] == files
    assert arrays["splits"].tolist() == ["train"] * 4 + ["val"] * 2
    assert arrays["labels"].tolist() == [0, 0, 1, 1, 0, 1]
    assert_features(arrays["features"], model, files)
    part = write(model, data, tmp_path / "part.npz", "--split", "val")
    assert part["splits"].tolist() == ["val"] * 2
    np.testing.assert_array_equal(part["names"], arrays["names"][4:])
    np.testing.assert_allclose(part["features"], arrays["features"][4:], rtol=SINGLE, atol=1e-5)


def test_class_numbers_are_the_same_in_all_splits(model: Path, tmp_path: Path) -> None:
    draw_classes(tmp_path / "photos" / "train", {"ant": 1, "cat": 1})
    draw_classes(tmp_path / "photos" / "test", {"bee": 1, "cat": 1})
    arrays = write(model, tmp_path / "photos", tmp_path / "rows.npz")
    named = [arrays["class_names"][label] for label in arrays["labels"]]
    assert named == [name.split("/")[1] for name in arrays["names"]] == ["ant", "cat", "bee", "cat"]


def test_images_without_labels(model: Path, tmp_path: Path) -> None:
    files = draw_images(tmp_path / "photos", 3)
    arrays = write(model, tmp_path / "photos", tmp_path / "rows.npz")
    assert arrays["class_names"].tolist() == []
    assert arrays["labels"].shape == (3, 0)
    assert_features(arrays["features"], model, files)


def test_single_image(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 1})
    arrays = write(model, data, tmp_path / "rows.npz")
    assert (arrays["features"].shape, arrays["labels"].tolist()) == ((1, 16), [0])


def test_several_labels_are_multi_hot(model: Path, tmp_path: Path) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    (folder / "real.json").write_text(json.dumps([[2], [], [1, 0], [2, 1], [0]]))
    arrays = write(model, folder, tmp_path / "rows.npz", "--split", "real")
    assert arrays["labels"].dtype == np.float32
    assert arrays["labels"].tolist() == [[0, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1], [1, 0, 0]]
    assert (arrays["features"].shape, len(arrays["class_names"])) == ((5, 16), 3)


def test_model_without_head(tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 2})
    save_quietly(make_checkpoint(replace(cases.VIT, num_classes=0)), tmp_path / "headless", "vitrine")
    arrays = write(tmp_path / "headless", data, tmp_path / "rows.npz")
    assert_features(arrays["features"], tmp_path / "headless", sorted(data.rglob("*.png")))


def test_workers_and_batch_size_change_nothing(model: Path, tmp_path: Path) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 4, "bee": 3})
    for name, options in (("a.npz", ("--num-workers", 0)), ("b.npz", ("--num-workers", 2, "--batch-size", 2))):
        run("features", model, data, "--out", tmp_path / name, "--no-cache", *options)
    with np.load(tmp_path / "a.npz") as first, np.load(tmp_path / "b.npz") as second:
        np.testing.assert_allclose(first["features"], second["features"], rtol=SINGLE, atol=1e-5)
        np.testing.assert_array_equal(first["names"], second["names"])


def test_features_are_cached_unless_turned_off(model: Path, tmp_path: Path, cache: Path) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 3})
    fresh = write(model, data, tmp_path / "fresh.npz", "--no-cache")
    assert not cache.exists()
    first = write(model, data, tmp_path / "first.npz")
    [kept] = cache.rglob("*.safetensors")
    second = write(model, data, tmp_path / "second.npz")
    assert list(cache.rglob("*.safetensors")) == [kept]
    for name in fresh:
        np.testing.assert_array_equal(fresh[name], first[name])
        np.testing.assert_array_equal(first[name], second[name])


def test_bad_image_is_an_error_or_skipped(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 2, "bee": 2})
    (data / "ant" / "1.png").write_text("no image")
    out = tmp_path / "rows.npz"
    assert "ant/1.png" in fail(capsys, "features", model, data, "--out", out, *NO_WORKERS)
    assert not out.exists()
    with pytest.raises(SystemExit) as stop:  # written, but not complete
        write(model, data, out, "--bad-images", "skip")
    assert stop.value.code == 1
    with np.load(out) as written:
        arrays = dict(written)
    assert (arrays["names"].tolist(), arrays["labels"].tolist()) == (["ant/0.png", "bee/0.png", "bee/1.png"], [0, 1, 1])
    assert_features(arrays["features"], model, [data / name for name in arrays["names"]])
    assert "ant/1.png" in capsys.readouterr().err


def test_errors_are_one_line(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = draw_classes(tmp_path / "photos", {"ant": 1})
    out = tmp_path / "rows.npz"

    def error_of(*arguments: object) -> str:
        return fail(capsys, "features", *arguments)

    assert ".npz" in error_of(model, data, "--out", tmp_path / "rows.csv")
    assert str(tmp_path / "no") in error_of(model, data, "--out", tmp_path / "no" / "rows.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "folder.npz" in error_of(model, data, "--out", tmp_path / "folder.npz")
    assert "--out" in error_of(model, data)
    assert str(tmp_path / "none") in error_of(tmp_path / "none", data, "--out", out)
    assert str(tmp_path / "none") in error_of(model, tmp_path / "none", "--out", out)
    assert "val" in error_of(model, data, "--out", out, "--split", "val")
    assert "batch_size=0" in error_of(model, data, "--out", out, "--batch-size", 0)
    assert not out.exists()


def test_splits_with_one_and_several_labels_are_not_combined(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    (folder / "real.json").write_text(json.dumps([[2], [], [1, 0], [2, 1], [0]]))
    err = fail(capsys, "features", model, folder, "--out", tmp_path / "f.npz", *NO_WORKERS)
    assert "split" in err
    assert not (tmp_path / "f.npz").exists()


def test_split_names_are_normalised(model: Path, tmp_path: Path) -> None:
    draw_images(tmp_path / "photos" / "train" / "ant", 1)
    draw_images(tmp_path / "photos" / "val" / "ant", 2)
    arrays = write(model, tmp_path / "photos", tmp_path / "f.npz", "--split", "validation", *NO_WORKERS)
    assert arrays["splits"].tolist() == ["val", "val"]

"""`vitrine predict` from the command line: output, files, errors."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_evaluate import SINGLE, fail, run
from tests.evaluation.test_predictor import compute_probabilities, make_classifier
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from tests.photos import draw_images
from vitrine.data.sources import image_files

NAMES = tuple(f"class {number}" for number in range(5))
NO_WORKERS = ("--num-workers", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write `photos` with a subfolder, `model`, and `headless`."""
    folder = tmp_path_factory.mktemp("predict")
    files = [*draw_images(folder / "photos", 3), *draw_images(folder / "photos" / "größe", 2, seed=1)]
    save_quietly(make_classifier(files), folder / "model", "vitrine")
    save_quietly(make_checkpoint(replace(cases.VIT, num_classes=0)), folder / "headless", "vitrine")
    return folder


def predict_by_hand(folder: Path, files: list[Path]) -> list[list[tuple[str, float]]]:
    """Return for each file all classes with their probabilities, the most likely first."""
    probabilities = compute_probabilities(load_quietly(folder / "model"), files)
    return [[(NAMES[label], row[label]) for label in np.argsort(-row)] for row in probabilities]


def test_one_image_is_printed_as_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "photos" / "1.png"
    run("predict", folder / "model", file)
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == str(file)
    expected = [f"{name} {probability:.1%}" for name, probability in predict_by_hand(folder, [file])[0]]
    assert [" ".join(line.split()) for line in lines[1:]] == expected
    assert err == ""


def test_several_images_are_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("predict", folder / "model", folder / "photos", "--top", 2, *NO_WORKERS)
    files = sorted((folder / "photos").rglob("*.png"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "image 1. 2."
    expected = [
        f"{file} {' '.join(f'{name} {probability:.1%}' for name, probability in predictions[:2])}"
        for file, predictions in zip(files, predict_by_hand(folder, files), strict=True)
    ]
    assert lines[1:] == expected
    assert len({line.split(".png ")[1][:7] for line in expected}) > 1


def test_json_and_csv(folder: Path, tmp_path: Path) -> None:
    files = [folder / "photos" / "größe" / "1.png", folder / "photos" / "0.png"]
    targets = ("--json", tmp_path / "predictions.json", "--csv", tmp_path / "predictions.csv")
    run("predict", folder / "model", *files, "--top", 3, *targets)
    expected = predict_by_hand(folder, files)
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert content == {
        "found": [
            {
                "image": str(file),
                "classes": [name for name, _ in predictions[:3]],
                "probabilities": pytest.approx([probability for _, probability in predictions[:3]], rel=SINGLE),
            }
            for file, predictions in zip(files, expected, strict=True)
        ],
        "unreadable": {},
    }
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["rank"], row["class"]) for row in rows] == [
        (str(file), str(rank), name)
        for file, predictions in zip(files, expected, strict=True)
        for rank, (name, _) in enumerate(predictions[:3], start=1)
    ]
    written = [probability for found in content["found"] for probability in found["probabilities"]]
    assert [float(row["probability"]) for row in rows] == written


def test_unreadable_file_is_reported_at_the_end(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "words.png"
    bad.write_text("no image")
    good = folder / "photos" / "2.png"
    files = ("--json", tmp_path / "predictions.json", "--csv", tmp_path / "predictions.csv")
    with pytest.raises(SystemExit) as stop:
        run("predict", folder / "model", bad, good, *files)
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert out.startswith(str(good))
    assert str(bad) in err.splitlines()[-1]
    assert all(line.startswith("vitrine: ") for line in err.splitlines())
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert [found["image"] for found in content["found"]] == [str(good)]
    assert list(content["unreadable"]) == [str(bad)]
    assert str(bad) not in (tmp_path / "predictions.csv").read_text()


def test_files_of_a_folder_that_are_not_images_are_counted_by_kind(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_files, "register_heif", lambda: False)
    draw_images(tmp_path / "photos", 2)
    for name in ("a.heic", "b.HEIC", "c.svg", "noext", "notes.txt"):
        (tmp_path / "photos" / name).write_bytes(b"")
    run("predict", folder / "model", tmp_path / "photos", "--top", 1, *NO_WORKERS)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err.count("\n") == 1
    assert "left out 4 files" in err
    assert all(kind in err for kind in ("2 .heic", "vitrine[heif]", "1 .svg", "1 without extension"))


def test_no_readable_file_is_an_error(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.png").write_text("no image")
    with pytest.raises(SystemExit) as stop:
        run("predict", folder / "model", tmp_path / "words.png", tmp_path / "gone.png", "--json", tmp_path / "predictions.json")
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "2 files" in err
    assert "words.png" in err
    assert not (tmp_path / "predictions.json").exists()


def test_top_above_the_number_of_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("predict", folder / "model", folder / "photos" / "0.png", "--top", 100)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5


def test_class_names_from_a_file_or_numbers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = folder / "photos" / "0.png"
    best = NAMES.index(predict_by_hand(folder, [file])[0][0][0])
    names = ["mäuse", "猫", "x, y", '"quoted"', "five"]
    (tmp_path / "names.txt").write_text("\n".join(names), encoding="utf-8")
    arguments = ("--top", 1, "--csv", tmp_path / "predictions.csv")
    run("predict", folder / "model", file, "--class-names", tmp_path / "names.txt", *arguments)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{names[best]} ")
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as written:
        assert next(csv.DictReader(written))["class"] == names[best]
    save_quietly(replace(load_quietly(folder / "model"), class_names=None), tmp_path / "nameless", "vitrine")
    run("predict", tmp_path / "nameless", file, "--top", 1)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{best} ")


def test_workers_and_batch_size_change_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in (NO_WORKERS, (), ("--num-workers", 2, "--batch-size", 2)):
        run("predict", folder / "model", folder / "photos", *options)
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1] == texts[2]


def test_checkpoint_options_are_used(folder: Path, tmp_path: Path) -> None:
    file = folder / "photos" / "0.png"
    run("predict", folder / "model", file, "--image-size", "32x44", "--json", tmp_path / "predictions.json")
    probabilities = compute_probabilities(load_quietly(folder / "model", image_size=(32, 44)), [file])[0]
    [found] = json.loads((tmp_path / "predictions.json").read_text())["found"]
    assert found["probabilities"] == pytest.approx(sorted(probabilities, reverse=True), rel=SINGLE)


def test_errors_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photo = folder / "model", folder / "photos" / "0.png"
    (tmp_path / "empty").mkdir()

    def error_of(*arguments: object) -> str:
        return fail(capsys, "predict", *arguments)

    assert "no images" in error_of(model)
    assert str(tmp_path / "none") in error_of(tmp_path / "none", photo)
    assert "head" in error_of(folder / "headless", photo)
    assert "empty" in error_of(model, photo, tmp_path / "empty")
    assert "--top 0" in error_of(model, photo, "--top", 0)
    assert "batch_size=0" in error_of(model, photo, "--batch-size", 0)
    assert "num_workers=-1" in error_of(model, photo, "--num-workers", -1)
    for option in ("--json", "--csv"):
        assert str(tmp_path / "no") in error_of(model, photo, option, tmp_path / "no" / "predictions")
        assert str(tmp_path) in error_of(model, photo, option, tmp_path)
    assert "no.txt" in error_of(model, photo, "--class-names", tmp_path / "no.txt")
    assert "MODEL" in error_of()

"""`vitrine predict` from the command line: output, files, errors."""

import csv
import io
import json
import weakref
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_evaluate import SINGLE, fail, run
from tests.evaluation.test_predictor import compute_probabilities, make_classifier
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from tests.photos import draw_images
from vitrine.commands import predict as predict_command
from vitrine.data.open_data import open_data
from vitrine.data.sources import image_files
from vitrine.evaluation import predictor
from vitrine.evaluation.predictor import ImagePrediction
from vitrine.formats.checkpoint import Calibration

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
    targets = ("--json", tmp_path / "predictions.json", "--csv", tmp_path / "predictions.csv", "--long")
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


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_has_a_row_for_each_image(folder: Path, tmp_path: Path) -> None:
    files = sorted((folder / "photos").rglob("*.png"))
    run("predict", folder / "model", *files, "--top", 9, "--csv", tmp_path / "wide.csv")  # of five classes
    for row, file, predictions in zip(read_csv(tmp_path / "wide.csv"), files, predict_by_hand(folder, files), strict=True):
        assert row["image"] == str(file)
        assert [row[f"class_{rank}"] for rank in range(1, 6)] == [name for name, _ in predictions]
        probabilities = [float(row[f"probability_{rank}"]) for rank in range(1, 6)]
        assert probabilities == pytest.approx([probability for _, probability in predictions], rel=SINGLE)
        assert len(row) == 11


def list_words(out: str) -> list[str]:
    return [" ".join(line.split()) for line in out.splitlines()]


@pytest.mark.parametrize("comes_from", ["checkpoint", "option"])
def test_unsure_answers_are_marked(comes_from: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((folder / "photos").rglob("*.png"))
    best = np.array([predictions[0][1] for predictions in predict_by_hand(folder, files)])
    limit = float(np.sort(best)[1:3].mean())
    is_unsure = (best < limit).tolist()
    assert sum(is_unsure) == 2
    model, options = folder / "model", ("--reject-below", limit)
    if comes_from == "checkpoint":
        model, options = tmp_path / "careful", ()
        save_quietly(replace(load_quietly(folder / "model"), calibration=Calibration(reject_below=limit)), model, "vitrine")
    targets = ("--json", tmp_path / "p.json", "--csv", tmp_path / "p.csv", *NO_WORKERS)
    run("predict", model, *files, "--top", 2, *options, *targets)
    lines = list_words(capsys.readouterr().out)
    assert lines[0] == "image 1. 2."
    assert [line.split(".png ")[1].startswith("unsure ") for line in lines[1:]] == is_unsure
    found = json.loads((tmp_path / "p.json").read_text())["found"]
    assert [each["is_unsure"] for each in found] == is_unsure
    rows = read_csv(tmp_path / "p.csv")
    assert list(rows[0]) == ["image", "class_1", "probability_1", "class_2", "probability_2", "is_unsure"]
    assert [row["is_unsure"] == "true" for row in rows] == is_unsure
    run("predict", model, *files, "--top", 2, *options, *targets, "--long")
    rows = read_csv(tmp_path / "p.csv")
    assert list(rows[0]) == ["image", "rank", "class", "probability", "is_unsure"]
    assert [row["is_unsure"] for row in rows] == [str(each).lower() for each in is_unsure for _ in range(2)]
    capsys.readouterr()
    for file, expected in zip(files, is_unsure, strict=True):
        run("predict", model, file, *options)
        lines = list_words(capsys.readouterr().out)
        assert lines[0] == (f"{file} unsure" if expected else str(file))
        assert len(lines) == 6


def test_unsure_answers_can_be_switched_off(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then table and files are those of a model without a limit."""
    careful = replace(load_quietly(folder / "model"), calibration=Calibration(reject_below=0.99))
    save_quietly(careful, tmp_path / "careful", "vitrine")
    outputs = []
    for model, options in ((folder / "model", ()), (tmp_path / "careful", ("--reject-below", 0))):
        targets = ("--json", tmp_path / "p.json", "--csv", tmp_path / "p.csv", *NO_WORKERS)
        run("predict", model, folder / "photos", *options, *targets)
        outputs.append((capsys.readouterr().out, (tmp_path / "p.json").read_text(), (tmp_path / "p.csv").read_text()))
    assert outputs[0] == outputs[1]
    assert "unsure" not in "".join(outputs[0])


def test_several_labels_are_listed_and_marked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((folder / "photos").rglob("*.png"))
    checkpoint = replace(load_quietly(folder / "model"), calibration=Calibration(thresholds=(0.3, 0.5, 0.5, 0.2, 0.4)))
    save_quietly(checkpoint, tmp_path / "several", "vitrine")
    expected = predictor.Predictor(checkpoint, "cpu").predict(files, 2).predictions
    labels = [each.labels or () for each in expected]
    assert len({len(each) for each in labels}) > 1
    targets = ("--json", tmp_path / "p.json", "--csv", tmp_path / "p.csv", *NO_WORKERS)
    run("predict", tmp_path / "several", *files, "--top", 2, *targets)
    lines = list_words(capsys.readouterr().out)
    assert lines[0] == "image labels 1. 2."
    for line, names, each in zip(lines[1:], labels, expected, strict=True):
        top = " ".join(f"{name} {value:.1%}" for name, value in list(zip(each.classes, each.probabilities, strict=True))[:2])
        assert line == f"{each.image} {', '.join(names) or 'none'} {top}"
    found = json.loads((tmp_path / "p.json").read_text())["found"]
    assert [list(each) for each in found] == [["image", "classes", "probabilities", "labels"]] * 5
    assert [tuple(each["labels"]) for each in found] == labels
    assert [tuple(each["classes"]) for each in found] == [each.classes for each in expected]
    rows = read_csv(tmp_path / "p.csv")
    assert list(rows[0]) == ["image", "class_1", "probability_1", "class_2", "probability_2", "labels"]
    assert [row["labels"] for row in rows] == [";".join(names) for names in labels]
    source = open_data(tmp_path / "p.csv")  # the file is a list of images with their labels
    assert [{source.class_names[label] for label in source.labels.as_tuple(index)} for index in range(5)] == [*map(set, labels)]
    run("predict", tmp_path / "several", *files, "--top", 2, *targets, "--long")
    rows = read_csv(tmp_path / "p.csv")
    assert list(rows[0]) == ["image", "rank", "class", "probability", "is_label"]
    assert [row["class"] for row in rows if row["is_label"] == "true"] == [name for names in labels for name in names]
    assert len(rows) == sum(len(each.classes) for each in expected)
    capsys.readouterr()
    run("predict", tmp_path / "several", files[0])
    lines = list_words(capsys.readouterr().out)
    assert [line.removesuffix(" label").rsplit(" ", 1)[0] for line in lines[1:] if line.endswith("label")] == list(labels[0])
    assert len(lines) == 6
    assert "leave it out" in fail(capsys, "predict", tmp_path / "several", files[0], "--reject-below", 0.5)


@pytest.mark.parametrize("separator", ["\n", "\0"])
def test_names_from_standard_input(
    separator: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(folder / "photos" / "größe" / "1.png"), str(folder / "photos" / "0.png")]
    monkeypatch.setattr("sys.stdin", io.StringIO(separator.join([*files, ""])))
    run("predict", folder / "model", "-", "--csv", tmp_path / "named.csv")
    assert [row["image"] for row in read_csv(tmp_path / "named.csv")] == files
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "standard input" in fail(capsys, "predict", folder / "model", "-")


def test_patterns_are_expanded(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((folder / "photos").rglob("1.png"))
    assert len(files) == 2
    run("predict", folder / "model", f"{folder}/photos/**/1.png", "--csv", tmp_path / "matched.csv")
    assert [row["image"] for row in read_csv(tmp_path / "matched.csv")] == [str(file) for file in files]
    assert "matches no file" in fail(capsys, "predict", folder / "model", f"{folder}/*.gif")
    (tmp_path / "[1].png").write_bytes(files[0].read_bytes())  # a file, though it looks like a pattern
    run("predict", folder / "model", tmp_path / "[1].png", "--csv", tmp_path / "odd.csv")
    assert [row["image"] for row in read_csv(tmp_path / "odd.csv")] == [str(tmp_path / "[1].png")]


def test_predictions_are_written_as_they_come(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many images there are, only the predictions of one batch and the rows of one part of the table are kept."""
    alive, counts = weakref.WeakSet[ImagePrediction](), list[int]()

    @dataclass(frozen=True, eq=False)
    class Counted(ImagePrediction):
        def __post_init__(self) -> None:
            alive.add(self)
            counts.append(len(alive))

    monkeypatch.setattr(predictor, "ImagePrediction", Counted)
    monkeypatch.setattr(predict_command, "ROWS_AT_ONCE", 3)
    outputs = ("--csv", tmp_path / "all.csv", "--json", tmp_path / "all.json")
    run("predict", folder / "model", folder / "photos", "--batch-size", 1, "--top", 1, *outputs, *NO_WORKERS)
    assert len(counts) == 5
    assert max(counts) <= 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] == "image" for line in lines] == [True, False, False, False, True, False, False]
    assert len(read_csv(tmp_path / "all.csv")) == len(json.loads((tmp_path / "all.json").read_text())["found"]) == 5


def test_unreadable_file_is_reported_at_the_end(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = tmp_path / "words.png"
    bad.write_text("no image")
    good = folder / "photos" / "2.png"
    files = ("--json", tmp_path / "predictions.json", "--csv", tmp_path / "predictions.csv")
    with pytest.raises(SystemExit) as stop:
        run("predict", folder / "model", bad, good, *files)
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert str(good) in out
    assert str(bad) not in out
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
        assert next(csv.DictReader(written))["class_1"] == names[best]
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
    assert "--reject-below 1.5 must be" in error_of(model, photo, "--reject-below", 1.5)
    assert "batch_size=0" in error_of(model, photo, "--batch-size", 0)
    assert "num_workers=-1" in error_of(model, photo, "--num-workers", -1)
    for option in ("--json", "--csv"):
        assert str(tmp_path / "no") in error_of(model, photo, option, tmp_path / "no" / "predictions")
        assert str(tmp_path) in error_of(model, photo, option, tmp_path)
    assert "no.txt" in error_of(model, photo, "--class-names", tmp_path / "no.txt")
    assert "MODEL" in error_of()

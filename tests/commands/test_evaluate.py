"""`vitrine evaluate` from the command line: metrics against scikit-learn and scipy, files, errors."""

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.stats import binomtest, norm
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    log_loss,
    recall_score,
    top_k_accuracy_score,
)

from tests.data.sources.test_imagenet import make_imagenet
from tests.evaluation.test_multi_label import (
    LABELS,
    THRESHOLDS,
    compute_sigmoids,
    list_targets,
    make_multi_label,
    write_labelled_images,
)
from tests.evaluation.test_predictor import compute_probabilities, make_classifier
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from tests.pages import list_links, read_page
from tests.photos import draw_images
from vitrine.cli import main
from vitrine.evaluation import classification_report
from vitrine.formats.checkpoint import Calibration

NUM_CLASSES, NUM_EACH = 7, 6
NAMES = tuple(f"class {number}" for number in range(NUM_CLASSES))
NO_WORKERS = ("--num-workers", 0)
SINGLE = 1e-4  # relative: the model computes in single precision, in batches


def run(*arguments: object) -> None:
    main(list(map(str, arguments)))


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that fails; return its error, which must be one line on standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(*arguments)
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("vitrine: ")
    assert err.count("\n") == 1
    return err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write `photos` in class folders, the models `first` and `second`, and `headless`."""
    folder = tmp_path_factory.mktemp("evaluate")
    files = [file for number, name in enumerate(NAMES) for file in draw_images(folder / "photos" / name, NUM_EACH, seed=number)]
    for seed, name in enumerate(("first", "second")):
        checkpoint = make_classifier(files, replace(cases.VIT, num_classes=NUM_CLASSES), seed)
        save_quietly(checkpoint, folder / name, "vitrine")
    save_quietly(make_checkpoint(replace(cases.VIT, num_classes=0)), folder / "headless", "vitrine")
    return folder


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip figures, which take longer to draw than everything else."""
    for name in ("draw_confusions", "draw_mistakes"):
        monkeypatch.setattr(classification_report, name, lambda *rest: None)


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def compute_by_hand(model: Path, photos: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return labels (N) and probabilities (N, K) in the order of the file names."""
    files = list_files(photos)
    truth = np.array([NAMES.index(file.parent.name) for file in files])
    return truth, compute_probabilities(load_quietly(model), files)


def assert_wilson(estimate: dict[str, float], num_hits: float, num_images: int) -> None:
    interval = binomtest(int(num_hits), num_images).proportion_ci(method="wilson")
    expected = {"value": num_hits / num_images, "low": interval.low, "high": interval.high}
    assert estimate == pytest.approx(expected, abs=1e-12)


def show(estimate: dict[str, float]) -> str:
    """Format an estimate as in the table."""
    value, low, high = (f"{100 * estimate[name]:.2f}" for name in ("value", "low", "high"))
    return f"{value} % {low} .. {high} %"


def test_metrics_equal_sklearn(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", folder / "first", folder / "photos", "--json", tmp_path / "report.json", *NO_WORKERS, "--batch-size", 4)
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads((tmp_path / "report.json").read_text())
    truth, probabilities = compute_by_hand(folder / "first", folder / "photos")
    assert (report["model"], report["data"], report["split"]) == (str(folder / "first"), str(folder / "photos"), None)
    assert (report["num_images"], report["num_left_out"]) == (42, 0)
    assert_wilson(report["top1"], accuracy_score(truth, probabilities.argmax(axis=1), normalize=False), 42)
    assert_wilson(report["top5"], top_k_accuracy_score(truth, probabilities, k=5, normalize=False), 42)
    assert report["top1"]["value"] < report["top5"]["value"] < 1
    losses = -np.log(probabilities[np.arange(42), truth])
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, probabilities), rel=SINGLE)
    half = norm.ppf(0.975) * losses.std(ddof=1) / np.sqrt(42)
    assert report["loss"]["high"] - report["loss"]["value"] == pytest.approx(half, rel=SINGLE)
    assert 0 <= report["calibration_error"]["low"] <= report["calibration_error"]["value"] <= 1

    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "42 images 95 % interval"
    assert lines[1:3] == [f"top-1 {show(report['top1'])}", f"top-5 {show(report['top5'])}"]
    loss = report["loss"]
    assert lines[3] == f"loss {loss['value']:.4f} {loss['low']:.4f} .. {loss['high']:.4f}"
    assert lines[4] == f"calibration error {show(report['calibration_error'])}"


def test_classes_are_sorted_worst_first(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", folder / "first", folder / "photos", "--json", tmp_path / "report.json", *NO_WORKERS)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    classes = json.loads((tmp_path / "report.json").read_text())["classes"]
    truth, probabilities = compute_by_hand(folder / "first", folder / "photos")
    recalls = recall_score(truth, probabilities.argmax(axis=1), average=None)
    assert [(each["name"], each["num_images"]) for each in classes] == [(name, NUM_EACH) for name in NAMES]
    for each, recall in zip(classes, recalls, strict=True):
        assert_wilson(each["top1"], round(recall * NUM_EACH), NUM_EACH)
    start = lines.index("class images top-1 95 % interval most often mistaken for")
    worst = sorted(classes, key=lambda each: each["top1"]["value"])
    expected = [f"{each['name']} 6 {show(each['top1'])} {each['mistaken_for'] or ''}".strip() for each in worst]
    assert lines[start + 1 :] == expected


def test_uneven_classes_have_a_mean_over_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"class 0": 9, "class 1": 3, "class 2": 2}
    files = [file for name, count in counts.items() for file in draw_images(tmp_path / "photos" / name, count, seed=count)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=3)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", "--json", tmp_path / "report.json", *NO_WORKERS)
    report = json.loads((tmp_path / "report.json").read_text())
    truth, probabilities = compute_by_hand(tmp_path / "model", tmp_path / "photos")
    expected = balanced_accuracy_score(truth, probabilities.argmax(axis=1))
    assert report["macro_top1"]["value"] == pytest.approx(expected)
    assert f"macro top-1 {show(report['macro_top1'])}" in " ".join(capsys.readouterr().out.split())


def test_top5_of_five_classes_is_only_in_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file for number in range(5) for file in draw_images(tmp_path / "photos" / f"class {number}", 2, seed=number)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=5)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", "--json", tmp_path / "report.json", *NO_WORKERS)
    assert "top-5" not in capsys.readouterr().out
    assert json.loads((tmp_path / "report.json").read_text())["top5"]["value"] == 1


def test_ten_worst_of_many_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file for number in range(12) for file in draw_images(tmp_path / "photos" / f"class {number}", 1, seed=number)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=12)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", *NO_WORKERS)
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("worst of 12 classes "))
    assert len(lines) - start - 1 == 10


def test_report_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "here"
    run("evaluate", folder / "first", folder / "photos", "--out", out, *NO_WORKERS)
    assert f"{out}: report.html, classes.csv, confusion.png, mistakes.png." in capsys.readouterr().out
    assert sorted(file.name for file in out.iterdir()) == ["classes.csv", "confusion.png", "mistakes.png", "report.html"]
    page = read_page(out / "report.html")
    links = list_links(page, out / "report.html")
    assert len(links) > 10
    assert all(link.is_file() for link in links)
    truth, probabilities = compute_by_hand(folder / "first", folder / "photos")
    confusions = confusion_matrix(truth, probabilities.argmax(axis=1))
    with (out / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == list(NAMES)
    for label, row in enumerate(rows):
        assert float(row["top1"]) == pytest.approx(confusions[label, label] / NUM_EACH)
        wrong = np.where(np.arange(NUM_CLASSES) == label, 0, confusions[label])
        if wrong.any():
            assert confusions[label, NAMES.index(row["mistaken_for"])] == wrong.max()
        else:
            assert row["mistaken_for"] == ""
    for name in ("confusion.png", "mistakes.png"):
        with Image.open(out / name) as figure:
            assert min(figure.size) > 200
            assert len(set(figure.convert("L").tobytes())) > 10  # not blank


@pytest.mark.usefixtures("no_figures")
def test_two_models_are_compared(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = tmp_path / "report.json", tmp_path / "out"
    models = (folder / "first", "--against", folder / "second")
    run("evaluate", models[0], folder / "photos", *models[1:], "--json", target, "--out", out, *NO_WORKERS)
    text = capsys.readouterr().out
    report = json.loads(target.read_text())
    truth, first = compute_by_hand(folder / "first", folder / "photos")
    _, second = compute_by_hand(folder / "second", folder / "photos")
    predictions = [probabilities.argmax(axis=1) for probabilities in (first, second)]
    hits = [some == truth for some in predictions]
    only = [int((hits[0] & ~hits[1]).sum()), int((hits[1] & ~hits[0]).sum())]
    assert min(only) > 0
    paired = report["paired"]
    assert [paired["only_first"], paired["only_second"]] == only
    assert paired["difference"]["value"] == pytest.approx((only[0] - only[1]) / 42)
    assert paired["p_value"] == pytest.approx(binomtest(only[0], sum(only)).pvalue)
    assert report["against"]["model"] == str(folder / "second")
    assert report["top1"]["value"] == pytest.approx(hits[0].mean())
    assert report["against"]["top1"]["value"] == pytest.approx(hits[1].mean())

    names = [str(file.relative_to(folder / "photos")) for file in list_files(folder / "photos")]
    expected = [
        {
            "image": names[row],
            "label": NAMES[truth[row]],
            "first": NAMES[predictions[0][row]],
            "second": NAMES[predictions[1][row]],
            "right": "first" if hits[0][row] else "second",
        }
        for row in np.flatnonzero(hits[0] != hits[1])
    ]
    assert paired["differences"] == expected
    with (out / "differences.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == expected
    assert f"\n{folder / 'second'}:\n" in text
    assert "on 42 images" in text
    shown = [line for line in text.splitlines() if ".png" in line and "class" in line and not line.startswith("Written")]
    assert [line.split("  ")[0] for line in shown] == [row["image"] for row in expected[:10]]


@pytest.mark.usefixtures("no_figures")
def test_model_does_not_differ_from_itself(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--against", folder / "first", "--out", tmp_path / "out", *NO_WORKERS)
    run("evaluate", folder / "first", folder / "photos", *arguments)
    out = capsys.readouterr().out
    assert "0.00 points" in out
    assert "p = 1 " in out
    assert "Images where they differ" not in out
    assert (tmp_path / "out" / "differences.csv").read_text().splitlines() == ["image,label,first,second,right"]


def evaluate_to_json(*arguments: object, out: Path) -> dict[str, Any]:
    run("evaluate", *arguments, "--json", out, *NO_WORKERS)
    return json.loads(out.read_text())


@pytest.mark.usefixtures("no_figures")
def test_mapping_of_classes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Entries by number, by name, and by names with semicolons; two of seven classes are not mapped."""
    content = {"class 0": [1, 2], "class 1": "class 6", "class 2": "class 0; class 3", "class 3": 5, "class 4": []}
    sets = [{1, 2}, {6}, {0, 3}, {5}, set(), {4, 5}, set()]
    (tmp_path / "map.json").write_text(json.dumps({**content, "class 5": ["class 4", 5], "of no image": 99}))
    report = evaluate_to_json(
        folder / "first", folder / "photos", "--mapping", tmp_path / "map.json", "--out", tmp_path, out=tmp_path / "report.json"
    )
    truth, probabilities = compute_by_hand(folder / "first", folder / "photos")
    counted = [row for row in range(42) if sets[truth[row]]]
    best = np.argsort(-probabilities, axis=1)
    assert (report["num_images"], report["num_left_out"]) == (30, 12)
    assert_wilson(report["top1"], sum(best[row, 0] in sets[truth[row]] for row in counted), 30)
    assert_wilson(report["top5"], sum(bool(sets[truth[row]] & set(best[row, :5])) for row in counted), 30)
    assert (report["loss"], report["classes"]) == (None, [])
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "2 of 7" in err
    assert "class 4, class 6" in err
    assert out.startswith("30 images, 12 without a label left out ")
    assert f"{tmp_path}: report.html, mistakes.png." in out
    page = read_page(tmp_path / "report.html")
    assert page.one(kind="value").text == f"{100 * report['top1']['value']:.1f}%"
    assert "12 without a label" in page.one(kind="count").text
    assert page.find(kind="classes") == page.find(kind="pairs") == []  # which need one label for each image


def test_no_mistakes_write_no_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_text(json.dumps({name: list(range(NUM_CLASSES)) for name in NAMES}))
    arguments = ("--mapping", tmp_path / "map.json", "--out", tmp_path / "out", *NO_WORKERS)
    run("evaluate", folder / "first", folder / "photos", *arguments)
    assert "report.html." in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = read_page(tmp_path / "out" / "report.html")
    assert page.one(kind="value").text == "100.0%"
    assert page.find(kind="gallery") == []


def test_several_labels_as_in_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    for number, file in enumerate(sorted((folder / "val").iterdir())):
        shutil.copy(draw_images(tmp_path / "drawn", 1, seed=number)[0], file)
    real = [[2], [], [1, 0], [2, 1], [0]]
    (folder / "real.json").write_text(json.dumps(real))
    files = sorted((folder / "val").iterdir())
    checkpoint = replace(make_classifier(files, replace(cases.VIT, num_classes=3)), class_names=None)
    save_quietly(checkpoint, tmp_path / "model", "vitrine")
    report = evaluate_to_json(tmp_path / "model", folder, "--split", "real", out=tmp_path / "report.json")
    best = compute_probabilities(checkpoint, files).argmax(axis=1)
    assert (report["split"], report["num_images"], report["num_left_out"]) == ("real", 4, 1)
    assert_wilson(report["top1"], sum(prediction in labels for prediction, labels in zip(best, real, strict=True)), 4)
    assert report["loss"] is None
    assert capsys.readouterr().out.startswith("4 images, 1 without a label left out ")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write photos with several labels each and their list in both forms, and a model with thresholds, `model`."""
    folder = tmp_path_factory.mktemp("several")
    data = write_labelled_images(folder / "photos")
    with data.open(newline="") as file:
        rows = [{"image": row["image"], "labels": row["labels"].split(";")} for row in csv.DictReader(file)]
    (folder / "photos" / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [folder / "photos" / f"{number}.png" for number in range(len(LABELS))]
    save_quietly(make_multi_label(files, temperature=1.5), folder / "model", "vitrine")
    return folder


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_several_labels_by_thresholds(form: str, several: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate_to_json(several / "model", several / "photos" / f"list.{form}", out=tmp_path / "report.json")
    files = [several / "photos" / f"{number}.png" for number in range(len(LABELS))]
    scores, truth = compute_sigmoids(load_quietly(several / "model"), files), list_targets()
    predicted = scores >= THRESHOLDS
    assert (report["num_images"], report["num_labels"]) == (12, truth.sum())
    expected = average_precision_score(truth[:, :4], scores[:, :4], average=None)
    assert [each["average_precision"]["value"] for each in report["classes"]] == pytest.approx(expected.tolist())
    assert report["mean_average_precision"]["value"] == pytest.approx(expected.mean())
    f1 = f1_score(truth, predicted, average=None, labels=range(4), zero_division=0)
    assert [each["f1"] for each in report["classes"]] == pytest.approx(f1.tolist())
    assert report["macro_f1"]["value"] == pytest.approx(f1.mean())
    assert report["micro_f1"]["value"] == pytest.approx(f1_score(truth, predicted, average="micro"))
    assert_wilson(report["exact_match"], (truth == predicted).all(axis=1).sum(), 12)
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == f"12 images, {truth.sum()} labels 95 % interval"
    names = {"mean average precision": "mean_average_precision", "macro F1": "macro_f1", "micro F1": "micro_f1"}
    names["all labels right"] = "exact_match"
    assert lines[1:5] == [f"{title} {show(report[name])}" for title, name in names.items()]
    worst = sorted(report["classes"], key=lambda each: each["average_precision"]["value"])
    assert lines[5:7] == ["", "class images average precision 95 % interval F1"]
    assert lines[7:] == [
        f"{each['name']} {each['num_images']} {show(each['average_precision'])} {100 * each['f1']:.2f} %" for each in worst
    ]


def test_files_of_several_labels(several: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = several / "photos" / "list.csv"
    report = evaluate_to_json(several / "model", data, "--out", tmp_path / "out", out=tmp_path / "report.json")
    assert f"{tmp_path / 'out'}: report.html, classes.csv." in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["classes.csv", "report.html"]
    with (tmp_path / "out" / "classes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = [(each["name"], each["average_precision"]["value"], each["f1"]) for each in report["classes"]]
    assert [(row["class"], float(row["average_precision"]), float(row["f1"])) for row in rows] == expected
    page = read_page(tmp_path / "out" / "report.html")
    assert page.one(kind="value").text == f"{100 * report['mean_average_precision']['value']:.1f}%"


def test_several_labels_of_a_model_for_one_class(several: Path, tmp_path: Path) -> None:
    """A model without thresholds is right if its class is one of the labels, as in ReaL."""
    plain = replace(load_quietly(several / "model"), calibration=Calibration())
    save_quietly(plain, tmp_path / "plain", "vitrine")
    report = evaluate_to_json(tmp_path / "plain", several / "photos" / "list.csv", out=tmp_path / "report.json")
    best = compute_probabilities(plain, [several / "photos" / f"{n}.png" for n in range(len(LABELS))]).argmax(axis=1)
    assert (report["num_images"], report["num_left_out"]) == (10, 2)
    assert_wilson(report["top1"], sum(each in labels for each, labels in zip(best, LABELS, strict=True)), 10)


def test_models_for_several_labels_are_not_compared(folder: Path, several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for models in ((several / "model", folder / "first"), (folder / "first", several / "model")):
        err = fail(capsys, "evaluate", models[0], several / "photos" / "list.csv", "--against", models[1])
        assert "several labels" in err


def test_default_split_is_test_else_val(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count, split in enumerate(("train", "val", "test"), start=2):
        draw_images(tmp_path / "photos" / split / "class 3", count)
    for arguments in ((), ("--split", "test")):
        run("evaluate", folder / "first", tmp_path / "photos", *arguments, *NO_WORKERS)
        assert capsys.readouterr().out.startswith("4 images ")
    run("evaluate", folder / "first", tmp_path / "photos", "--split", "train", *NO_WORKERS)
    assert capsys.readouterr().out.startswith("2 images ")
    shutil.rmtree(tmp_path / "photos" / "test")
    run("evaluate", folder / "first", tmp_path / "photos", *NO_WORKERS)
    out = capsys.readouterr().out
    assert out.startswith("3 images ")
    assert len(out.splitlines()) == 5  # no table of classes for a single class


def test_classes_are_matched_by_name(folder: Path, tmp_path: Path) -> None:
    for name in ("class 5", "class 2"):
        shutil.copytree(folder / "photos" / name, tmp_path / "some" / name)
    report = evaluate_to_json(folder / "first", tmp_path / "some", out=tmp_path / "report.json")
    truth, probabilities = compute_by_hand(folder / "first", tmp_path / "some")
    assert set(truth) == {2, 5}
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, probabilities, labels=range(NUM_CLASSES)), rel=SINGLE)
    assert [each["name"] for each in report["classes"]] == ["class 2", "class 5"]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_fewer_than_five_classes(num_classes: int, tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(num_classes)]
    files = [file for seed, name in enumerate(names) for file in draw_images(tmp_path / "photos" / name, 3, seed)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=num_classes)), tmp_path / "model", "vitrine")
    report = evaluate_to_json(tmp_path / "model", tmp_path / "photos", out=tmp_path / "report.json")
    truth, probabilities = compute_by_hand(tmp_path / "model", tmp_path / "photos")
    assert report["top5"]["value"] == 1
    assert_wilson(report["top1"], accuracy_score(truth, probabilities.argmax(axis=1), normalize=False), len(files))


def test_class_names_in_unicode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["größe", "猫", "a, b; $c$ \\d"]
    files = [file for seed, name in enumerate(names) for file in draw_images(tmp_path / "photos" / name, 2, seed)]
    checkpoint = make_classifier(files, replace(cases.VIT, num_classes=3))
    save_quietly(replace(checkpoint, class_names=tuple(names)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", "--out", tmp_path / "out", *NO_WORKERS)
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in names)
    with (tmp_path / "out" / "classes.csv").open(newline="", encoding="utf-8") as file:
        assert [row["class"] for row in csv.DictReader(file)] == names


def test_unknown_class_names_are_matched_by_order_with_a_warning(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    run("evaluate", folder / "first", folder / "photos", *NO_WORKERS)
    expected = capsys.readouterr().out.splitlines()[:5]
    run("evaluate", folder / "first", folder / "photos", "--class-names", tmp_path / "names.txt", *NO_WORKERS)
    out, err = capsys.readouterr()
    assert out.splitlines()[:5] == expected
    assert err.count("\n") == 2  # they replace the checkpoint's own, and differ from those of the data
    assert "class 0 and a" in err


def test_workers_and_batch_size_change_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in (("--num-workers", 0), ("--num-workers", 2, "--batch-size", 5), ()):
        run("evaluate", folder / "first", folder / "photos", *options)
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1] == texts[2]


def test_bad_image_is_an_error_or_skipped(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "class 0" / "0.png").write_text("no image")
    err = fail(capsys, "evaluate", folder / "first", tmp_path / "photos", *NO_WORKERS)
    assert "class 0/0.png" in err
    arguments = ("--bad-images", "skip", "--against", folder / "second", *NO_WORKERS)
    run("evaluate", folder / "first", tmp_path / "photos", *arguments)
    out, err = capsys.readouterr()
    assert out.startswith("41 images ")
    assert "on 41 images" in out
    assert "class 0/0.png" in err


def test_checkpoint_options_are_used(folder: Path, tmp_path: Path) -> None:
    checkpoint = load_quietly(folder / "first", image_size=(32, 32))
    report = evaluate_to_json(folder / "first", folder / "photos", "--image-size", 32, out=tmp_path / "report.json")
    files = list_files(folder / "photos")
    truth = [NAMES.index(file.parent.name) for file in files]
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, compute_probabilities(checkpoint, files)), rel=SINGLE)


def test_errors_are_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, photos = folder / "first", folder / "photos"
    draw_images(tmp_path / "flat", 2)
    draw_images(tmp_path / "strange" / "walrus", 2)

    def error_of(*arguments: object) -> str:
        return fail(capsys, "evaluate", *arguments, *NO_WORKERS)

    assert str(tmp_path / "none") in error_of(tmp_path / "none", photos)
    assert str(tmp_path / "none") in error_of(first, tmp_path / "none")
    assert "head" in error_of(folder / "headless", photos)
    assert "no labels" in error_of(first, tmp_path / "flat")
    assert "walrus" in error_of(first, tmp_path / "strange")
    assert "test" in error_of(first, photos, "--split", "test")
    assert str(tmp_path / "no") in error_of(first, photos, "--json", tmp_path / "no" / "a.json")
    assert str(tmp_path) in error_of(first, photos, "--json", tmp_path)
    assert "0.png" in error_of(first, photos, "--out", tmp_path / "flat" / "0.png")
    assert "batch_size=0" in error_of(first, photos, "--batch-size", 0)
    assert "hide" in error_of(first, photos, "--bad-images", "hide")
    assert "--image-size big" in error_of(first, photos, "--image-size", "big")
    assert "toaster" in error_of(first, photos, "--device", "toaster")
    assert str(tmp_path / "none") in error_of(first, photos, "--against", tmp_path / "none")
    assert str(tmp_path / "none") in error_of(first, photos, "--mapping", tmp_path / "none")
    assert "DATA" in error_of(first)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "object, not a list"),
        ("{", "JSON"),
        ('{"walrus": 3}', "class 0, class 1, "),
        ('{"class 0": 7}', "class 0 to 7;.* 0 to 6"),
        ('{"class 0": [-1]}', "class 0 to -1"),
        ('{"class 0": true}', "class 0 to True"),
        ('{"class 0": "walrus; class 1"}', "class 0 to 'walrus'"),
        ('{"class 0": [[1]]}', r"class 0 to \[1\]"),
    ],
)
def test_wrong_mapping_is_an_error(
    content: str, message: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "map.json").write_text(content)
    err = fail(capsys, "evaluate", folder / "first", folder / "photos", "--mapping", tmp_path / "map.json", *NO_WORKERS)
    assert re.search(message, err)

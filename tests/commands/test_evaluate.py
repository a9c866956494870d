"""`vitrine evaluate` as a user runs it: its figures against scikit-learn's and scipy's, what it writes, its mistakes."""

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
from sklearn.metrics import accuracy_score, confusion_matrix, log_loss, recall_score, top_k_accuracy_score

from tests.data.sources.test_imagenet import make_imagenet
from tests.evaluation.test_predictor import compute_shares, draw_images, make_classifier
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly
from vitrine.cli import main
from vitrine.evaluation import classification_report

NUM_CLASSES, NUM_EACH = 7, 6
NAMES = tuple(f"class {number}" for number in range(NUM_CLASSES))
HERE = ("--num-workers", 0)
SINGLE = 1e-4  # relative: the model computes in single precision, in batches


def run(*arguments: object) -> None:
    main(list(map(str, arguments)))


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence that a mistake costs, and nothing else."""
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos`, in a folder for each class; `first` and `second`, which answer in their own ways; `headless`."""
    folder = tmp_path_factory.mktemp("place")
    files = [file for number, name in enumerate(NAMES) for file in draw_images(folder / "photos" / name, NUM_EACH, seed=number)]
    for seed, name in enumerate(("first", "second")):
        checkpoint = make_classifier(files, replace(cases.VIT, num_classes=NUM_CLASSES), seed)
        save_quietly(checkpoint, folder / name, "vitrine")
    save_quietly(make_checkpoint(replace(cases.VIT, num_classes=0)), folder / "headless", "vitrine")
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what else is written: pictures take longer to draw than all the rest."""
    for name in ("draw_confusions", "draw_mistakes"):
        monkeypatch.setattr(classification_report, name, lambda *rest: None)


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.png"))


def compute_by_hand(model: Path, photos: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N) and probabilities (N, K), in the order of the files' names."""
    files = list_files(photos)
    truth = np.array([NAMES.index(file.parent.name) for file in files])
    return truth, compute_shares(load_quietly(model), files)


def assert_wilson(estimate: dict[str, float], num_hits: float, num_images: int) -> None:
    interval = binomtest(int(num_hits), num_images).proportion_ci(method="wilson")
    expected = {"value": num_hits / num_images, "low": interval.low, "high": interval.high}
    assert estimate == pytest.approx(expected, abs=1e-12)


def show(estimate: dict[str, float]) -> str:
    """As a line of the table has it."""
    value, low, high = (f"{100 * estimate[name]:.2f}" for name in ("value", "low", "high"))
    return f"{value} % {low} .. {high} %"


def test_figures_are_scikit_learn_s(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", place / "first", place / "photos", "--json", tmp_path / "report.json", *HERE, "--batch-size", 4)
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads((tmp_path / "report.json").read_text())
    truth, shares = compute_by_hand(place / "first", place / "photos")
    assert (report["model"], report["data"], report["split"]) == (str(place / "first"), str(place / "photos"), None)
    assert (report["num_images"], report["num_left_out"]) == (42, 0)
    assert_wilson(report["top1"], accuracy_score(truth, shares.argmax(axis=1), normalize=False), 42)
    assert_wilson(report["top5"], top_k_accuracy_score(truth, shares, k=5, normalize=False), 42)
    assert report["top1"]["value"] < report["top5"]["value"] < 1
    losses = -np.log(shares[np.arange(42), truth])
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, shares), rel=SINGLE)
    half = norm.ppf(0.975) * losses.std(ddof=1) / np.sqrt(42)
    assert report["loss"]["high"] - report["loss"]["value"] == pytest.approx(half, rel=SINGLE)
    assert 0 <= report["calibration_error"]["low"] <= report["calibration_error"]["value"] <= 1

    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "42 images 95 % interval"
    assert lines[1:3] == [f"top-1 {show(report['top1'])}", f"top-5 {show(report['top5'])}"]
    loss = report["loss"]
    assert lines[3] == f"loss {loss['value']:.4f} {loss['low']:.4f} .. {loss['high']:.4f}"
    assert lines[4] == f"calibration error {show(report['calibration_error'])}"


def test_classes_are_listed_the_worst_first(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("evaluate", place / "first", place / "photos", "--json", tmp_path / "report.json", *HERE)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    classes = json.loads((tmp_path / "report.json").read_text())["classes"]
    truth, shares = compute_by_hand(place / "first", place / "photos")
    recalls = recall_score(truth, shares.argmax(axis=1), average=None)
    assert [(each["name"], each["num_images"]) for each in classes] == [(name, NUM_EACH) for name in NAMES]
    for each, recall in zip(classes, recalls, strict=True):
        assert_wilson(each["top1"], round(recall * NUM_EACH), NUM_EACH)
    place_of_table = lines.index("class images top-1 95 % interval most often taken for")
    worst = sorted(classes, key=lambda each: each["top1"]["value"])
    expected = [f"{each['name']} 6 {show(each['top1'])} {each['mistaken_for'] or ''}".strip() for each in worst]
    assert lines[place_of_table + 1 :] == expected


def test_of_many_classes_ten_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file for number in range(12) for file in draw_images(tmp_path / "photos" / f"class {number}", 1, seed=number)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=12)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", *HERE)
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("worst of 12 classes "))
    assert len(lines) - start - 1 == 10


def test_findings_are_written(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "made" / "here"
    run("evaluate", place / "first", place / "photos", "--out", out, *HERE)
    assert f"\nIn {out}: classes.csv, confusion.png, mistakes.png.\n" in capsys.readouterr().out
    assert sorted(file.name for file in out.iterdir()) == ["classes.csv", "confusion.png", "mistakes.png"]
    truth, shares = compute_by_hand(place / "first", place / "photos")
    confusions = confusion_matrix(truth, shares.argmax(axis=1))
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
        with Image.open(out / name) as picture:
            assert min(picture.size) > 200
            assert len(set(picture.convert("L").tobytes())) > 10  # something is drawn


@pytest.mark.usefixtures("undrawn")
def test_two_models_are_compared_on_the_same_images(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = tmp_path / "report.json", tmp_path / "out"
    models = (place / "first", "--against", place / "second")
    run("evaluate", models[0], place / "photos", *models[1:], "--json", target, "--out", out, *HERE)
    text = capsys.readouterr().out
    report = json.loads(target.read_text())
    truth, first = compute_by_hand(place / "first", place / "photos")
    _, second = compute_by_hand(place / "second", place / "photos")
    answers = [shares.argmax(axis=1) for shares in (first, second)]
    hits = [some == truth for some in answers]
    only = [int((hits[0] & ~hits[1]).sum()), int((hits[1] & ~hits[0]).sum())]
    assert min(only) > 0
    paired = report["paired"]
    assert [paired["only_first"], paired["only_second"]] == only
    assert paired["difference"]["value"] == pytest.approx((only[0] - only[1]) / 42)
    assert paired["p_value"] == pytest.approx(binomtest(only[0], sum(only)).pvalue)
    assert report["against"]["model"] == str(place / "second")
    assert report["top1"]["value"] == pytest.approx(hits[0].mean())
    assert report["against"]["top1"]["value"] == pytest.approx(hits[1].mean())

    names = [str(file.relative_to(place / "photos")) for file in list_files(place / "photos")]
    expected = [
        {
            "image": names[row],
            "label": NAMES[truth[row]],
            "first": NAMES[answers[0][row]],
            "second": NAMES[answers[1][row]],
            "right": "first" if hits[0][row] else "second",
        }
        for row in np.flatnonzero(hits[0] != hits[1])
    ]
    assert paired["differences"] == expected
    with (out / "differences.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == expected
    assert f"\n{place / 'second'}:\n" in text
    assert f"on 42 images; {only[0]} only the first has right, {only[1]} only the second; p = " in text
    shown = [line for line in text.splitlines() if ".png" in line and "class" in line and not line.startswith("In ")]
    assert [line.split("  ")[0] for line in shown] == [row["image"] for row in expected[:10]]


@pytest.mark.usefixtures("undrawn")
def test_a_model_does_not_differ_from_itself(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--against", place / "first", "--out", tmp_path / "out", *HERE)
    run("evaluate", place / "first", place / "photos", *arguments)
    out = capsys.readouterr().out
    assert "0.00 points (95 %: 0.00 .. 0.00 points) on 42 images; 0 only the first has right, 0 only the second; p = 1 " in out
    assert "Images where they differ" not in out
    assert (tmp_path / "out" / "differences.csv").read_text().splitlines() == ["image,label,first,second,right"]


def evaluate_to_json(*arguments: object, out: Path) -> dict[str, Any]:
    run("evaluate", *arguments, "--json", out, *HERE)
    return json.loads(out.read_text())


@pytest.mark.usefixtures("undrawn")
def test_a_mapping_says_what_classes_stand_for(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By numbers, by names, by names with semicolons; two of the seven stand for nothing."""
    content = {"class 0": [1, 2], "class 1": "class 6", "class 2": "class 0; class 3", "class 3": 5, "class 4": []}
    sets = [{1, 2}, {6}, {0, 3}, {5}, set(), {4, 5}, set()]
    (tmp_path / "map.json").write_text(json.dumps({**content, "class 5": ["class 4", 5], "of no image": 99}))
    report = evaluate_to_json(
        place / "first", place / "photos", "--mapping", tmp_path / "map.json", "--out", tmp_path, out=tmp_path / "report.json"
    )
    truth, shares = compute_by_hand(place / "first", place / "photos")
    counted = [row for row in range(42) if sets[truth[row]]]
    best = np.argsort(-shares, axis=1)
    assert (report["num_images"], report["num_left_out"]) == (30, 12)
    assert_wilson(report["top1"], sum(best[row, 0] in sets[truth[row]] for row in counted), 30)
    assert_wilson(report["top5"], sum(bool(sets[truth[row]] & set(best[row, :5])) for row in counted), 30)
    assert (report["loss"], report["classes"]) == (None, [])
    out, err = capsys.readouterr()
    assert err == "vitrine: 2 of 7 classes stand for none of the model's and do not count: class 4, class 6.\n"
    assert out.startswith("30 images, 12 without a label left out ")
    assert f"In {tmp_path}: mistakes.png." in out


def test_no_mistake_is_nothing_to_show(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "map.json").write_text(json.dumps({name: list(range(NUM_CLASSES)) for name in NAMES}))
    arguments = ("--mapping", tmp_path / "map.json", "--out", tmp_path / "out", *HERE)
    run("evaluate", place / "first", place / "photos", *arguments)
    assert "nothing, for there is no mistake" in capsys.readouterr().out
    assert list((tmp_path / "out").iterdir()) == []


def test_several_labels_as_real_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_imagenet(tmp_path / "imagenet")
    for number, file in enumerate(sorted((folder / "val").iterdir())):
        shutil.copy(draw_images(tmp_path / "drawn", 1, seed=number)[0], file)
    real = [[2], [], [1, 0], [2, 1], [0]]
    (folder / "real.json").write_text(json.dumps(real))
    files = sorted((folder / "val").iterdir())
    checkpoint = replace(make_classifier(files, replace(cases.VIT, num_classes=3)), class_names=None)
    save_quietly(checkpoint, tmp_path / "model", "vitrine")
    report = evaluate_to_json(tmp_path / "model", folder, "--split", "real", out=tmp_path / "report.json")
    best = compute_shares(checkpoint, files).argmax(axis=1)
    assert (report["split"], report["num_images"], report["num_left_out"]) == ("real", 4, 1)
    assert_wilson(report["top1"], sum(answer in labels for answer, labels in zip(best, real, strict=True)), 4)
    assert report["loss"] is None
    assert capsys.readouterr().out.startswith("4 images, 1 without a label left out ")


def test_without_a_split_the_test_images_are_taken_or_else_val(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for count, split in enumerate(("train", "val", "test"), start=2):
        draw_images(tmp_path / "photos" / split / "class 3", count)
    for arguments in ((), ("--split", "test")):
        run("evaluate", place / "first", tmp_path / "photos", *arguments, *HERE)
        assert capsys.readouterr().out.startswith("4 images ")
    run("evaluate", place / "first", tmp_path / "photos", "--split", "train", *HERE)
    assert capsys.readouterr().out.startswith("2 images ")
    shutil.rmtree(tmp_path / "photos" / "test")
    run("evaluate", place / "first", tmp_path / "photos", *HERE)
    out = capsys.readouterr().out
    assert out.startswith("3 images ")
    assert len(out.splitlines()) == 5  # one class alone is all the images, and no table of its own


def test_some_of_the_classes_are_found_by_name(place: Path, tmp_path: Path) -> None:
    for name in ("class 5", "class 2"):
        shutil.copytree(place / "photos" / name, tmp_path / "some" / name)
    report = evaluate_to_json(place / "first", tmp_path / "some", out=tmp_path / "report.json")
    truth, shares = compute_by_hand(place / "first", tmp_path / "some")
    assert set(truth) == {2, 5}
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, shares, labels=range(NUM_CLASSES)), rel=SINGLE)
    assert [each["name"] for each in report["classes"]] == ["class 2", "class 5"]


@pytest.mark.parametrize("num_classes", [2, 3])
def test_fewer_than_five_classes(num_classes: int, tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(num_classes)]
    files = [file for seed, name in enumerate(names) for file in draw_images(tmp_path / "photos" / name, 3, seed)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=num_classes)), tmp_path / "model", "vitrine")
    report = evaluate_to_json(tmp_path / "model", tmp_path / "photos", out=tmp_path / "report.json")
    truth, shares = compute_by_hand(tmp_path / "model", tmp_path / "photos")
    assert report["top5"]["value"] == 1
    assert_wilson(report["top1"], accuracy_score(truth, shares.argmax(axis=1), normalize=False), len(files))


def test_classes_in_any_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["größe", "猫", "a, b; $c$ \\d"]
    files = [file for seed, name in enumerate(names) for file in draw_images(tmp_path / "photos" / name, 2, seed)]
    checkpoint = make_classifier(files, replace(cases.VIT, num_classes=3))
    save_quietly(replace(checkpoint, class_names=tuple(names)), tmp_path / "model", "vitrine")
    run("evaluate", tmp_path / "model", tmp_path / "photos", "--out", tmp_path / "out", *HERE)
    out = capsys.readouterr().out
    assert all(f"\n{name} " in out for name in names)
    with (tmp_path / "out" / "classes.csv").open(newline="", encoding="utf-8") as file:
        assert [row["class"] for row in csv.DictReader(file)] == names


def test_classes_of_other_names_are_taken_in_order_and_it_is_said(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "names.txt").write_text("\n".join("abcdefg"))
    run("evaluate", place / "first", place / "photos", *HERE)
    expected = capsys.readouterr().out.splitlines()[:5]
    run("evaluate", place / "first", place / "photos", "--class-names", tmp_path / "names.txt", *HERE)
    out, err = capsys.readouterr()
    assert out.splitlines()[:5] == expected
    assert err.count("\n") == 1
    assert "classes of the data are not called as the model's (class 0 and a, ..), and are taken to be in the same order" in err


def test_other_processes_and_sizes_of_batches_change_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in (("--num-workers", 0), ("--num-workers", 2, "--batch-size", 5), ()):
        run("evaluate", place / "first", place / "photos", *options)
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1] == texts[2]


def test_a_bad_image_stops_it_or_is_left_out(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "class 0" / "0.png").write_text("no image")
    err = fail(capsys, "evaluate", place / "first", tmp_path / "photos", *HERE)
    assert "class 0/0.png is not a readable image" in err
    arguments = ("--bad-images", "skip", "--against", place / "second", *HERE)
    run("evaluate", place / "first", tmp_path / "photos", *arguments)
    out, err = capsys.readouterr()
    assert out.startswith("41 images ")
    assert "on 41 images" in out
    assert "Skipped class 0/0.png: cannot be read (1 so far)." in err


def test_a_checkpoint_is_read_with_the_user_s_words(place: Path, tmp_path: Path) -> None:
    checkpoint = load_quietly(place / "first", image_size=(32, 32))
    report = evaluate_to_json(place / "first", place / "photos", "--image-size", 32, out=tmp_path / "report.json")
    files = list_files(place / "photos")
    truth = [NAMES.index(file.parent.name) for file in files]
    assert report["loss"]["value"] == pytest.approx(log_loss(truth, compute_shares(checkpoint, files)), rel=SINGLE)


def test_mistakes_cost_a_sentence(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, photos = place / "first", place / "photos"
    draw_images(tmp_path / "flat", 2)
    draw_images(tmp_path / "strange" / "walrus", 2)

    def wrong(*arguments: object) -> str:
        return fail(capsys, "evaluate", *arguments, *HERE)

    assert "No checkpoint at" in wrong(tmp_path / "none", photos)
    assert "There is no data at" in wrong(first, tmp_path / "none")
    assert "The model has no head, and a classifier was needed" in wrong(place / "headless", photos)
    assert "The images have no labels, and some were needed" in wrong(first, tmp_path / "flat")
    assert "data has 1 classes, the model 7, and these are not among its own: walrus. " in wrong(first, tmp_path / "strange")
    assert "has no splits, and 'test' was asked for" in wrong(first, photos, "--split", "test")
    assert "does not exist. Create it first" in wrong(first, photos, "--json", tmp_path / "no" / "a.json")
    assert "it is a folder" in wrong(first, photos, "--json", tmp_path)
    assert "cannot be made (File exists)" in wrong(first, photos, "--out", tmp_path / "flat" / "0.png")
    assert "batch_size=0 must be at least 1" in wrong(first, photos, "--batch-size", 0)
    assert "invalid choice" in wrong(first, photos, "--bad-images", "hide")
    assert "--image-size big must be" in wrong(first, photos, "--image-size", "big")
    assert "toaster" in wrong(first, photos, "--device", "toaster")
    assert "No checkpoint at" in wrong(first, photos, "--against", tmp_path / "none")
    assert "is no file, and one of JSON was needed" in wrong(first, photos, "--mapping", tmp_path / "none")
    assert "DATA" in wrong(first)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "must be an object of JSON, not a list"),
        ("{", "is not JSON"),
        ('{"walrus": 3}', "has none of the data's classes, which are class 0, class 1, "),
        ('{"class 0": 7}', "has 7 for class 0, and a class of the model was needed: its name, .* or its number, 0 to 6"),
        ('{"class 0": [-1]}', "has -1 for class 0"),
        ('{"class 0": true}', "has True for class 0"),
        ('{"class 0": "walrus; class 1"}', "has 'walrus' for class 0"),
        ('{"class 0": [[1]]}', r"has \[1\] for class 0"),
    ],
)
def test_a_wrong_mapping_costs_a_sentence(
    content: str, message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "map.json").write_text(content)
    err = fail(capsys, "evaluate", place / "first", place / "photos", "--mapping", tmp_path / "map.json", *HERE)
    assert re.search(message, err)

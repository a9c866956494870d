"""`vitrine predict` as a user runs it: what it prints, what it writes, its mistakes."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_evaluate import SINGLE, fail, run
from tests.evaluation.test_predictor import compute_shares, draw_images, make_classifier
from tests.formats import cases
from tests.formats.cases import load_quietly, make_checkpoint, save_quietly

NAMES = tuple(f"class {number}" for number in range(5))
HERE = ("--num-workers", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos`, two of them in a folder of their own; `model`; `headless`."""
    folder = tmp_path_factory.mktemp("place")
    files = [*draw_images(folder / "photos", 3), *draw_images(folder / "photos" / "größe", 2, seed=1)]
    save_quietly(make_classifier(files), folder / "model", "vitrine")
    save_quietly(make_checkpoint(replace(cases.VIT, num_classes=0)), folder / "headless", "vitrine")
    return folder


def answer_by_hand(place: Path, files: list[Path]) -> list[list[tuple[str, float]]]:
    """Of each file, all classes with their probabilities, the most likely first."""
    shares = compute_shares(load_quietly(place / "model"), files)
    return [[(NAMES[label], row[label]) for label in np.argsort(-row)] for row in shares]


def test_one_image_is_shown_downwards(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = place / "photos" / "1.png"
    run("predict", place / "model", file)
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == str(file)
    expected = [f"{name} {share:.1%}" for name, share in answer_by_hand(place, [file])[0]]
    assert [" ".join(line.split()) for line in lines[1:]] == expected
    assert err == ""


def test_several_are_a_table_with_the_best_in_front(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("predict", place / "model", place / "photos", "--top", 2, *HERE)
    files = sorted((place / "photos").rglob("*.png"))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "image 1. 2."
    expected = [
        f"{file} {' '.join(f'{name} {share:.1%}' for name, share in answers[:2])}"
        for file, answers in zip(files, answer_by_hand(place, files), strict=True)
    ]
    assert lines[1:] == expected
    assert len({line.split(".png ")[1][:7] for line in expected}) > 1


def test_answers_are_written_as_json_and_csv(place: Path, tmp_path: Path) -> None:
    files = [place / "photos" / "größe" / "1.png", place / "photos" / "0.png"]
    targets = ("--json", tmp_path / "answers.json", "--csv", tmp_path / "answers.csv")
    run("predict", place / "model", *files, "--top", 3, *targets)
    expected = answer_by_hand(place, files)
    content = json.loads((tmp_path / "answers.json").read_text())
    assert content == {
        "found": [
            {
                "image": str(file),
                "classes": [name for name, _ in answers[:3]],
                "probabilities": pytest.approx([share for _, share in answers[:3]], rel=SINGLE),
            }
            for file, answers in zip(files, expected, strict=True)
        ],
        "unreadable": {},
    }
    with (tmp_path / "answers.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["rank"], row["class"]) for row in rows] == [
        (str(file), str(rank), name)
        for file, answers in zip(files, expected, strict=True)
        for rank, (name, _) in enumerate(answers[:3], start=1)
    ]
    written = [share for found in content["found"] for share in found["probabilities"]]
    assert [float(row["probability"]) for row in rows] == written


def test_a_file_that_cannot_be_read_does_not_stop_the_rest(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "words.png"
    bad.write_text("no image")
    good = place / "photos" / "2.png"
    run("predict", place / "model", bad, good, "--json", tmp_path / "answers.json", "--csv", tmp_path / "answers.csv")
    out, err = capsys.readouterr()
    assert out.startswith(str(good))
    assert f"vitrine: {bad} is not a readable image" in err.splitlines()[-1]
    assert all(line.startswith("vitrine: ") for line in err.splitlines())
    content = json.loads((tmp_path / "answers.json").read_text())
    assert [found["image"] for found in content["found"]] == [str(good)]
    assert list(content["unreadable"]) == [str(bad)]
    assert str(bad) not in (tmp_path / "answers.csv").read_text()


def test_nothing_that_can_be_read_is_a_mistake(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words.png").write_text("no image")
    with pytest.raises(SystemExit) as stop:
        run("predict", place / "model", tmp_path / "words.png", tmp_path / "gone.png", "--json", tmp_path / "answers.json")
    assert stop.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("vitrine: None of the files (2) is an image that can be read: ")
    assert "words.png is not an image" in err
    assert not (tmp_path / "answers.json").exists()


def test_no_more_classes_than_there_are(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("predict", place / "model", place / "photos" / "0.png", "--top", 100)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5


def test_classes_are_called_as_the_user_says_or_by_number(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = place / "photos" / "0.png"
    best = NAMES.index(answer_by_hand(place, [file])[0][0][0])
    names = ["mäuse", "猫", "x, y", '"quoted"', "five"]
    (tmp_path / "names.txt").write_text("\n".join(names), encoding="utf-8")
    arguments = ("--top", 1, "--csv", tmp_path / "answers.csv")
    run("predict", place / "model", file, "--class-names", tmp_path / "names.txt", *arguments)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{names[best]} ")
    with (tmp_path / "answers.csv").open(newline="", encoding="utf-8") as written:
        assert next(csv.DictReader(written))["class"] == names[best]
    save_quietly(replace(load_quietly(place / "model"), class_names=None), tmp_path / "nameless", "vitrine")
    run("predict", tmp_path / "nameless", file, "--top", 1)
    assert capsys.readouterr().out.splitlines()[1].startswith(f"{best} ")


def test_other_processes_and_sizes_of_batches_change_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for options in (HERE, (), ("--num-workers", 2, "--batch-size", 2)):
        run("predict", place / "model", place / "photos", *options)
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1] == texts[2]


def test_a_checkpoint_is_read_with_the_user_s_words(place: Path, tmp_path: Path) -> None:
    file = place / "photos" / "0.png"
    run("predict", place / "model", file, "--image-size", "32x44", "--json", tmp_path / "answers.json")
    shares = compute_shares(load_quietly(place / "model", image_size=(32, 44)), [file])[0]
    [found] = json.loads((tmp_path / "answers.json").read_text())["found"]
    assert found["probabilities"] == pytest.approx(sorted(shares, reverse=True), rel=SINGLE)


def test_mistakes_cost_a_sentence(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, photo = place / "model", place / "photos" / "0.png"
    (tmp_path / "empty").mkdir()

    def wrong(*arguments: object) -> str:
        return fail(capsys, "predict", *arguments)

    assert "no image was given, and files or folders of them were needed" in wrong(model)
    assert "No checkpoint at" in wrong(tmp_path / "none", photo)
    assert "The model has no head, and a classifier was needed" in wrong(place / "headless", photo)
    assert "has no image in it, at whatever depth" in wrong(model, photo, tmp_path / "empty")
    assert "--top 0 must be at least 1" in wrong(model, photo, "--top", 0)
    assert "batch_size=0 must be at least 1" in wrong(model, photo, "--batch-size", 0)
    assert "num_workers=-1 must be at least 0" in wrong(model, photo, "--num-workers", -1)
    for option in ("--json", "--csv"):
        assert "does not exist. Create it first" in wrong(model, photo, option, tmp_path / "no" / "answers")
        assert "it is a folder" in wrong(model, photo, option, tmp_path)
    assert "must be a text file with one name per line" in wrong(model, photo, "--class-names", tmp_path / "no.txt")
    assert "MODEL" in wrong()

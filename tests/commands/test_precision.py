"""`--precision` of every command that computes changes its numbers a little, and `auto` on a CPU not at all."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.commands.test_evaluate import fail, run
from tests.evaluation.test_predictor import make_classifier
from tests.formats import cases
from tests.formats.cases import save_quietly
from tests.photos import draw_images

CLASSES = ("class 0", "class 1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("precision")
    files = [file for seed, name in enumerate(CLASSES) for file in draw_images(folder / "photos" / name, 6, seed=seed)]
    save_quietly(make_classifier(files, replace(cases.VIT, num_classes=2)), folder / "model", "vitrine")
    return folder


def read_numbers(command: str, folder: Path, out: Path, precision: str) -> np.ndarray:
    """Run a command on the CPU and return numbers that it has written."""
    model, photos, common = folder / "model", folder / "photos", ("--precision", precision, "--device", "cpu")
    if command == "evaluate":
        run("evaluate", model, photos, "--json", out, "--num-workers", 0, *common)
        return np.array([json.loads(out.read_text())["loss"]["value"]])
    if command == "predict":
        run("predict", model, photos, "--json", out, "--num-workers", 0, *common)
        return np.array([each["probabilities"] for each in json.loads(out.read_text())["found"]])
    if command == "features":
        run("features", model, photos, "--out", out, "--num-workers", 0, *common)
        return np.load(out)["features"]
    run("inspect", model, photos / CLASSES[0], "--out", out, *common)
    return np.load(out / "arrays.npz")["rollouts"]


@pytest.mark.parametrize("command", ["evaluate", "predict", "features", "inspect"])
def test_precision_changes_what_is_computed(command: str, folder: Path, tmp_path: Path) -> None:
    """Features are cached under a key of their precision, or the second call would read those of the first."""
    precisions = ("float32", "auto", "bfloat16", "float16")
    suffix = {"features": ".npz", "inspect": ""}.get(command, ".json")
    exact, auto, *halves = (read_numbers(command, folder, tmp_path / f"{name}{suffix}", name) for name in precisions)
    assert np.array_equal(exact, auto)
    errors = [np.abs(half - exact).max() / np.abs(exact).max() for half in halves]
    assert all(0 < error < 0.05 for error in errors)
    assert errors[1] < errors[0]  # float16 has 11 bits, bfloat16 8
    assert not np.array_equal(*halves)


def test_an_unknown_precision_is_one_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "float8" in fail(capsys, "evaluate", folder / "model", folder / "photos", "--precision", "float8")

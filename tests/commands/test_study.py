"""`vitrine study`: the list, the cost, and a whole study at scale tiny, which has every model."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pages import read_page
from vitrine.cli import main
from vitrine.studies.data_size_grid import GRIDS


def run(*arguments: str) -> int:
    try:
        main(["study", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_studies_are_listed_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    assert "data-size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [((), "NAME"), (("data-sise",), "data-size"), (("data-size", "--seeds", "1", "1"), "distinct")],
)
def test_mistakes_cost_a_sentence(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(("name", "num_runs"), [("data-size", 48), ("self-supervision", 28)])
def test_the_cost_of_the_paper_s_grid_is_listed(
    name: str, num_runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(name, "--scale", "paper", "--dry-run", "--seeds", "0", "1", "--json", "cost.json") == 0
    out = capsys.readouterr().out
    assert f"{num_runs} runs" in out
    assert "Times are not estimated" in out
    assert len(json.loads((tmp_path / "cost.json").read_text())) == num_runs
    assert [path.name for path in tmp_path.iterdir()] == ["cost.json"]


def test_a_search_tries_settings_on_held_out_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = GRIDS["tiny"]
    models = tuple(model for model in grid.models if model.name == grid.compared[0])
    monkeypatch.setitem(GRIDS, "tiny", replace(grid, models=models, searched=()))
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 255, (90, 14, 14)).astype(np.uint8)
    labels = np.arange(90) % 3
    split = {"x_train": images[:60], "y_train": labels[:60], "x_test": images[60:], "y_test": labels[60:]}
    np.savez("own.npz", allow_pickle=False, **split)
    assert run("data-size", "--search", "--scale", "tiny", "--data", "own.npz", "--json", "found.json") == 0
    out = capsys.readouterr().out
    assert "best" in out
    assert "committed" in out
    (choice,) = json.loads(Path("found.json").read_text())["choices"]
    values = [float(trial["value"]) for trial in choice["trials"]]
    assert models[0].learning_rate in values
    assert len(values) >= 3
    scores = [trial["score"] for trial in choice["trials"]]
    assert float(choice["best"]) == values[scores.index(max(scores))]
    (folder,) = Path("studies").iterdir()
    assert folder.name == "data-size-search-tiny"
    summaries = [json.loads(path.read_text()) for path in folder.glob("runs/*/summary.json")]
    assert {summary["test_top1"] for summary in summaries} == {None}


WORDS = ("study", "data-size", "--scale", "tiny", "--jobs", "2", "--out", "study", "--json", "copy.json")
COMMAND = (sys.executable, "-m", "vitrine", *WORDS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A study as a user runs it, in a process of its own."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, done


def strip(path: Path) -> Any:
    """Return everything that was found, without times."""
    content = json.loads(path.read_text())
    for run in content["runs"]:
        del run["summary"]["device_hours"]
    return content


def test_a_study_from_end_to_end(whole: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Every model of the grid trains on every number of images."""
    tmp_path, done = whole
    num_runs = 2 * len(GRIDS["tiny"].models) * (len(GRIDS["tiny"].sizes) + 1)  # pre-training and fine-tuning
    assert f"{num_runs}/{num_runs}" in done.stderr
    assert "The gap narrows" in done.stdout
    assert "study.html" in done.stdout
    content = json.loads((tmp_path / "study" / "study.json").read_text())
    assert content == json.loads((tmp_path / "copy.json").read_text())
    assert [run["error"] for run in content["runs"]] == [None] * num_runs
    assert {verdict["outcome"] for verdict in content["verdicts"]} == {"undecided"}  # of one seed
    page = read_page(tmp_path / "study" / "study.html", max_bytes=300_000)
    assert len(page.find("span", "verdict")) == 3
    assert "vitrine study data-size --scale tiny" in page.one("footer").text


def test_masked_patches_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pre-training and fine-tuning from each start, in child processes, up to the page."""
    monkeypatch.chdir(tmp_path)
    assert run("self-supervision", "--scale", "tiny", "--out", "study") == 0
    content = json.loads((tmp_path / "study" / "study.json").read_text())
    assert [each["error"] for each in content["runs"]] == [None] * 11
    assert [(verdict["outcome"], verdict["num_seeds"]) for verdict in content["verdicts"]] == [("undecided", 1)] * 2
    recipe = json.loads((tmp_path / "study" / "runs" / "masked-patches-50-seed-0" / "recipe.json").read_text())
    assert Path(recipe["model"]["checkpoint"]).parent.name == "masked-patches-seed-0"
    page = read_page(tmp_path / "study" / "study.html", max_bytes=300_000)
    assert len(page.find("span", "verdict")) == 2
    assert (tmp_path / "study" / "study.png").stat().st_size > 0


def count_finished(folder: Path) -> int:
    return len(list(folder.glob("study/runs/*/summary.json")))


@pytest.mark.parametrize("num_kills", [1, pytest.param(10, marks=pytest.mark.full)])
def test_a_killed_study_is_continued_by_the_same_command(
    num_kills: int, whole: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for _ in range(num_kills):
        before = count_finished(tmp_path)
        process = subprocess.Popen(COMMAND, cwd=tmp_path, stderr=subprocess.DEVNULL)
        while process.poll() is None and count_finished(tmp_path) == before:
            time.sleep(0.01)
        assert process.poll() is None, "the study ended before it could be killed"
        process.kill()
        process.wait()
        assert not (tmp_path / "study" / "study.json").exists()
    done = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert strip(tmp_path / "study" / "study.json") == strip(whole[0] / "study" / "study.json")

"""`vitrine study`: the list, the cost, and a whole study at scale tiny, which has every model."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pages import read_page
from vitrine.cli import main
from vitrine.commands.study import format_estimate
from vitrine.evaluation.intervals import Estimate
from vitrine.studies import scaling_grid
from vitrine.studies.data_size_grid import GRIDS
from vitrine.studies.registry import STUDIES, load_study


def run(*arguments: str) -> int:
    try:
        main(["study", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_studies_are_listed_with_their_times(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in STUDIES)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "NAME"),
        (("--list", "--dry-run"), "--list"),
        (("data-sise",), "data-size"),
        (("data-size", "--seeds", "1", "1"), "distinct"),
    ],
)
def test_mistakes_cost_a_sentence(arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(("name", "num_runs"), [("data-size", 48), ("scaling", 32), ("self-supervision", 28)])
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


def test_differences_have_a_sign_and_ratios_have_none() -> None:
    assert format_estimate(Estimate(1.5, 0.5, 2.5), "points") == ("+1.50 points", "+0.50 .. +2.50")
    assert format_estimate(Estimate(1.5, 0.5, 2.5), "times") == ("1.50 times", "0.50 .. 2.50")
    assert format_estimate(Estimate(1.5, None, None), "times") == ("1.50 times", "")


Done = tuple[Path, subprocess.CompletedProcess[str]]


def build_command(name: str) -> tuple[str, ...]:
    words = ("study", name, "--scale", "tiny", "--jobs", "2", "--out", "study", "--json", "copy.json")
    return sys.executable, "-m", "vitrine", *words


COMMAND = build_command("data-size")


@pytest.fixture(scope="module")
def run_whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Done]:
    """A function that runs a study once as a user does, in a process of its own."""

    @cache
    def run_study(name: str) -> Done:
        folder = tmp_path_factory.mktemp(name)
        done = subprocess.run(build_command(name), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return folder, done

    return run_study


def strip(path: Path) -> Any:
    """Return everything that was found, without times."""
    content = json.loads(path.read_text())
    for run in content["runs"]:
        del run["summary"]["device_hours"]
    return content


@pytest.mark.parametrize(
    ("name", "num_runs"),
    [
        # Every model on every number of images, pre-training and fine-tuning.
        ("data-size", 2 * len(GRIDS["tiny"].models) * (len(GRIDS["tiny"].sizes) + 1)),
        ("scaling", len(scaling_grid.GRIDS["tiny"].models)),
    ],
)
def test_a_study_from_end_to_end(name: str, num_runs: int, run_whole: Callable[[str], Done]) -> None:
    tmp_path, done = run_whole(name)
    claims = load_study(name).claims
    assert f"{num_runs}/{num_runs}" in done.stderr
    assert all(claim.name in done.stdout for claim in claims)
    assert "study.html" in done.stdout
    content = json.loads((tmp_path / "study" / "study.json").read_text())
    assert content == json.loads((tmp_path / "copy.json").read_text())
    assert [run["error"] for run in content["runs"]] == [None] * num_runs
    assert {verdict["outcome"] for verdict in content["verdicts"]} == {"undecided"}  # of one seed
    page = read_page(tmp_path / "study" / "study.html", max_bytes=300_000)
    assert len(page.find("span", "verdict")) == len(claims)
    assert len(page.find("figure", "chart")) == 2
    assert f"vitrine study {name} --scale tiny" in page.one("footer").text


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
    num_kills: int, run_whole: Callable[[str], Done], tmp_path: Path
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
    assert strip(tmp_path / "study" / "study.json") == strip(run_whole("data-size")[0] / "study" / "study.json")

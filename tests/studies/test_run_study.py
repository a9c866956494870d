"""A whole study at scale tiny: resumed, with more seeds, with a failing run, and on own data."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pages import read_page
from tests.studies.test_children import signal_when
from vitrine.studies import data_size, run_study
from vitrine.studies.config import StudyConfig
from vitrine.studies.data_size_grid import GRIDS, Grid
from vitrine.studies.study import StudyResult

CLOCK = ("device_hours",)


@pytest.fixture(autouse=True)
def two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the two models that the claims need, on two numbers of images."""
    tiny = GRIDS["tiny"]
    models = tuple(model for model in tiny.models if model.name in tiny.compared)
    grid: Grid = replace(tiny, models=models, sizes=tiny.sizes[:1])
    monkeypatch.setitem(GRIDS, "tiny", grid)


def strip(result: StudyResult | Path) -> Any:
    """Return everything that was found, without times."""
    content = json.loads((result / "study.json").read_text()) if isinstance(result, Path) else result.to_json()
    for run in content["runs"]:
        run["summary"] = {name: value for name, value in run["summary"].items() if name not in CLOCK}
    return json.loads(json.dumps(content))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The finished study of two seeds, made when it is first needed."""
    return {"out": tmp_path_factory.mktemp("whole") / "new" / "study"}


def run_whole(whole: dict[str, Any]) -> StudyResult:
    if "result" not in whole:
        config = StudyConfig(scale="tiny", seeds=(0, 1), jobs=2, out=whole["out"])
        whole["result"] = run_study.run_study("data-size", config, command="vitrine study data-size")
    return whole["result"]


def test_a_study_leaves_verdicts_figure_and_page(whole: dict[str, Any]) -> None:
    result = run_whole(whole)
    assert result.interrupted_by is None
    assert len(result.finished) == 16  # two models, numbers of images and seeds, each fine-tuned too
    assert [verdict.claim for verdict in result.verdicts] == [*data_size.DATA_SIZE.claims]
    assert strip(result) == strip(result.out)
    readings = [outcome.reading for outcome in result.finished if outcome.run.start is None and outcome.reading is not None]
    assert len(readings) == 8
    assert all(0 <= reading["few_shot"] <= 1 for reading in readings)
    assert (result.out / "study.png").read_bytes()[:4] == b"\x89PNG"
    page = read_page(result.out / "study.html", max_bytes=300_000)
    assert len(page.find("div", "claim")) == 3


def test_finished_runs_are_only_read_in_any_order_of_seeds(whole: dict[str, Any]) -> None:
    result = run_whole(whole)
    runs = result.out / "runs"
    times = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    again = run_study.run_study("data-size", replace(result.config, seeds=(1, 0), jobs=1))
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == times
    assert strip(again) == strip(result)


def test_a_study_that_was_moved_is_only_read(whole: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is given by a relative path too."""
    result = run_whole(whole)
    shutil.copytree(result.out, tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    again = run_study.run_study("data-size", replace(result.config, out=Path("moved")))
    assert again.failures == []
    assert strip(again) == strip(result)


def test_an_interrupted_study_equals_an_uninterrupted_one(whole: dict[str, Any], tmp_path: Path) -> None:
    result = run_whole(whole)
    config = replace(result.config, jobs=1, out=tmp_path / "study")
    thread = signal_when(lambda: len(list(tmp_path.glob("study/runs/*/summary.json"))) > 1, signal.SIGTERM, os.getpid)
    stopped = run_study.run_study("data-size", config)
    thread.join()
    assert stopped.interrupted_by == signal.SIGTERM
    assert stopped.verdicts == []
    assert not (tmp_path / "study" / "study.json").exists()
    run_study.run_study("data-size", config)
    assert strip(tmp_path / "study") == strip(result.out)
    for folder in (result.out / "runs").iterdir():
        if folder.is_dir():
            weights = [path / "model" / "model.safetensors" for path in (folder, tmp_path / "study" / "runs" / folder.name)]
            assert weights[0].read_bytes() == weights[1].read_bytes()


def test_own_data_with_a_failing_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for split, count in (("train", 60), ("test", 30)):
        arrays[f"x_{split}"] = random.integers(0, 255, (count, 14, 14)).astype(np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 3
    np.savez(tmp_path / "own.npz", allow_pickle=False, **arrays)
    grid = GRIDS["tiny"]
    wild = tuple(replace(model, learning_rate=1e36) if model.name == "ResNet" else model for model in grid.models)
    monkeypatch.setitem(GRIDS, "tiny", replace(grid, models=wild))
    config = StudyConfig(scale="tiny", data=str(tmp_path / "own.npz"), jobs=2, out=tmp_path / "study")
    result = run_study.run_study("data-size", config)
    assert {outcome.run.columns["model"] for outcome in result.failures} == {"ResNet"}
    assert {outcome.run.columns["model"] for outcome in result.finished} == {"ViT"}
    assert all("learning_rate" in str(outcome.error) for outcome in result.failures)
    assert all(verdict.estimate is None for verdict in result.verdicts)
    assert (tmp_path / "study" / "study.json").is_file()


def test_torchrun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"torchrun.*jobs"):
        run_study.run_study("data-size", StudyConfig(scale="tiny", out=tmp_path / "study"))
    assert list(tmp_path.iterdir()) == []


def test_without_the_paper_s_data_a_study_is_planned_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = StudyConfig(scale="paper")
    costs = run_study.plan_study("data-size", config)
    assert len(costs) == 24
    assert all(cost.seconds is None for cost in costs)
    with pytest.raises(FileNotFoundError, match=r"JFT-300M.* jft.*data"):
        run_study.run_study("data-size", config)
    assert list(tmp_path.iterdir()) == []


def test_labelled_images_alone_do_not_start_a_study_that_pre_trains_on_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    arrays = {f"x_{split}": random.integers(0, 255, (300, 8, 8, 3)).astype(np.uint8) for split in ("train", "test")}
    arrays |= {f"y_{split}": np.arange(300) % 3 for split in ("train", "test")}
    np.savez("own.npz", allow_pickle=False, **arrays)
    with pytest.raises(FileNotFoundError, match="JFT-300M"):
        run_study.run_study("self-supervision", StudyConfig(scale="paper", data="own.npz"))
    assert [path.name for path in tmp_path.iterdir()] == ["own.npz"]

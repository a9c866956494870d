"""The loop over runs in this process: failures, groups, interruptions, and what is read of finished runs."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.run.test_run import interrupt_at, make_recipe, write_data
from vitrine.core.files import read_json
from vitrine.formats.load import load_checkpoint
from vitrine.models.settings import ModelSettings
from vitrine.run.folder import RunSummary
from vitrine.run.run import Diverged
from vitrine.studies.runner import READING, RunOutcome, StartMissing, StudyRun, is_done, make_run, run_here

pytestmark = pytest.mark.usefixtures("short_runs")

WILD = {"kind": "sgd", "learning_rate": 1e30, "max_grad_norm": None, "warmup_steps": 0}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def build_run(source: str, name: str, **changes: Any) -> StudyRun:
    group = changes.pop("group", None)
    recipe = make_recipe(source, total_steps=4, **changes)
    return StudyRun(label=name, recipe=recipe, folder=f"runs/{name}", title=name, group=group, columns={"name": name})


def read_steps(run: StudyRun, folder: Path, summary: RunSummary) -> dict[str, Any]:
    """Measure something of a finished run, and count how often."""
    count = len(list(folder.glob("count-*")))
    (folder / f"count-{count}").touch()
    return {"label": run.label, "steps": summary.steps}


def test_a_recorded_failure_does_not_stop_the_rest(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "wild", optim=WILD), build_run(source, "tame")]
    reported: list[RunOutcome] = []
    table = run_here(runs, tmp_path, (Diverged,), reported.append)
    assert reported == table.outcomes
    assert [each.run for each in table.outcomes] == runs
    (failure,) = table.failures
    assert failure.run.label == "wild"
    assert isinstance(failure.error, Diverged)
    assert [summary.steps for summary in table.summaries] == [4]
    assert table.interrupted_by is None


def test_other_errors_are_raised(source: str, tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        run_here([build_run(source, "wild", optim=WILD)], tmp_path)


def test_a_failure_ends_its_group(source: str, tmp_path: Path) -> None:
    runs = [
        build_run(source, "wild", optim=WILD, group="one"),
        build_run(source, "left-out", group="one"),
        build_run(source, "tame", group="two"),
        build_run(source, "alone"),
    ]
    table = run_here(runs, tmp_path, (Diverged,))
    assert [each.run.label for each in table.outcomes] == ["wild", "tame", "alone"]
    assert not (tmp_path / "runs" / "left-out").exists()


def build_transfer(source: str, start: str, name: str) -> StudyRun:
    """Build a run that starts from the model of another run of the table."""
    return replace(build_run(source, name, model=ModelSettings(checkpoint=start)), start=start)


def test_a_run_starts_from_the_model_of_another(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "first"), build_transfer(source, "runs/first", "second")]
    table = run_here(runs, tmp_path)
    assert [each.is_finished for each in table.outcomes] == [True, True]
    kept = read_json(tmp_path / "runs" / "second" / "recipe.json")
    assert kept["model"]["checkpoint"] == str(tmp_path / "runs" / "first" / "model")
    first, second = (load_checkpoint(tmp_path / "runs" / name / "model") for name in ("first", "second"))
    assert second.provenance["source"] == str(tmp_path / "runs" / "first" / "model")
    assert first.model.config == second.model.config


def test_a_run_whose_start_failed_is_a_failure(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "wild", optim=WILD), build_transfer(source, "runs/wild", "next")]
    table = run_here(runs, tmp_path, (Diverged,))
    assert isinstance(table.failures[1].error, StartMissing)
    assert not (tmp_path / "runs" / "next").exists()


def test_an_interruption_ends_the_table(source: str, tmp_path: Path) -> None:
    runs = [build_run(source, "first"), build_run(source, "second")]
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        table = run_here(runs, tmp_path)
    assert table.interrupted_by == signal.SIGTERM
    assert [(each.run.label, each.is_finished) for each in table.outcomes] == [("first", False)]
    resumed = run_here(runs, tmp_path)
    assert [each.is_finished for each in resumed.outcomes] == [True, True]


def test_a_finished_run_is_measured_once(source: str, tmp_path: Path) -> None:
    run = build_run(source, "run")
    assert not is_done(run, tmp_path)
    outcome = make_run(run, tmp_path, read_steps)
    assert outcome.reading == {"label": "run", "steps": 4}
    assert read_json(tmp_path / "runs" / "run" / READING) == outcome.reading
    assert is_done(run, tmp_path)
    assert make_run(run, tmp_path, read_steps) == outcome
    assert [path.name for path in (tmp_path / "runs" / "run").glob("count-*")] == ["count-0"]


def test_an_unfinished_run_is_not_measured(source: str, tmp_path: Path) -> None:
    run = build_run(source, "run")
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        outcome = make_run(run, tmp_path, read_steps)
    assert (outcome.reading, outcome.is_finished, outcome.interrupted_by) == (None, False, signal.SIGTERM)
    assert not (tmp_path / "runs" / "run" / READING).exists()

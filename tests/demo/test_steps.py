"""Short runs of the demo on a folder of images and a tiny checkpoint: their results, and that they are not repeated."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.demo.stage import make_checkpoint, make_images
from vitrine.cli import main
from vitrine.demo import steps
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, StepResult, plan_demo
from vitrine.demo.steps import Interrupted, order_by_turns, run_demo, run_steps, save_test_images
from vitrine.evaluation.intervals import wilson_interval
from vitrine.formats.load import load_checkpoint
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Plan a demo on data without splits, so that a part is held out."""
    folder = tmp_path_factory.mktemp("demo")
    make_images(folder / "images", splits=("",))
    make_checkpoint(folder / "tiny")
    config = DemoConfig(
        out=folder / "out",
        data=str(folder / "images"),
        model=str(folder / "tiny"),
        steps=3,
        device="cpu",
        num_drawn=2,
        num_measured=3,
    )
    return plan_demo(config)


@pytest.fixture(scope="module")
def results(plan: Plan, short_runs: None) -> dict[str, StepResult]:
    return {result.key: result for result in run_steps(plan)[0]}


def test_every_step_has_a_result(plan: Plan, results: dict[str, StepResult]) -> None:
    assert list(results) == [step.key for step in plan.steps]
    assert all(results[step.key].command == step.command for step in plan.steps)
    assert all(result.seconds > 0 for result in results.values())


@pytest.mark.parametrize("key", ["transfer", "scratch", "resnet", "hybrid"])
def test_results_of_a_run_are_those_of_its_summary(key: str, plan: Plan, results: dict[str, StepResult]) -> None:
    summary, result = RunFolder(plan.config.out / key).read_summary(), results[key]
    assert summary.best is not None
    assert result.accuracy == wilson_interval(summary.best, 5)
    assert (result.num_test_images, result.num_parameters) == (5, summary.num_parameters)
    assert (result.num_images, result.exaflops) == (3 * 32, summary.exaflops)
    assert result.macs == compute_cost(load_checkpoint(plan.config.out / key / "model").model.config).macs


def test_few_shot_equals_its_command(
    plan: Plan, results: dict[str, StepResult], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = results["few-shot"].command.split()
    main([*words[1:], "--json", str(tmp_path / "few-shot.json")])
    (row,) = json.loads((tmp_path / "few-shot.json").read_text())["results"]
    assert results["few-shot"].accuracy == wilson_interval(row["mean"], row["num_test_images"])


def test_inspection_writes_figures(plan: Plan, results: dict[str, StepResult]) -> None:
    out = plan.config.out
    assert results["inspect"].accuracy is None
    assert len(list((out / "images").iterdir())) == 3
    for name in ("rollout.png", "positions-0.png", "distances.png", "index.html"):
        assert (out / "inspect" / name).is_file()


def test_finished_steps_are_only_read(
    plan: Plan, results: dict[str, StepResult], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "Predictor", None)
    monkeypatch.setattr(steps, "run_inspection", lambda plan, step: (results["inspect"], None))  # which is always repeated
    assert {result.key: result for result in run_steps(plan)[0]} == results
    lines = capsys.readouterr().err.splitlines()
    assert next(line for line in lines if line[0].isdigit()) == f"1/6  {plan.steps[0].title}"
    assert not any(line.startswith("step ") for line in lines)


def test_interrupted_run_ends_the_demo(plan: Plan, results: dict[str, StepResult], monkeypatch: pytest.MonkeyPatch) -> None:
    summary = replace(RunFolder(plan.config.out / "transfer").read_summary(), steps=2, is_finished=False, interrupted_by=2)
    monkeypatch.setattr(steps, "run_recipe", lambda recipe, out, title: summary)
    with pytest.raises(Interrupted, match="2 of 3") as error:
        run_steps(plan)
    assert error.value.summary is summary
    result = run_demo(plan.config)
    assert (result.interrupted_by, result.report, result.steps) == (summary, None, [])


def test_saved_images_take_turns_by_class(plan: Plan, tmp_path: Path) -> None:
    assert order_by_turns(np.array([1, 1, 0, 2, 0])).tolist() == [2, 0, 3, 4, 1]
    save_test_images(plan.test, tmp_path / "images", 2)
    assert [path.name for path in sorted((tmp_path / "images").iterdir())] == ["000.png", "001.png"]
    first = int(order_by_turns(plan.test.labels.values)[0])
    with Image.open(tmp_path / "images" / "000.png") as image:
        assert np.array_equal(np.asarray(image), np.asarray(plan.test.read(first)[0].to_pil()))

"""The story itself: short runs on a folder and a tiny checkpoint, what they come to, and that they are not made twice."""

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
from vitrine.demo.plan import Plan, StepResult, plan_story
from vitrine.demo.steps import Interrupted, keep_images, order_by_turns, run_demo
from vitrine.evaluation.intervals import wilson_interval
from vitrine.formats.load import load_checkpoint
from vitrine.models.cost import compute_cost
from vitrine.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """On a folder that is not divided, so that a part is held out."""
    folder = tmp_path_factory.mktemp("story")
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
    return plan_story(config)


@pytest.fixture(scope="module")
def results(plan: Plan, short_runs: None) -> dict[str, StepResult]:
    return {result.key: result for result in run_demo(plan)}


def test_every_step_has_its_result(plan: Plan, results: dict[str, StepResult]) -> None:
    assert list(results) == [step.key for step in plan.steps]
    assert all(results[step.key].command == step.command for step in plan.steps)
    assert all(result.seconds > 0 for result in results.values())


@pytest.mark.parametrize("key", ["transfer", "scratch", "resnet", "hybrid"])
def test_a_run_s_figures_are_those_of_its_folder(key: str, plan: Plan, results: dict[str, StepResult]) -> None:
    summary, result = RunFolder(plan.config.out / key).read_summary(), results[key]
    assert summary.best is not None
    assert result.accuracy == wilson_interval(summary.best, 5)
    assert (result.num_test_images, result.num_parameters) == (5, summary.num_parameters)
    assert (result.num_images, result.exaflops) == (3 * 32, summary.exaflops)
    assert result.macs == compute_cost(load_checkpoint(plan.config.out / key / "model").model.config).macs


def test_few_shot_is_what_its_command_gives(
    plan: Plan, results: dict[str, StepResult], cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the same images, found in the same way."""
    words = results["few-shot"].command.split()
    main([*words[1:], "--json", str(tmp_path / "found.json")])
    (found,) = json.loads((tmp_path / "found.json").read_text())["results"]
    assert results["few-shot"].accuracy == wilson_interval(found["mean"], found["num_test_images"])


def test_the_inspection_has_its_figures(plan: Plan, results: dict[str, StepResult]) -> None:
    out = plan.config.out
    assert results["inspect"].accuracy is None
    assert len(list((out / "images").iterdir())) == 3
    for name in ("rollout.png", "positions-0.png", "index.html"):
        assert (out / "inspect" / name).is_file()
    assert (out / "distances.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_trained_or_measured_twice(
    plan: Plan, results: dict[str, StepResult], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "Predictor", None)
    again = {result.key: result for result in run_demo(plan)}
    assert {key: again[key] for key in again if key != "inspect"} == {key: results[key] for key in results if key != "inspect"}
    said = capsys.readouterr().err.splitlines()
    assert next(line for line in said if line[0].isdigit()) == f"1/6  {plan.steps[0].title}"
    assert not any(line.startswith("step ") for line in said)


def test_an_interrupted_run_ends_the_story(plan: Plan, results: dict[str, StepResult], monkeypatch: pytest.MonkeyPatch) -> None:
    summary = replace(RunFolder(plan.config.out / "transfer").read_summary(), steps=2, is_finished=False, interrupted_by=2)
    monkeypatch.setattr(steps, "run_recipe", lambda recipe, out, title: summary)
    with pytest.raises(Interrupted, match="step 2 of 3") as error:
        run_demo(plan)
    assert error.value.summary is summary


def test_images_are_kept_by_turns(plan: Plan, tmp_path: Path) -> None:
    assert order_by_turns(np.array([1, 1, 0, 2, 0])).tolist() == [2, 0, 3, 4, 1]
    keep_images(plan.test, tmp_path / "kept", 2)
    assert [path.name for path in sorted((tmp_path / "kept").iterdir())] == ["000.png", "001.png"]
    first = int(order_by_turns(plan.test.labels.values)[0])
    with Image.open(tmp_path / "kept" / "000.png") as kept:
        assert np.array_equal(np.asarray(kept), np.asarray(plan.test.read(first)[0].to_pil()))

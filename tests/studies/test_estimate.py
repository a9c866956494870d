"""Cost of a study: compute as in table 6 of the paper, time from the speed of some steps."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.run.test_run import make_recipe, write_data
from vitrine.models.cost import compute_cost
from vitrine.run.run import run_recipe
from vitrine.studies import estimate
from vitrine.studies.data_size import build
from vitrine.studies.estimate import START_S, estimate_costs, estimate_run, read_speed, shorten
from vitrine.studies.runner import StudyRun
from vitrine.studies.study import StudyPlan
from vitrine.training.metrics_log import read_records


def test_compute_of_the_paper_is_that_of_table_6() -> None:
    """7 epochs of JFT-300M: 55 exaFLOPs for ViT-B/32, 224 for ViT-B/16, 196 for ViT-L/32, 783 for ViT-L/16, 50 for R50x1."""
    costs = estimate_costs(build("paper", None, ()), jobs=1, is_measured=False)
    assert all(cost.seconds is None for cost in costs)
    by_model = {cost.run.columns["model"]: cost.exaflops for cost in costs}
    assert by_model["ViT-B/32"] == pytest.approx(55, rel=0.03)
    assert by_model["ViT-L/32"] == pytest.approx(196, rel=0.03)
    assert by_model["ViT-L/16"] == pytest.approx(783, rel=0.03)
    assert by_model["R50x1"] == pytest.approx(50, rel=0.05)
    assert len({round(cost.exaflops, 6) for cost in costs if cost.run.columns["model"] == "ViT-B/32"}) == 1


def test_time_is_that_of_steps_and_evaluations() -> None:
    recipe = replace(make_recipe("data"), total_steps=100)
    run = StudyRun(label="ViT", recipe=recipe, folder="vit", title="ViT", columns={"num_evaluated": 3000})
    cost = compute_cost(recipe.model.resolve(4))
    result = estimate_run(run, cost, images_per_s=200.0)
    assert result.seconds == pytest.approx(START_S + (100 * 16 + 1000) / 200)
    assert result.exaflops == pytest.approx(6 * cost.macs * 1600 / 1e18)


@pytest.mark.usefixtures("short_runs")
def test_speed_is_read_from_ten_steps_after_the_first(tmp_path: Path) -> None:
    recipe = shorten(make_recipe(write_data(tmp_path / "shades.npz")))
    run = StudyRun(label="ViT", recipe=recipe, folder="vit", title="ViT")
    summary = run_recipe(recipe, tmp_path / "vit")
    assert (summary.steps, summary.best, summary.test_top1) == (15, None, None)
    speeds = {record["step"]: record["images_per_s"] for record in read_records(tmp_path / "vit" / "metrics.jsonl")}
    assert sorted(speeds) == [5, 10, 15]
    expected = 2 / (1 / speeds[10] + 1 / speeds[15])
    assert read_speed(run, tmp_path / "vit", summary)["images_per_s"] == pytest.approx(expected)


def test_models_that_take_too_long_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build("tiny", None, ())
    monkeypatch.setattr(estimate, "MAX_MACS", 0)
    monkeypatch.setattr(estimate, "find_default_device", lambda: "cpu")
    assert all(cost.seconds is None for cost in estimate_costs(plan, jobs=1, is_measured=True))


def test_times_are_measured_once_for_each_model() -> None:
    plan = build("tiny", None, ())
    two = StudyPlan(**{**vars(plan), "runs": tuple(run for run in plan.runs if run.columns["model"] in ("ViT", "ResNet"))})
    costs = estimate_costs(two, jobs=2, is_measured=True)
    assert len(costs) == len(two.runs)
    assert all(cost.seconds is not None and math.isfinite(cost.seconds) and cost.seconds > START_S for cost in costs)
    assert len({(cost.run.columns["model"], cost.seconds) for cost in costs}) == 2

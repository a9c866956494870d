"""Cost of a study: compute as in table 6 of the paper, time from the speed of some steps."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.run.test_run import make_recipe, write_data
from vitrine.models.cost import compute_cost
from vitrine.models.settings import ModelSettings
from vitrine.run.run import run_recipe
from vitrine.studies import estimate
from vitrine.studies.data_size import build
from vitrine.studies.estimate import START_S, estimate_costs, estimate_run, find_networks, read_speed, shorten
from vitrine.studies.runner import StudyRun
from vitrine.training.metrics_log import read_records


def test_compute_of_the_paper_is_that_of_table_6() -> None:
    """7 epochs of JFT-300M: 55 exaFLOPs for ViT-B/32, 224 for ViT-B/16, 196 for ViT-L/32, 783 for ViT-L/16, 50 for R50x1."""
    plan = build("paper", None, ())
    costs = estimate_costs(plan.runs, plan.num_classes, jobs=1, is_measured=False)
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
    result = estimate_run(run, cost, macs_per_s=200.0 * cost.macs)
    assert result.seconds == pytest.approx(START_S + (100 * 16 + 1000) / 200)
    assert result.exaflops == pytest.approx(6 * cost.macs * 1600 / 1e18)


@pytest.mark.usefixtures("short_runs")
def test_speed_is_read_from_ten_steps_after_the_first(tmp_path: Path) -> None:
    recipe = shorten(make_recipe(write_data(tmp_path / "shades.npz")))
    run = StudyRun(label="ViT", recipe=recipe, folder="vit", title="ViT", columns={"macs": 1000})
    summary = run_recipe(recipe, tmp_path / "vit")
    assert (summary.steps, summary.best, summary.test_top1) == (15, None, None)
    speeds = {record["step"]: record["images_per_s"] for record in read_records(tmp_path / "vit" / "metrics.jsonl")}
    assert sorted(speeds) == [5, 10, 15]
    expected = 1000 * 2 / (1 / speeds[10] + 1 / speeds[15])
    assert read_speed(run, tmp_path / "vit", summary)["macs_per_s"] == pytest.approx(expected)


def test_models_that_take_too_long_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build("tiny", None, ())
    monkeypatch.setattr(estimate, "MAX_MACS", 0)
    monkeypatch.setattr(estimate, "find_default_device", lambda: "cpu")
    costs = estimate_costs(plan.runs, plan.num_classes, jobs=1, is_measured=True)
    assert all(cost.seconds is None for cost in costs)


def test_times_are_measured_once_for_each_model() -> None:
    plan = build("tiny", None, ())
    runs = [run for run in plan.runs if run.columns["model"] in ("ViT", "ResNet")]
    costs = estimate_costs(runs, plan.num_classes, jobs=2, is_measured=True)
    assert len(costs) == len(runs)
    assert all(cost.seconds is not None and math.isfinite(cost.seconds) and cost.seconds > START_S for cost in costs)
    pretraining = [cost for cost in costs if cost.run.start is None]
    assert len({(cost.run.columns["model"], cost.seconds) for cost in pretraining}) == 2


def test_a_run_that_starts_from_another_has_its_network() -> None:
    """At its own image size, if it has one."""
    first = StudyRun(label="a", recipe=make_recipe("data"), folder="a", title="a")
    settings = ModelSettings(checkpoint="a")
    same = replace(first, folder="b", recipe=replace(first.recipe, model=settings), start="a")
    larger = replace(same, folder="c", recipe=replace(first.recipe, model=replace(settings, image_size=32)))
    networks = find_networks([first, same, larger])
    assert networks["a"] == networks["b"] == first.recipe.model
    assert networks["c"] == replace(first.recipe.model, image_size=32)

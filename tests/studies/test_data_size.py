"""Verdicts of data-size on readings that are made up, its table and figure, and what is read of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.run.test_run import make_recipe, measure, write_data
from vitrine.core.figures import RESNET, VIT
from vitrine.run.folder import RunSummary
from vitrine.run.run import run_recipe
from vitrine.studies.claims import Verdict, compute_difference, student_interval
from vitrine.studies.data_size import (
    CATCHES_UP,
    NARROWS,
    REVERSES,
    build,
    describe_figure,
    format_run,
    judge_claims,
    pack_hits,
    read,
    unpack_hits,
)
from vitrine.studies.data_size_grid import GRIDS
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.study import StudyPlan

NUM_TEST = 2000
SEEDS = (0, 1, 2)
SUMMARY = RunSummary(
    model="ViT",
    num_parameters=1,
    num_train_images=1,
    seed=0,
    learning_rate=0.1,
    total_steps=1,
    steps=1,
    is_finished=True,
    stopped_early=False,
    interrupted_by=None,
    watched_on=None,
    best=None,
    best_step=None,
    test_top1=None,
    test_top5=None,
    test_loss=None,
    num_test_images=None,
    images=1,
    exaflops=0.0,
    device="cpu",
    device_hours=0.5,
)


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return build("tiny", None, SEEDS)


def draw_reading(accuracy: float, key: int) -> dict[str, Any]:
    """Return a reading of this accuracy, with the mistakes on random images."""
    hits = np.zeros(NUM_TEST, bool)
    hits[np.random.default_rng(key).permutation(NUM_TEST)[: round(accuracy * NUM_TEST)]] = True
    return {"accuracy": float(hits.mean()), "num_images": NUM_TEST, "hits": pack_hits(hits)}


def make_outcomes(plan: StudyPlan, accuracies: dict[str, tuple[float, ...]], jitter: float = 0.002) -> list[RunOutcome]:
    """Return finished runs with the given accuracies of models by number of images, which differ a little between seeds."""
    sizes = sorted({run.columns["num_images"] for run in plan.runs})
    outcomes = []
    for key, run in enumerate(plan.runs):
        model, seed = run.columns["model"], run.columns["seed"]
        accuracy = accuracies.get(model, (0.5, 0.5, 0.5))[sizes.index(run.columns["num_images"])]
        shift = jitter * (seed - 1) * (1 if model == "ViT" else -1)
        outcomes.append(RunOutcome(run, SUMMARY, draw_reading(accuracy + shift, key)))
    return outcomes


def judge_by_name(plan: StudyPlan, outcomes: list[RunOutcome]) -> dict[str, Verdict]:
    return {verdict.claim.name: verdict for verdict in judge_claims(plan, outcomes)}


def list_outcomes(verdicts: dict[str, Verdict]) -> list[str]:
    return [verdicts[claim.name].outcome for claim in (NARROWS, CATCHES_UP, REVERSES)]


@pytest.mark.parametrize(
    ("vit", "resnet", "expected"),
    [
        ((0.40, 0.60, 0.90), (0.70, 0.75, 0.80), ["holds", "holds", "holds"]),
        ((0.40, 0.60, 0.75), (0.70, 0.75, 0.85), ["holds", "fails", "fails"]),
        ((0.70, 0.70, 0.70), (0.70, 0.80, 0.90), ["fails", "fails", "fails"]),
        ((0.40, 0.60, 0.801), (0.70, 0.75, 0.80), ["holds", "undecided", "undecided"]),
    ],
)
def test_verdicts_follow_from_the_gap(
    vit: tuple[float, ...], resnet: tuple[float, ...], expected: list[str], plan: StudyPlan
) -> None:
    outcomes = make_outcomes(plan, {"ViT": vit, "ResNet": resnet})
    assert list_outcomes(judge_by_name(plan, outcomes)) == expected


def test_points_alone_do_not_decide_near_a_ceiling(plan: StudyPlan) -> None:
    """The gap narrows in points, from 20 to 3.8, but grows in logits: the ViT makes twice, then four times as many mistakes."""
    outcomes = make_outcomes(plan, {"ViT": (0.60, 0.7, 0.95), "ResNet": (0.80, 0.9, 0.988)}, jitter=0.0005)
    verdict = judge_by_name(plan, outcomes)[NARROWS.name]
    assert verdict.estimate is not None
    assert verdict.estimate.low is not None
    assert verdict.estimate.low > 0
    logits, images = verdict.checks
    assert (logits.unit, logits.outcome, images.outcome) == ("logits", "fails", "holds")
    assert verdict.outcome == "undecided"


def test_estimates_are_those_of_the_differences_of_each_seed(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.85), "ResNet": (0.70, 0.75, 0.80)})
    found = {
        (each.run.columns["model"], each.run.columns["num_images"], each.run.columns["seed"]): each.reading["accuracy"]
        for each in outcomes
        if each.reading is not None
    }
    first, *_, last = sorted({size for _, size, _ in found})
    gaps = {
        (size, seed): compute_difference(found["ViT", size, seed], found["ResNet", size, seed], NUM_TEST, "points")
        for size in (first, last)
        for seed in SEEDS
    }
    verdicts = judge_by_name(plan, outcomes)
    assert verdicts[REVERSES.name].estimate == student_interval([gaps[last, seed] for seed in SEEDS])
    assert verdicts[NARROWS.name].estimate == student_interval([gaps[last, seed] - gaps[first, seed] for seed in SEEDS])


def test_the_first_gap_is_that_off_the_floor(plan: StudyPlan) -> None:
    """Of four classes, guessing is right for a quarter: below 30 % nothing was learnt yet, and there is no gap."""
    outcomes = make_outcomes(plan, {"ViT": (0.26, 0.40, 0.80), "ResNet": (0.26, 0.70, 0.80)})
    estimate = judge_by_name(plan, outcomes)[NARROWS.name].estimate
    assert estimate is not None
    assert estimate.value == pytest.approx(30, abs=0.1)
    outcomes = make_outcomes(plan, {"ViT": (0.26, 0.26, 0.80), "ResNet": (0.26, 0.70, 0.80)})
    verdict = judge_by_name(plan, outcomes)[NARROWS.name]
    assert (verdict.outcome, verdict.estimate) == ("undecided", None)
    assert "5 points" in verdict.reason


def test_one_seed_decides_nothing(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.99), "ResNet": (0.70, 0.75, 0.80)})
    one = [outcome for outcome in outcomes if outcome.run.columns["seed"] == 0]
    assert list_outcomes(judge_by_name(plan, one)) == ["undecided"] * 3


def test_seeds_with_failed_runs_are_left_out(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)})
    failed = [
        RunOutcome(each.run, None, error=ValueError("Diverged."))
        if (each.run.columns["model"], each.run.columns["seed"]) == ("ResNet", 1)
        else each
        for each in outcomes
    ]
    assert {verdict.num_seeds for verdict in judge_claims(plan, failed)} == {2}
    none = [RunOutcome(each.run, None, error=ValueError("Diverged.")) for each in outcomes]
    assert {verdict.reason for verdict in judge_claims(plan, none)} == {"No seed has all runs of ViT and ResNet."}


def test_every_run_of_the_plan_has_a_folder_of_its_own(plan: StudyPlan) -> None:
    grid = GRIDS["tiny"]
    assert len(plan.runs) == len(SEEDS) * len(grid.models) * (len(grid.sizes) + 1)
    assert len({run.folder for run in plan.runs}) == len(plan.runs)
    assert all("/" not in run.folder and " " not in run.folder for run in plan.runs)


def test_right_answers_survive_as_text() -> None:
    hits = np.random.default_rng(0).random(1003) < 0.3
    assert (unpack_hits({"hits": pack_hits(hits), "num_images": 1003}) == hits).all()


@pytest.mark.usefixtures("short_runs")
def test_a_reading_is_the_accuracy_that_the_run_has_measured(tmp_path: Path) -> None:
    source = write_data(tmp_path / "shades.npz")
    recipe = make_recipe(source, total_steps=4)
    run = StudyRun(label="ViT", recipe=recipe, folder="vit", title="ViT")
    summary = run_recipe(recipe, tmp_path / "vit")
    reading = read(run, tmp_path / "vit", summary)
    top1, _, _ = measure(tmp_path / "vit" / "model", source, "test")
    assert reading["accuracy"] == pytest.approx(summary.test_top1) == pytest.approx(top1)
    assert unpack_hits(reading).mean() == reading["accuracy"]
    assert "few_shot" not in reading  # of glyphs only: their real set is digits


def test_the_table_has_a_row_for_a_run(plan: StudyPlan) -> None:
    outcome = make_outcomes(plan, {})[0]
    assert outcome.reading is not None
    row = format_run(replace(outcome, reading={**outcome.reading, "few_shot": 0.7}))
    assert row[:5] == ("ViT, half width", "20", "0", "50.2", "70.0")
    assert row[-1] == "1800"


def test_the_figure_has_a_dot_for_each_run_and_a_line_through_the_means(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)})
    described = describe_figure(plan, outcomes)
    assert "ViT: 40, 60, 90 percent" in described.alt
    assert "at 20, 100, fresh images" in described.alt
    figure = Figure()
    described.draw(figure)
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    lines = [line for line in panel.get_lines() if line.get_color() == VIT and line.get_linewidth() == 1.8]
    means = next(line for line in lines if line.get_linestyle() == "-")
    assert list(means.get_ydata()) == pytest.approx([40, 60, 90], abs=0.05)
    dots = [line for line in panel.get_lines() if line.get_color() == RESNET and line.get_linestyle() == "None"]
    assert len(dots[0].get_ydata()) == 9
    assert [label.get_text() for label in panel.get_xticklabels()] == ["20", "100", "fresh"]

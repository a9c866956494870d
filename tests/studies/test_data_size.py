"""Verdicts of data-size on readings that are made up, its table and figure, and what is read of a run."""

from collections.abc import Iterator
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
from vitrine.studies.answers import pack_hits, unpack_hits
from vitrine.studies.claims import Verdict, compute_difference, student_interval
from vitrine.studies.data_size import (
    CATCHES_UP,
    CLAIMS,
    NARROWS,
    REVERSES,
    build,
    describe_figures,
    extend,
    judge_claims,
    judge_others,
    list_rows,
    read,
)
from vitrine.studies.data_size_grid import GRIDS, PLAIN
from vitrine.studies.data_size_readings import FEW_SHOT, FINETUNED, REGULARISED
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


@pytest.fixture(scope="module")
def regularised() -> Iterator[StudyPlan]:
    """A plan in which another regularisation was chosen for the ViT on the smallest number of images."""
    with pytest.MonkeyPatch.context() as patch:
        tiny = GRIDS["tiny"]
        models = tuple(replace(model, regularised=("all", PLAIN)) if model.name == "ViT" else model for model in tiny.models)
        patch.setitem(GRIDS, "tiny", replace(tiny, models=models))
        yield build("tiny", None, SEEDS)


def draw_reading(accuracy: float, key: int) -> dict[str, Any]:
    """Return a reading of this accuracy, with the mistakes on random images."""
    hits = np.zeros(NUM_TEST, bool)
    hits[np.random.default_rng(key).permutation(NUM_TEST)[: round(accuracy * NUM_TEST)]] = True
    return {"accuracy": float(hits.mean()), "num_images": NUM_TEST, "hits": pack_hits(hits)}


def make_outcomes(
    plan: StudyPlan, accuracies: dict[str, tuple[float, ...]], jitter: float = 0.002, others: float = 0.0
) -> list[RunOutcome]:
    """Return finished runs with the given accuracies of models by number of images, which differ a little between seeds.

    `others` is added to the accuracy of ViTs in runs that are not of the study's own regime.
    """
    sizes = sorted({run.columns["num_images"] for run in plan.runs})
    outcomes = []
    for key, run in enumerate(plan.runs):
        model, seed = run.columns["model"], run.columns["seed"]
        accuracy = accuracies.get(model, (0.5, 0.5, 0.5))[sizes.index(run.columns["num_images"])]
        shift = jitter * (seed - 1) * (1 if model == "ViT" else -1)
        is_other = run.columns["kind"] == "fine-tuning" or run.columns["regularisation"] != PLAIN
        shift += others if is_other and model == "ViT" else 0.0
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
    assert {verdict.reason for verdict in judge_claims(plan, none)} == {"No seed has the runs of ViT and ResNet."}


def fail_runs(outcomes: list[RunOutcome], **columns: object) -> list[RunOutcome]:
    """Let the runs with these columns fail."""
    return [
        RunOutcome(each.run, None, error=ValueError("Diverged."))
        if all(each.run.columns[name] == value for name, value in columns.items())
        else each
        for each in outcomes
    ]


def test_a_smaller_number_never_stands_for_all_images(plan: StudyPlan) -> None:
    """On 100 images the ViT is far ahead, but every run on all images has failed."""
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.90, 0.5), "ResNet": (0.70, 0.75, 0.5)})
    finished = [each for each in fail_runs(outcomes, amount="fresh") if each.is_finished]
    (tuned,) = judge_others(plan, finished)
    for verdict in (*judge_claims(plan, finished), *tuned.verdicts):
        assert (verdict.outcome, verdict.estimate) == ("undecided", None)


def test_missing_runs_on_few_images_are_the_reason_of_an_open_claim(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)})
    narrows, *others = judge_claims(plan, fail_runs(outcomes, amount="100"))
    assert narrows.reason == "No seed has all runs of ViT and ResNet."
    assert {verdict.outcome for verdict in others} == {"holds"}


def test_every_run_of_the_plan_has_a_folder_of_its_own(plan: StudyPlan) -> None:
    grid = GRIDS["tiny"]
    assert len(plan.runs) == 2 * len(SEEDS) * len(grid.models) * (len(grid.sizes) + 1)
    assert len({run.folder for run in plan.runs}) == len(plan.runs)
    assert all("/" not in run.folder and " " not in run.folder for run in plan.runs)


@pytest.mark.usefixtures("short_runs")
def test_a_reading_is_the_accuracy_that_the_run_has_measured(tmp_path: Path) -> None:
    source = write_data(tmp_path / "shades.npz")
    recipe = make_recipe(source, total_steps=4)
    run = StudyRun(label="ViT", recipe=recipe, folder="vit", title="ViT", columns={"kind": "pre-training"})
    summary = run_recipe(recipe, tmp_path / "vit")
    reading = read(run, tmp_path / "vit", summary)
    top1, _, _ = measure(tmp_path / "vit" / "model", source, "test")
    assert reading["accuracy"] == pytest.approx(summary.test_top1) == pytest.approx(top1)
    assert unpack_hits(reading).mean() == reading["accuracy"]
    assert "few_shot" not in reading  # of glyphs only: their real set is digits


def test_the_table_has_a_row_for_a_run_and_its_fine_tuning(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.4, 0.5, 0.6)}, others=0.1)
    first = [each for each in outcomes if (each.run.columns["model"], each.run.columns["seed"]) == ("ViT", 1)][:2]
    assert first[0].reading is not None
    first[0] = replace(first[0], reading={**first[0].reading, "few_shot": 0.7})
    (row,) = list_rows(first)
    assert row[:7] == ("ViT", "20", "none", "1", "40.0", "50.0", "70.0")
    assert row[-1] == "1800"
    (alone,) = list_rows(first[:1])
    assert alone[5] == ""


def test_the_figure_has_a_dot_for_each_run_and_a_line_through_the_means_of_figure_4(regularised: StudyPlan) -> None:
    outcomes = make_outcomes(regularised, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)}, others=0.05)
    described, _ = describe_figures(regularised, outcomes)
    assert "ViT: 40, 60, 90 percent" in described.alt


def test_the_claims_are_measured_in_other_ways(regularised: StudyPlan) -> None:
    outcomes = make_outcomes(regularised, {"ViT": (0.40, 0.60, 0.79), "ResNet": (0.70, 0.75, 0.80)}, others=0.2)
    outcomes = [
        replace(each, reading={**each.reading, "few_shot": each.reading["accuracy"] / 2})
        if each.reading is not None and each.run.start is None
        else each
        for each in outcomes
    ]
    others = {
        measure.name: {verdict.claim: verdict for verdict in measure.verdicts}
        for measure in judge_others(regularised, outcomes)
    }
    assert list(others) == [REGULARISED, FINETUNED.name, FEW_SHOT.name]
    values = {name: [verdicts[claim].estimate for claim in CLAIMS] for name, verdicts in others.items()}
    # Gaps: -30 and -1 points. With the chosen regularisation the first is -10; on digits all are 20 points higher.
    expected = {REGULARISED: [9, -1, -1], FINETUNED.name: [29, 19, 19], FEW_SHOT.name: [14.5, -0.5, -0.5]}
    for name, estimates in values.items():
        assert [each.value for each in estimates if each is not None] == pytest.approx(expected[name], abs=0.1)
    assert len(others[FINETUNED.name][REVERSES].checks) == 1
    assert others[FEW_SHOT.name][REVERSES].checks == ()  # a mean of several classifiers: no image is right or wrong
    _, gaps = describe_figures(regularised, outcomes)
    assert "same settings: \u221230.0, \u221215.0, \u22121.0 points" in gaps.alt
    figure = Figure()
    gaps.draw(figure)
    assert len([line for line in figure.axes[0].get_lines() if line.get_marker() == "o"]) == 4


def test_undecided_claims_get_the_runs_that_they_rest_on(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.26, 0.60, 0.80), "ResNet": (0.26, 0.75, 0.80)})
    verdicts = judge_claims(plan, outcomes)
    further = extend(plan, outcomes, verdicts, (0, 1, 2, 3, 4))
    assert [verdict.outcome for verdict in verdicts] == ["holds", "undecided", "undecided"]
    cells = [(run.columns["model"], run.columns["amount"], run.columns["seed"]) for run in further]
    assert cells == [(model, "fresh", seed) for seed in (3, 4) for model in ("ViT", "ResNet")]
    flat = make_outcomes(plan, {"ViT": (0.26, 0.70, 0.80), "ResNet": (0.26, 0.70, 0.80)})
    further = extend(plan, flat, judge_claims(plan, flat), (0, 1, 2, 3))
    assert [(run.columns["amount"], run.columns["seed"]) for run in further[::2]] == [("100", 3), ("fresh", 3)]
    clear = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)})
    assert extend(plan, clear, judge_claims(plan, clear), (0, 1, 2, 3, 4)) == ()


def test_a_claim_without_an_estimate_gets_no_further_runs(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.26, 0.26, 0.90), "ResNet": (0.26, 0.26, 0.80)})
    verdicts = judge_by_name(plan, outcomes)
    assert list_outcomes(verdicts) == ["undecided", "holds", "holds"]
    assert extend(plan, outcomes, [*verdicts.values()], (0, 1, 2, 3, 4)) == ()


def test_further_seeds_of_some_numbers_of_images_count_for_the_claims_that_have_them(plan: StudyPlan) -> None:
    """And they do not move the smallest number on which the models have learnt something."""
    outcomes = make_outcomes(plan, {"ViT": (0.26, 0.60, 0.80), "ResNet": (0.26, 0.75, 0.80)})
    more = replace(plan, runs=(*plan.runs, *extend(plan, outcomes, judge_claims(plan, outcomes), (0, 1, 2, 3, 4))))
    outcomes = make_outcomes(more, {"ViT": (0.26, 0.60, 0.80), "ResNet": (0.26, 0.75, 0.80)})
    verdicts = judge_by_name(more, outcomes)
    assert [verdicts[claim.name].num_seeds for claim in CLAIMS] == [3, 5, 5]


def test_the_figure_has_a_dot_for_each_run_and_a_line_through_the_means(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, {"ViT": (0.40, 0.60, 0.90), "ResNet": (0.70, 0.75, 0.80)})
    described, _ = describe_figures(plan, outcomes)
    assert "ViT: 40, 60, 90 percent" in described.alt
    assert "at 20, 100, fresh images" in described.alt
    figure = Figure()
    described.draw(figure)
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    assert panel.get_title() == "Accuracy on test images"
    lines = [line for line in panel.get_lines() if line.get_color() == VIT and line.get_linewidth() == 1.8]
    means = next(line for line in lines if line.get_linestyle() == "-")
    assert list(means.get_ydata()) == pytest.approx([40, 60, 90], abs=0.05)
    dots = [line for line in panel.get_lines() if line.get_color() == RESNET and line.get_linestyle() == "None"]
    assert len(dots[0].get_ydata()) == 9
    assert [label.get_text() for label in panel.get_xticklabels()] == ["20", "100", "fresh"]

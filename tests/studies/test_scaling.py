"""Verdicts of scaling on readings that are made up: planted ratios, ceilings, failures, further seeds."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from tests.studies.test_data_size import SUMMARY
from tests.studies.test_data_size_grid import write_data
from vitrine.models.cost import compute_cost
from vitrine.studies.answers import pack_hits
from vitrine.studies.claims import Verdict
from vitrine.studies.data_size_grid import OWN_REMARK
from vitrine.studies.runner import RunOutcome
from vitrine.studies.scaling import (
    LESS_COMPUTE,
    LESS_TIME,
    SECONDS,
    build,
    build_search,
    describe_figures,
    extend,
    judge_claims,
    list_rows,
)
from vitrine.studies.scaling_grid import GRIDS
from vitrine.studies.study import StudyPlan

NUM_TEST = 2000
SEEDS = (0, 1, 2)


@cache
def make_plan(seeds: tuple[int, ...] = SEEDS) -> StudyPlan:
    return build("small", None, seeds)


def make_outcomes(
    plan: StudyPlan, ratio: float, noise: float = 0.02, slowness: float = 1.0, shift: float = 0.0
) -> list[RunOutcome]:
    """Return finished runs of which ResNets need `ratio` times the compute of ViTs, and `slowness` times that in seconds.

    `shift` is added to the logits of ResNets beyond what their compute gives.
    """
    outcomes = []
    for key, run in enumerate(plan.runs):
        random = np.random.default_rng(key)
        is_resnet = run.columns["family"] == "ResNet"
        macs = run.columns["macs"]
        logit = 0.6 * np.log(macs / 2e6 / (ratio if is_resnet else 1)) + (shift if is_resnet else 0) + noise * random.normal()
        exaflops = 6 * macs * 131_072 / 1e18
        seconds = 20e-6 * macs * (slowness if is_resnet else 1)
        summary = replace(SUMMARY, exaflops=exaflops, device_hours=seconds / 3600)
        outcomes.append(RunOutcome(run, summary, draw_reading(float(expit(logit)), random)))
    return outcomes


def draw_reading(accuracy: float, random: np.random.Generator) -> dict[str, Any]:
    """Return a reading of this accuracy, with the mistakes on random images."""
    hits = np.zeros(NUM_TEST, bool)
    hits[random.permutation(NUM_TEST)[: round(accuracy * NUM_TEST)]] = True
    return {"accuracy": float(hits.mean()), "num_images": NUM_TEST, "hits": pack_hits(hits)}


def judge_both(plan: StudyPlan, outcomes: list[RunOutcome]) -> tuple[Verdict, Verdict]:
    compute, time = judge_claims(plan, outcomes)
    assert (compute.claim, time.claim) == (LESS_COMPUTE, LESS_TIME)
    return compute, time


@pytest.mark.parametrize(
    ("ratio", "slowness", "expected"),
    [(2.0, 1.0, ["holds", "holds"]), (0.5, 1.0, ["fails", "fails"]), (2.0, 0.25, ["holds", "fails"])],
)
def test_verdicts_follow_from_the_ratios_of_compute_and_time(ratio: float, slowness: float, expected: list[str]) -> None:
    verdicts = judge_both(make_plan(), make_outcomes(make_plan(), ratio, slowness=slowness))
    assert [verdict.outcome for verdict in verdicts] == expected
    for verdict, value in zip(verdicts, (ratio, ratio * slowness), strict=True):
        (check,) = verdict.checks
        assert (verdict.claim.unit, check.unit, check.threshold) == ("times", "times", 1.0)
        assert verdict.estimate is not None
        assert None not in (verdict.estimate.low, verdict.estimate.high, check.estimate.low, check.estimate.high)
        assert verdict.estimate.value == pytest.approx(value, rel=0.1)
        assert check.estimate.value == pytest.approx(verdict.estimate.value)  # both are the geometric mean over seeds
        assert f"{NUM_TEST:,} test images" in check.words


def test_equal_families_are_undecided_and_get_all_vits_and_resnets_with_further_seeds() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=1.0)
    verdicts = judge_both(plan, outcomes)
    assert [verdict.outcome for verdict in verdicts] == ["undecided"] * 2
    further = extend(plan, outcomes, verdicts, (0, 1, 2, 3, 4))
    cells = {(run.columns["model"], run.columns["seed"]) for run in further}
    compared = [model.name for model in GRIDS["small"].models if model.family != "hybrid"]
    assert cells == {(name, seed) for name in compared for seed in (3, 4)}
    more = replace(plan, runs=(*plan.runs, *further))
    assert {verdict.num_seeds for verdict in judge_claims(more, make_outcomes(more, ratio=1.0))} == {5}


def test_decided_claims_need_no_more_runs() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=2.0)
    assert extend(plan, outcomes, judge_claims(plan, outcomes), (0, 1, 2, 3, 4)) == ()


def test_families_without_common_accuracy_are_left_open_and_more_seeds_would_not_help() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=1.0, shift=-6.0)
    verdicts = judge_both(plan, outcomes)
    for verdict in verdicts:
        assert (verdict.outcome, verdict.estimate) == ("undecided", None)
        assert "in common" in verdict.reason
    assert extend(plan, outcomes, verdicts, (0, 1, 2, 3, 4)) == ()


def test_draws_in_which_the_families_have_nothing_in_common_leave_no_interval_over_images() -> None:
    """The best ResNet is barely better than the worst ViT: of other test images, it often is not."""
    plan = make_plan()
    for verdict in judge_both(plan, make_outcomes(plan, ratio=1.0, noise=0.0, shift=-2.0)):
        assert verdict.estimate is not None
        assert verdict.estimate.low is not None
        assert verdict.estimate.low > 1
        (check,) = verdict.checks
        assert (check.estimate.low, check.estimate.high) == (None, None)
        assert verdict.outcome == "undecided"
        assert "% of whose draws" in check.words


def test_a_frontier_of_two_runs_is_left_open() -> None:
    """The second ViT is better than all larger ones, with seed 1 alone."""
    plan = make_plan()
    for verdict in judge_both(plan, shorten_frontier(make_outcomes(plan, ratio=2.0), seed=1)):
        assert (verdict.outcome, verdict.estimate) == ("undecided", None)
        assert "ViTs has 2 runs" in verdict.reason


def shorten_frontier(outcomes: list[RunOutcome], seed: int) -> list[RunOutcome]:
    """Let the second ViT be better than all larger ones with a seed."""
    better = draw_reading(0.99, np.random.default_rng(0))
    return [
        replace(each, reading=better) if (each.run.columns["model"], each.run.columns["seed"]) == ("ViT 40x2", seed) else each
        for each in outcomes
    ]


def test_a_further_seed_without_a_line_leaves_a_decided_claim_decided() -> None:
    """Verdicts rest on the seeds that have both lines, and say how many do not."""
    plan = make_plan((*SEEDS, 3))
    outcomes = make_outcomes(plan, ratio=2.0)
    three = [each for each in outcomes if each.run.columns["seed"] != 3]
    expected = judge_both(plan, three)
    for verdict, other in zip(judge_both(plan, shorten_frontier(outcomes, seed=3)), expected, strict=True):
        assert (verdict.outcome, verdict.num_seeds, verdict.num_left_out) == ("holds", 3, 1)
        assert (verdict.estimate, verdict.checks) == (other.estimate, other.checks)
        assert verdict.describe_seeds() == "3 seeds (1 left out)"


def test_one_seed_decides_nothing() -> None:
    plan = make_plan((0,))
    verdicts = judge_both(plan, make_outcomes(plan, ratio=2.0))
    assert [(verdict.outcome, verdict.num_seeds) for verdict in verdicts] == [("undecided", 1)] * 2


def test_seeds_with_failed_runs_are_left_out_and_hybrids_do_not_count() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=2.0)

    def fail(model: str, seed: int) -> list[RunOutcome]:
        wanted = (model, seed)
        return [
            RunOutcome(each.run, None, error=ValueError("Diverged."))
            if (each.run.columns["model"], each.run.columns["seed"]) == wanted
            else each
            for each in outcomes
        ]

    assert {verdict.num_seeds for verdict in judge_claims(plan, fail("ResNet 28x2-4-2", 1))} == {2}
    assert {verdict.num_seeds for verdict in judge_claims(plan, fail("hybrid 4x1-1+24x2", 1))} == {3}
    none = [RunOutcome(each.run, None, error=ValueError("Diverged.")) for each in outcomes]
    assert {verdict.reason for verdict in judge_claims(plan, none)} == {"No seed has all runs of ViTs and ResNets."}


def test_a_run_that_is_beaten_by_a_cheaper_one_changes_nothing() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=2.0)
    beaten = [
        replace(each, reading=draw_reading(0.02, np.random.default_rng(1)))
        if each.run.columns["model"] == "ResNet 20x2-4-2"
        else each
        for each in outcomes
    ]
    before, after = (judge_both(plan, each)[0].estimate for each in (outcomes, beaten))
    assert before is not None
    assert after is not None
    assert after.value != before.value
    assert after.value == pytest.approx(before.value, rel=0.05)


def test_every_model_is_listed_with_its_cost() -> None:
    plan = make_plan()
    rows = list_rows(make_outcomes(plan, ratio=2.0))
    assert len(rows) == len(plan.runs) == 45
    assert {row[1] for row in rows} == {"ViT", "ResNet", "hybrid"}
    run = plan.runs[0]
    assert rows[0][:3] == ("ViT 28x2", "ViT", "0")
    assert rows[0][4] == f"{compute_cost(run.recipe.model.resolve(200)).macs / 1e6:.3g}" == "0.257"
    assert rows[0][-1] == "5"
    assert SECONDS in plan.remark


def test_the_search_has_the_same_values_for_every_family_on_held_out_images() -> None:
    plan = build_search("small", None)
    assert [choice.name for choice in plan.choices] == [f"learning rate of {model.name}" for model in GRIDS["small"].models]
    for choice in plan.choices:
        assert choice.factor == 2.0
        assert choice.values == pytest.approx([choice.committed / 2, choice.committed, choice.committed * 2])
        (run,) = choice.build(choice.values[0])
        assert run.recipe.optim.learning_rate == choice.values[0]
        assert (run.recipe.seed, run.recipe.evaluation.test, run.recipe.data.subset) == (0, False, "all")


def test_values_that_were_tried_are_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    grid = GRIDS["tiny"]
    first = replace(grid.models[0], rates_tried=(2e-3, 4e-3))
    monkeypatch.setitem(GRIDS, "tiny", replace(grid, models=(first, *grid.models[1:])))
    assert build("tiny", write_data(tmp_path / "own.npz", ("train", "test")), ()).tried == ()
    (tried,) = build("tiny", None, ()).tried
    assert (tried.name, tried.chosen, tried.tried) == ("learning rate of ViT 16x1", "0.004", ("0.002", "0.004"))


def test_own_data_replaces_the_images(tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train", "test"), channels=3)
    plan = build("tiny", data, (4,))
    assert (plan.num_classes, len(plan.runs)) == (3, 7)
    assert "300 images" in plan.regime
    assert OWN_REMARK in plan.remark
    assert {run.recipe.data.held_out for run in plan.runs} == {0.1}
    assert {(run.recipe.seed, run.recipe.model.num_channels) for run in plan.runs} == {(4, 3)}


def test_there_is_a_figure_of_compute_and_one_of_time() -> None:
    plan = make_plan()
    first, second = describe_figures(plan, make_outcomes(plan, ratio=2.0))
    assert "exaFLOPs" in first.alt
    assert "seconds" in second.alt
    assert len(first.rows) == 15
    assert second.rows == ()

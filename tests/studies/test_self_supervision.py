"""Verdicts of self-supervision on readings that are made up, its runs, its table, and what is read of a run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pages import read_page
from tests.studies.test_data_size import NUM_TEST, SEEDS, SUMMARY, draw_reading
from tests.studies.test_data_size_grid import write_data
from vitrine.data.open_data import open_train_data
from vitrine.studies.claims import Verdict, student_interval
from vitrine.studies.config import StudyConfig
from vitrine.studies.page import write_study_page
from vitrine.studies.runner import RunOutcome
from vitrine.studies.self_supervision import (
    HELPS,
    LABELS_HELP_MORE,
    SELF_SUPERVISION,
    build,
    collect,
    describe_figures,
    extend,
    judge_claims,
    list_rows,
    read,
)
from vitrine.studies.self_supervision_grid import LABELS, MASKED, OWN_REMARK, SCRATCH, STARTS
from vitrine.studies.study import StudyPlan, StudyResult

Accuracies = dict[str, tuple[float, float, float]]
PLANTED: Accuracies = {SCRATCH: (0.3, 0.5, 0.8), MASKED: (0.4, 0.6, 0.85), LABELS: (0.6, 0.7, 0.9)}


@pytest.fixture(scope="module")
def plan() -> StudyPlan:
    return build("tiny", None, SEEDS)


def make_outcomes(plan: StudyPlan, accuracies: Accuracies, jitter: float = 0.002) -> list[RunOutcome]:
    """Return finished runs with the given accuracies of starts by number of images, which differ a little between seeds."""
    sizes = sorted({run.columns["num_images"] for run in plan.runs if run.columns["kind"] == "fine-tuning"})
    outcomes = []
    for key, run in enumerate(plan.runs):
        start, seed = run.columns["start"], run.columns["seed"]
        if run.columns["kind"] == "pre-training":
            outcomes.append(RunOutcome(run, SUMMARY, {"accuracy": 0.4}))
            continue
        shift = jitter * (seed - 1) * (STARTS.index(start) - 1)
        accuracy = accuracies[start][sizes.index(run.columns["num_images"])] + shift
        outcomes.append(RunOutcome(run, SUMMARY, draw_reading(accuracy, key)))
    return outcomes


def fail(outcomes: list[RunOutcome], **columns: object) -> list[RunOutcome]:
    """Let the fine-tunings with these columns fail."""
    wanted = {"kind": "fine-tuning", **columns}
    return [
        RunOutcome(each.run, None, error=ValueError("Diverged."))
        if all(each.run.columns[name] == value for name, value in wanted.items())
        else each
        for each in outcomes
    ]


def list_outcomes(verdicts: list[Verdict]) -> list[str]:
    return [verdict.outcome for verdict in verdicts]


@pytest.mark.parametrize(
    ("masked", "labels", "expected"),
    [
        ((0.4, 0.6, 0.85), (0.6, 0.7, 0.9), ["holds", "holds"]),
        ((0.2, 0.4, 0.70), (0.6, 0.7, 0.9), ["fails", "holds"]),
        ((0.6, 0.7, 0.90), (0.4, 0.6, 0.8), ["holds", "fails"]),
        ((0.3, 0.5, 0.801), (0.3, 0.5, 0.801), ["undecided", "undecided"]),
    ],
)
def test_planted_differences_are_found(
    masked: tuple[float, float, float], labels: tuple[float, float, float], expected: list[str], plan: StudyPlan
) -> None:
    outcomes = make_outcomes(plan, {SCRATCH: (0.3, 0.5, 0.8), MASKED: masked, LABELS: labels})
    assert list_outcomes(judge_claims(plan, outcomes)) == expected


def test_a_claim_is_about_the_mean_over_the_numbers_of_images(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, PLANTED)
    readings = collect(outcomes)
    sizes = sorted({size for _, size, _ in readings})
    helps, more = judge_claims(plan, outcomes)
    for verdict, (first, second) in ((helps, (MASKED, SCRATCH)), (more, (LABELS, MASKED))):
        by_seed = [
            100
            * np.mean([readings[first, size, seed]["accuracy"] - readings[second, size, seed]["accuracy"] for size in sizes])
            for seed in SEEDS
        ]
        expected = student_interval([float(value) for value in by_seed])
        assert verdict.estimate is not None
        assert vars(verdict.estimate) == pytest.approx(vars(expected))
        logits, images = verdict.checks
        assert (logits.unit, images.unit, images.words) == ("logits", "points", f"over {NUM_TEST:,} test images")
        assert images.estimate.value == pytest.approx(expected.value)
    assert [verdict.claim for verdict in (helps, more)] == [HELPS, LABELS_HELP_MORE]


def test_points_and_logits_must_agree(plan: StudyPlan) -> None:
    """One point more on 50 and on 60 %, half a point less at 99.5 %: the sum is above 0 in points and below 0 in logits."""
    outcomes = make_outcomes(
        plan, {SCRATCH: (0.50, 0.60, 0.995), MASKED: (0.51, 0.61, 0.990), LABELS: (0.9, 0.9, 0.9)}, jitter=0.0
    )
    helps, _ = judge_claims(plan, outcomes)
    assert helps.estimate is not None
    assert helps.estimate.low is not None
    assert helps.estimate.low > 0
    assert helps.checks[0].outcome == "fails"
    assert helps.outcome == "undecided"


def test_missing_runs_leave_claims_open(plan: StudyPlan) -> None:
    outcomes = make_outcomes(plan, PLANTED)
    helps, more = judge_claims(plan, fail(outcomes, start=SCRATCH, num_images=50))
    assert (helps.outcome, helps.estimate, helps.num_seeds) == ("undecided", None, 0)
    assert SCRATCH in helps.reason
    assert more.outcome == "holds"
    helps, more = judge_claims(plan, fail(outcomes, start=LABELS, seed=1))
    assert (helps.num_seeds, more.num_seeds) == (3, 2)


def test_one_seed_decides_nothing(plan: StudyPlan) -> None:
    one = [each for each in make_outcomes(plan, PLANTED) if each.run.columns["seed"] == 0]
    assert list_outcomes(judge_claims(plan, one)) == ["undecided"] * 2


def test_the_three_starts_share_seeds_images_and_steps(plan: StudyPlan) -> None:
    tuned = [run for run in plan.runs if run.columns["kind"] == "fine-tuning"]
    assert len(tuned) == len(SEEDS) * 3 * len(STARTS)
    for seed in SEEDS:
        for size in {run.columns["num_images"] for run in tuned}:
            same = [run for run in tuned if (run.columns["seed"], run.columns["num_images"]) == (seed, size)]
            assert [run.columns["start"] for run in same] == [*STARTS]
            assert {(run.recipe.data, run.recipe.seed, run.recipe.total_steps) for run in same} == {
                (same[0].recipe.data, seed, same[0].recipe.total_steps)
            }
            train, held_out = open_train_data(same[0].recipe.data)
            assert (len(train), held_out) == (size, None)


def test_fine_tuning_starts_from_pre_training_with_its_seed(plan: StudyPlan) -> None:
    folders = [run.folder for run in plan.runs]
    assert len(set(folders)) == len(folders) == len(SEEDS) * (2 + 9)
    by_folder = {run.folder: run for run in plan.runs}
    for run in plan.runs:
        if run.columns["kind"] == "pre-training" or run.columns["start"] == SCRATCH:
            assert (run.start, run.recipe.model.checkpoint) == (None, None)
            continue
        assert run.start is not None
        first = by_folder[run.start]
        assert folders.index(first.folder) < folders.index(run.folder)
        assert (first.columns["start"], first.recipe.seed) == (run.columns["start"], run.recipe.seed)
        assert first.recipe.objective == {MASKED: "masked-patches", LABELS: "supervised"}[run.columns["start"]]


def test_own_data_replaces_the_labelled_images_alone(plan: StudyPlan, tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train", "test"))
    own = build("tiny", data, (0,))
    assert (own.source, own.num_classes) == (data, 3)
    assert OWN_REMARK in own.remark
    assert OWN_REMARK not in plan.remark
    sources = {
        kind: {run.recipe.data.source for run in own.runs if run.columns["kind"] == kind}
        for kind in ("pre-training", "fine-tuning")
    }
    assert sources["fine-tuning"] == {data}
    assert sources["pre-training"] == {run.recipe.data.source for run in plan.runs if run.columns["kind"] == "pre-training"}


def test_undecided_claims_get_all_runs_of_further_seeds(plan: StudyPlan) -> None:
    flat = make_outcomes(plan, {**PLANTED, MASKED: PLANTED[SCRATCH]})
    further = extend(plan, flat, judge_claims(plan, flat), (0, 1, 2, 3, 4))
    assert {run.columns["seed"] for run in further} == {3, 4}
    assert len(further) == 2 * (2 + 9)
    clear = make_outcomes(plan, PLANTED)
    assert extend(plan, clear, judge_claims(plan, clear), (0, 1, 2, 3, 4)) == ()


def test_the_table_lists_pre_training_with_what_it_has_reached(plan: StudyPlan) -> None:
    outcomes = [each for each in make_outcomes(plan, PLANTED) if each.run.columns["seed"] == 1]
    rows = {row[:2]: row for row in list_rows(outcomes)}
    assert len(rows) == len(outcomes) == 11
    assert rows[SCRATCH, "20"] == (SCRATCH, "20", "1", "30.0", "", "0.004", "1800")
    assert rows[MASKED, "pre-training"][3:5] == ("", "40.0 % of patch colours")
    assert rows[LABELS, "pre-training"][3:5] == ("", "40.0 % of labels")


def test_a_reading_of_pre_training_is_its_held_out_accuracy(plan: StudyPlan, tmp_path: Path) -> None:
    first = next(run for run in plan.runs if run.columns["kind"] == "pre-training")
    assert read(first, tmp_path, replace(SUMMARY, best=0.7)) == {"accuracy": 0.7}


def test_the_page_has_the_figure_of_the_starts(plan: StudyPlan) -> None:
    (figure,) = describe_figures(plan, make_outcomes(plan, PLANTED))
    assert f"{MASKED}: 40, 60, 85 percent" in figure.alt


def test_without_a_fine_tuned_model_there_is_nothing_to_draw(plan: StudyPlan, tmp_path: Path) -> None:
    outcomes = fail(make_outcomes(plan, PLANTED))
    verdicts = judge_claims(plan, outcomes)
    config = StudyConfig(scale="tiny", seeds=SEEDS)
    result = StudyResult(name="self-supervision", config=config, out=tmp_path, plan=plan, outcomes=outcomes, verdicts=verdicts)
    assert len(result.finished) == 2 * len(SEEDS)
    write_study_page(tmp_path / "study.html", SELF_SUPERVISION, result, None)
    page = read_page(tmp_path / "study.html", max_bytes=300_000)
    assert page.find("figure", "chart") == []
    assert any("nothing to draw" in each.text for each in page.find("p", "unavailable"))


def test_the_paper_s_starts_are_all_fine_tuned_at_384_pixels() -> None:
    plan = build("paper", None, ())
    tuned = [run for run in plan.runs if run.columns["kind"] == "fine-tuning"]
    assert {(run.recipe.model.image_size, run.recipe.total_steps) for run in tuned} == {(384, 20_000)}
    assert all(run.start is not None for run in tuned)
    assert "1,000,000 steps by masked patches, 517,822 by labels" in plan.regime

"""The page of a study: its answer, runs, failures and commands."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pages import list_rows, read_page
from tests.studies.test_data_size import make_outcomes
from vitrine.studies.children import RunFailed
from vitrine.studies.config import StudyConfig
from vitrine.studies.data_size import DATA_SIZE, build
from vitrine.studies.page import describe_verdicts, write_study_page
from vitrine.studies.runner import RunOutcome
from vitrine.studies.study import StudyResult

VIT_BEHIND, VIT_BESIDE = (0.40, 0.60, 0.70), (0.40, 0.60, 0.801)


def make_result(seeds: tuple[int, ...] = (0, 1), num_failed: int = 0, vit: tuple[float, ...] = VIT_BEHIND) -> StudyResult:
    plan = build("tiny", None, seeds)
    outcomes = make_outcomes(plan, {"ViT": vit, "ResNet": (0.70, 0.75, 0.80)})
    for index in range(num_failed):
        outcomes[index] = RunOutcome(outcomes[index].run, None, error=RunFailed("The loss is <not> finite."))
    config = StudyConfig(scale="tiny", seeds=seeds)
    verdicts = DATA_SIZE.judge(plan, outcomes)
    return StudyResult(name="data-size", config=config, out=Path("out"), plan=plan, outcomes=outcomes, verdicts=verdicts)


def test_a_page_has_claims_figure_runs_and_commands(tmp_path: Path) -> None:
    result = make_result(vit=VIT_BESIDE)
    path = tmp_path / "study.html"
    write_study_page(path, DATA_SIZE, result, "vitrine study data-size")
    page = read_page(path, max_bytes=300_000)
    assert page.one("h1").text == describe_verdicts(result.verdicts)
    assert [each.one("h3").text for each in page.find("div", "claim")] == [claim.name for claim in DATA_SIZE.claims]
    assert len(page.find("figure", "chart")) == 2
    table = page.one("details").one("table")
    sentences = [row.one("p").text for row in page.find("div", "row")]
    assert sentences == [claim.sentence for claim in DATA_SIZE.claims]
    assert [each.text for each in table.one("thead").find("th")] == [*DATA_SIZE.columns]
    assert list_rows(table) == [[*row] for row in DATA_SIZE.rows(result.outcomes)]
    commands = [each.one("pre").text for each in page.find("div", "command")]
    assert "vitrine study data-size --scale tiny --seeds 0 1 2 3 4 --jobs 1 --out out" in commands
    assert "vitrine study data-size --scale paper --dry-run" in commands
    assert "vitrine study data-size" in page.one("footer").text


def test_failed_runs_are_shown_with_their_errors(tmp_path: Path) -> None:
    result = make_result(num_failed=2)
    write_study_page(tmp_path / "study.html", DATA_SIZE, result, None)
    page = read_page(tmp_path / "study.html", max_bytes=300_000)
    failed = [row for row in page.find("div", "row") if row.one("p").text == "The loss is <not> finite."]
    assert [row.one("h3").text for row in failed] == [f"Failed: {outcome.run.label}" for outcome in result.failures]
    assert any("2 of 48 runs failed" in note.text for note in page.find("p", "note"))


def list_commands(path: Path, result: StudyResult) -> list[str]:
    write_study_page(path, DATA_SIZE, result, None)
    return [each.one("pre").text for each in read_page(path, max_bytes=300_000).find("div", "command")]


def test_failed_runs_are_tried_again_by_the_call_that_made_them(tmp_path: Path) -> None:
    """Without seeds in the call, the study adds those of undecided claims by itself."""
    result = make_result(seeds=(0, 1, 2, 3, 4), num_failed=1)
    assert "vitrine study data-size --scale tiny --seeds 0 1 2 3 4 --jobs 1 --out out" in list_commands(
        tmp_path / "given.html", result
    )
    result = replace(result, config=replace(result.config, seeds=(), data="own.npz"))
    commands = list_commands(tmp_path / "default.html", result)
    assert "vitrine study data-size --scale tiny --data own.npz --jobs 1 --out out" in commands
    assert "vitrine study data-size --scale tiny --data own.npz --search" in commands


def test_more_seeds_are_offered_only_where_they_can_decide(tmp_path: Path) -> None:
    """No model learns anything on few images: the claim has no estimate, and the others are decided."""
    result = make_result(vit=(0.26, 0.26, 0.90))
    assert [verdict.outcome for verdict in result.verdicts] == ["undecided", "holds", "holds"]
    assert not [command for command in list_commands(tmp_path / "study.html", result) if "--seeds" in command]


def test_a_page_without_any_run_says_so(tmp_path: Path) -> None:
    result = make_result(num_failed=48)
    write_study_page(tmp_path / "study.html", DATA_SIZE, result, None)
    page = read_page(tmp_path / "study.html")
    assert [verdict.outcome for verdict in result.verdicts] == ["undecided"] * 3
    assert page.find("figure", "chart") == []
    assert any("every run failed" in each.text for each in page.find("p", "unavailable"))


def test_decided_claims_need_no_more_seeds(tmp_path: Path) -> None:
    result = make_result()
    assert [verdict.outcome for verdict in result.verdicts] == ["holds", "fails", "fails"]
    write_study_page(tmp_path / "study.html", DATA_SIZE, result, None)
    page = read_page(tmp_path / "study.html", max_bytes=300_000)
    assert not [each for each in page.find("div", "command") if "--seeds" in each.text]
    assert page.one("h1").text == "Of 3 claims of the paper, 1 holds, 2 do not hold"


@pytest.mark.parametrize("count", [1, 3])
def test_the_title_counts_verdicts(count: int) -> None:
    verdicts = make_result(seeds=(0,)).verdicts[:count]
    expected = {1: "Of 1 claims of the paper, 1 is undecided", 3: "Of 3 claims of the paper, 3 are undecided"}
    assert describe_verdicts(verdicts) == expected[count]

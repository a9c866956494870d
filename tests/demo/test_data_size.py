"""The result of data-size in the package: made from study.json, drawn for the report, left out if it is missing."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.pages import list_rows, parse
from tests.studies.test_data_size import make_outcomes
from vitrine.core.page_parts import THIN_SPACE
from vitrine.demo.data_size import RESULT, build_data_size_sections, build_section, read_accuracies
from vitrine.studies.config import StudyConfig
from vitrine.studies.data_size import build, judge_claims
from vitrine.studies.data_size_grid import GRIDS
from vitrine.studies.study import StudyResult

SUMMARISE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "data_size.py"))["summarise_study"]
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    """The content of study.json of a study at scale tiny, with accuracies that are made up."""
    plan = build("tiny", None, SEEDS)
    outcomes = make_outcomes(plan, {"ViT": (0.3, 0.5, 0.8), "ResNet": (0.4, 0.5, 0.7)})
    config = StudyConfig(scale="tiny", seeds=SEEDS)
    result = StudyResult(
        name="data-size", config=config, out=Path("out"), plan=plan, outcomes=outcomes, verdicts=judge_claims(plan, outcomes)
    )
    return json.loads(json.dumps(result.to_json()))


def test_the_file_has_the_accuracies_of_the_studys_own_regime(study: dict[str, Any]) -> None:
    result = SUMMARISE(study)
    readings = read_accuracies(result)
    expected = {
        (run["model"], run["num_images"], run["seed"]): {"accuracy": run["reading"]["accuracy"]}
        for run in study["runs"]
        if run["kind"] == "pre-training"
    }
    assert readings == expected
    assert result["num_classes"] == 4
    assert list(result["amounts"].values()) == ["20", "100", "fresh"]
    assert len(json.dumps(result)) < 10_000


def test_the_section_shows_means_and_verdicts(study: dict[str, Any]) -> None:
    section = build_section(SUMMARISE(study))
    page = parse(section.render("s0"))
    means, verdicts = page.find("table")
    rows = list_rows(means)
    assert [row[0] for row in rows] == ["20", "100", "fresh"]
    assert float(rows[0][2].split()[0]) == pytest.approx(30, abs=1)  # seeds differ a little
    assert [row[0] for row in list_rows(verdicts)] == [verdict["claim"]["name"] for verdict in study["verdicts"]]
    assert [block.text for block in page.find("pre")] == ["vitrine study data-size --scale tiny --seeds 0 1"]
    assert f"100{THIN_SPACE}%" in page.one(kind="wide-only").text


@pytest.mark.parametrize("data", ["photos", "glyphs:classes=7@14"])
def test_a_study_of_other_images_is_refused(data: str, study: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match=data):
        SUMMARISE({**study, "data": data})


def test_another_study_is_refused(study: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="scaling"):
        SUMMARISE({**study, "study": "scaling"})


def test_the_command_has_no_seeds_that_the_study_takes_by_itself(study: dict[str, Any]) -> None:
    """Seed 1 has the runs of the compared models on all images alone, as after undecided claims."""
    runs = [run for run in study["runs"] if run["seed"] == 0 or (run["model"], run["amount"]) == ("ViT", "fresh")]
    assert SUMMARISE({**study, "runs": runs})["command"] == "vitrine study data-size --scale tiny"


def test_without_the_file_the_section_is_left_out(tmp_path: Path) -> None:
    assert build_data_size_sections(tmp_path / "missing.json") == []


@pytest.mark.skipif(not RESULT.is_file(), reason="the study has not been run yet")
def test_the_committed_file_is_of_scale_small_and_whole() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert result["scale"] == "small"
    readings, models = read_accuracies(result), [model.name for model in GRIDS["small"].models]
    assert {name for name, _, _ in readings} == set(models)
    assert {(name, size) for name, size, _ in readings} == {(name, int(size)) for name in models for size in result["amounts"]}
    assert len(build_data_size_sections()) == 1

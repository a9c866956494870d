"""What a study found, as JSON."""

import json
from pathlib import Path

from vitrine.recipe import Recipe
from vitrine.studies.children import RunFailed
from vitrine.studies.config import StudyConfig
from vitrine.studies.runner import RunOutcome, StudyRun
from vitrine.studies.study import StudyPlan, StudyResult


def test_a_result_keeps_failures_and_can_be_written() -> None:
    run = StudyRun(label="ViT", recipe=Recipe(epochs=1), folder="vit", title="ViT", columns={"seed": 3})
    plan = StudyPlan(scale="tiny", source="digits", runs=(run,), num_classes=10, regime="ten digits")
    outcomes = [RunOutcome(run, None, error=RunFailed("Too large."))]
    result = StudyResult(name="x", config=StudyConfig(), out=Path("out"), plan=plan, outcomes=outcomes, verdicts=[])
    assert result.finished == []
    assert result.failures == outcomes
    (content,) = json.loads(json.dumps(result.to_json()))["runs"]
    assert (content["label"], content["seed"], content["error"], content["summary"]) == ("ViT", 3, "Too large.", None)

"""Results of steps are found by family and kind."""

from vitrine.demo.results import StepResult, find_accuracy
from vitrine.evaluation.intervals import Estimate


def test_accuracies_are_found_by_family_and_kind() -> None:
    accuracy = Estimate(0.5, 0.4, 0.6)
    result = StepResult(key="vit-scratch", family="vit", kind="scratch", title="", command="", seconds=1.0, accuracy=accuracy)
    assert find_accuracy([result], "vit", "scratch") == accuracy
    assert find_accuracy([result], "vit", "transfer") is None

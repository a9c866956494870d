"""The title of the report is true for every outcome: accuracies differ only if their intervals are apart."""

import pytest

from vitrine.demo.finding import describe_finding
from vitrine.demo.plan import Family, Kind
from vitrine.demo.results import StepResult
from vitrine.evaluation.intervals import Estimate

HIGH, MIDDLE, LOW = Estimate(0.9, 0.85, 0.95), Estimate(0.7, 0.65, 0.75), Estimate(0.5, 0.45, 0.55)
WIDE = Estimate(0.8, 0.6, 0.9)


def build_result(family: Family, kind: Kind, accuracy: Estimate | None) -> StepResult:
    return StepResult(key=f"{family}-{kind}", family=family, kind=kind, title="", command="", seconds=1.0, accuracy=accuracy)


def describe(transfer: Estimate, scratch: Estimate, resnet: Estimate | None = None, kind: Kind = "transfer") -> str:
    """Return the title of a demo with these accuracies."""
    rivals = [] if resnet is None else [build_result("resnet", kind, resnet), build_result("hybrid", "scratch", LOW)]
    return describe_finding([build_result("vit", "transfer", transfer), build_result("vit", "scratch", scratch), *rivals])


@pytest.mark.parametrize(
    ("transfer", "scratch", "word"),
    [(HIGH, MIDDLE, "lifts"), (MIDDLE, HIGH, "harms"), (WIDE, MIDDLE, "not surely"), (MIDDLE, MIDDLE, "not surely")],
)
def test_overlapping_intervals_decide_nothing(transfer: Estimate, scratch: Estimate, word: str) -> None:
    title = describe(transfer, scratch)
    assert word in title
    assert f"{100 * transfer.value:.1f}" in title
    assert f"{100 * scratch.value:.1f}" in title


def test_the_leader_is_named_if_it_is_surely_ahead() -> None:
    assert "ResNet, pre-trained, is ahead with 90.0" in describe(MIDDLE, LOW, HIGH)
    assert "ResNet, from scratch, is ahead with 90.0" in describe(MIDDLE, LOW, HIGH, "scratch")
    assert "ahead of ResNet and hybrid" in describe(HIGH, LOW, MIDDLE)
    assert "ahead" not in describe(MIDDLE, LOW, WIDE)
    assert "ahead" not in describe(HIGH, LOW)


def test_without_both_accuracies_nothing_is_claimed() -> None:
    assert "%" not in describe_finding([build_result("vit", "transfer", HIGH)])

"""Claims on a page: signs and words of verdicts, one axis for all, thresholds in their place."""

import math
import re
from dataclasses import replace

import pytest

from tests.pages import parse
from vitrine.evaluation.intervals import Estimate
from vitrine.studies.claims import Check, Claim, Verdict, judge
from vitrine.studies.page_claims import Claims, format_signed

CLAIM = Claim(name="The gap <narrows>", sentence="ViTs gain.", measured="Gap, above -1 point", threshold=-1.0, unit="points")


def read_places(style: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"--(\w+):([\d.-]+)", style)}


def test_each_claim_has_its_verdict_and_numbers() -> None:
    check = Check(words="in logits", estimate=Estimate(0.5, 0.2, 0.8), threshold=0.0, unit="logits")
    verdicts = [judge(CLAIM, [4.0, 4.2], [check]), judge(CLAIM, [-9.0, -9.1, -9.0]), judge(CLAIM, [2.0])]
    page = parse(Claims(verdicts).render())
    badges = [(each.attributes["class"], each.text) for each in page.find("span", "verdict")]
    assert badges == [
        ("verdict holds", "Holds"),
        ("verdict fails", "Does not hold"),
        ("verdict open", "Undecided"),
    ]
    assert page.find("h3")[0].text == CLAIM.name
    numbers = [each.text for each in page.find("p", "num-line")]
    assert "+4.1 points" in numbers[0]
    assert "In logits: +0.50 (+0.20 to +0.80), above 0." in numbers[0]
    assert "over 3 seeds" in numbers[1]
    assert "no interval" in numbers[2]


def test_all_intervals_share_one_axis_that_holds_them() -> None:
    verdicts = [judge(CLAIM, [37.0, 39.0]), judge(CLAIM, [-4.0, -2.0])]
    claims = Claims(verdicts)
    axis = claims.choose_axis("points")
    bars = parse(claims.render()).find("div", "interval")
    for bar, verdict in zip(bars, verdicts, strict=True):
        assert verdict.estimate is not None
        places = read_places(bar.attributes["style"])
        expected = [
            100 * (end - axis.low) / (axis.high - axis.low) for end in (verdict.estimate.low or 0, verdict.estimate.value)
        ]
        assert [places["lo"], places["mid"]] == pytest.approx(expected, abs=0.01)
        assert all(0 <= place <= 100 for place in places.values())
        threshold = read_places(bar.one("i").attributes["style"])["at"]
        assert threshold == pytest.approx(100 * (-1 - axis.low) / (axis.high - axis.low), abs=0.01)


def test_ratios_have_a_log_axis_of_their_own_and_no_sign() -> None:
    """1.3 to 3 times lie on an axis from 1 to 4, wherever the points beside them lie; twice is in its middle."""
    times = replace(CLAIM, name="Less compute", threshold=1.0, unit="times")
    check = Check(words="over images", estimate=Estimate(2.0, 1.9, 2.1), threshold=1.0, unit="times")
    ratio = Verdict(claim=times, outcome="holds", estimate=Estimate(2.0, 1.3, 3.0), num_seeds=3, checks=(check,))
    claims = Claims([ratio, judge(CLAIM, [37.0, 39.0])])
    axis = claims.choose_axis("times")
    assert (axis.low, axis.high) == (1, 4)
    assert claims.choose_axis("points") == Claims([claims.verdicts[1]]).choose_axis("points")
    page = parse(claims.render())
    places = read_places(page.find("div", "interval")[0].attributes["style"])
    expected = [100 * math.log(1.3, 4), 50, 100 * math.log(3, 4)]
    assert [places["lo"], places["mid"], places["hi"]] == pytest.approx(expected, abs=0.01)
    numbers = page.find("p", "num-line")[0].text
    assert "2.00 times, 95 % interval 1.30 to 3.00 over 3 seeds" in numbers
    assert "Over images: 2.00 (1.90 to 2.10), above 1." in numbers
    assert "+" not in numbers


def test_missing_runs_are_a_reason() -> None:
    verdict = Verdict(claim=CLAIM, outcome="undecided", estimate=None, num_seeds=0, reason="No run <finished>.")
    page = parse(Claims([verdict]).render())
    assert page.one("p", "unavailable").text == "No run <finished>."
    assert page.find("div", "interval") == []


@pytest.mark.parametrize(("value", "text"), [(34.41, "+34.4"), (-2.64, "\u22122.6"), (0.01, "0.0"), (-0.04, "0.0")])
def test_differences_have_a_sign(value: float, text: str) -> None:
    assert format_signed(value, "points") == text

"""Claims with their verdicts on a study's page: each with its interval against its threshold, all on one axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.core.page_parts import escape
from vitrine.evaluation.intervals import Estimate
from vitrine.studies.claims import Check, Outcome, Unit, Verdict

WORDS: dict[Outcome, str] = {"holds": "Holds", "fails": "Does not hold", "undecided": "Undecided"}
STYLES: dict[Outcome, str] = {"holds": "holds", "fails": "fails", "undecided": "open"}
DIGITS: dict[Unit, int] = {"points": 1, "logits": 2}
AXIS_STEPS = (1, 2, 5, 10, 20, 50)  # points that the ends of the axis are multiples of
MAX_AXIS_PARTS = 6
MINUS = "\u2212"


def format_signed(value: float, unit: Unit) -> str:
    """Format a difference with its sign, e.g. +34.4 points."""
    text = f"{abs(value):.{DIGITS[unit]}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else MINUS}{text}"


def format_threshold(value: float) -> str:
    """Format a threshold, e.g. -1 with a true minus."""
    return f"{value:g}".replace("-", MINUS)


def describe_interval(estimate: Estimate, unit: Unit) -> str:
    """Return the interval in words; empty if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{format_signed(estimate.low, unit)} to {format_signed(estimate.high, unit)}"


def describe_check(check: Check) -> str:
    """Return a further interval as a sentence, with the side of its threshold that it lies on."""
    interval = describe_interval(check.estimate, check.unit)
    side = {"holds": "above", "fails": "below", "undecided": "not all on one side of"}[check.outcome]
    found = f"{check.words[:1].upper()}{check.words[1:]}: {format_signed(check.estimate.value, check.unit)}"
    return f"{found} ({interval}), {side} {format_threshold(check.threshold)}." if interval else f"{found}."


@dataclass(frozen=True)
class Claims:
    """Claims side by side. Their intervals share one axis, in points."""

    verdicts: Sequence[Verdict]

    def render(self) -> str:
        """Return a block for each claim."""
        low, high = self.choose_axis()
        return f'<div class="claims">{"".join(render_claim(verdict, low, high) for verdict in self.verdicts)}</div>'

    def choose_axis(self) -> tuple[float, float]:
        """Return the ends of an axis that holds all intervals and thresholds."""
        estimates = [verdict.estimate for verdict in self.verdicts if verdict.estimate is not None]
        ends = [end for each in estimates for end in (each.value, each.low, each.high) if end is not None]
        ends += [verdict.claim.threshold for verdict in self.verdicts]
        step = next((each for each in AXIS_STEPS if max(ends) - min(ends) <= MAX_AXIS_PARTS * each), AXIS_STEPS[-1])
        low, high = step * math.floor(min(ends) / step), step * math.ceil(max(ends) / step)
        return low, high if high > low else low + step


def render_claim(verdict: Verdict, low: float, high: float) -> str:
    """Return a claim: name and verdict, rule, interval, and numbers."""
    claim = verdict.claim
    badge = f'<span class="verdict {STYLES[verdict.outcome]}">{WORDS[verdict.outcome]}</span>'
    who = f'<div class="who"><h3>{escape(claim.name)}</h3>{badge}</div>'
    rule = f'<p class="small quiet">{escape(claim.measured)}.</p>'
    numbers = f'<p class="small num-line">{describe_numbers(verdict)}</p>'
    return f'<div class="claim">{who}{rule}{render_measure(verdict, low, high)}{numbers}</div>'


def render_measure(verdict: Verdict, low: float, high: float) -> str:
    """Return the interval of a claim on the shared axis, with its threshold."""
    estimate, threshold = verdict.estimate, verdict.claim.threshold
    if estimate is None:
        return f'<p class="unavailable">{escape(verdict.reason)}</p>'

    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}"

    start, end = (estimate.value if each is None else each for each in (estimate.low, estimate.high))
    interval = describe_interval(estimate, verdict.claim.unit) or "none"
    value = format_signed(estimate.value, verdict.claim.unit)
    label = f"{value} {verdict.claim.unit}, interval {interval}, threshold {format_threshold(threshold)}"
    places = f"--lo:{place(start)};--mid:{place(estimate.value)};--hi:{place(end)}"
    tick = f'<i style="--at:{place(threshold)}"></i>'
    bar = f'<div class="interval" role="img" aria-label="{escape(label)}" style="{places}">{tick}</div>'
    ends = "".join(
        f'<span style="--x:{at}">{format_threshold(value)}</span>'
        for at, value in ((0, low), (100, high))
        if value != threshold
    )
    marks = f'{ends}<span class="thr" style="--x:{place(threshold)}">{format_threshold(threshold)}</span>'
    return f'<div class="measure">{bar}<div class="scale" aria-hidden="true">{marks}</div></div>'


def describe_numbers(verdict: Verdict) -> str:
    """Return value and intervals of a claim as HTML."""
    if verdict.estimate is None:
        return ""
    unit, interval = verdict.claim.unit, describe_interval(verdict.estimate, verdict.claim.unit)
    seeds = "1 seed" if verdict.num_seeds == 1 else f"{verdict.num_seeds} seeds"
    words = f"95 % interval {interval} over {seeds}" if interval else "one seed gives no interval"
    checks = " ".join(map(describe_check, verdict.checks))
    return f"<b>{format_signed(verdict.estimate.value, unit)}</b> {unit}, {escape(f'{words}. {checks}')}"

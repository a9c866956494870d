"""Claims with their verdicts on a study's page: each with its interval against its threshold, those of a unit on one axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitrine.core.page_parts import escape
from vitrine.evaluation.intervals import Estimate
from vitrine.studies.claims import Check, Outcome, Unit, Verdict

WORDS: dict[Outcome, str] = {"holds": "Holds", "fails": "Does not hold", "undecided": "Undecided"}
STYLES: dict[Outcome, str] = {"holds": "holds", "fails": "fails", "undecided": "open"}
DIGITS: dict[Unit, int] = {"points": 1, "logits": 2, "times": 2}
AXIS_STEPS = (1, 2, 5, 10, 20, 50)  # points, or doublings, that the ends of the axis are multiples of
MAX_AXIS_PARTS = 6
MINUS = "\u2212"


def format_signed(value: float, unit: Unit) -> str:
    """Format a difference with its sign, e.g. +34.4 points."""
    text = f"{abs(value):.{DIGITS[unit]}f}"
    return text if float(text) == 0 else f"{'+' if value > 0 else MINUS}{text}"


def format_value(value: float, unit: Unit) -> str:
    """Format a value of a claim: a difference with its sign, a ratio without one, e.g. 1.34 times."""
    return f"{value:.{DIGITS[unit]}f}" if unit == "times" else format_signed(value, unit)


def format_threshold(value: float) -> str:
    """Format a threshold, e.g. -1 with a true minus."""
    return f"{value:g}".replace("-", MINUS)


def describe_interval(estimate: Estimate, unit: Unit) -> str:
    """Return the interval in words; empty if there is none."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{format_value(estimate.low, unit)} to {format_value(estimate.high, unit)}"


def describe_check(check: Check) -> str:
    """Return a further interval as a sentence, with the side of its threshold that it lies on."""
    interval = describe_interval(check.estimate, check.unit)
    side = {"holds": "above", "fails": "below", "undecided": "not all on one side of"}[check.outcome]
    found = f"{check.words[:1].upper()}{check.words[1:]}: {format_value(check.estimate.value, check.unit)}"
    return f"{found} ({interval}), {side} {format_threshold(check.threshold)}." if interval else f"{found}."


@dataclass(frozen=True)
class Axis:
    """The axis of the intervals of one unit: linear, and logarithmic for ratios, so that half and twice are as far from 1."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value is on the axis, in percent."""
        low, high, at = map(math.log, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        return 100 * (at - low) / (high - low)


@dataclass(frozen=True)
class Claims:
    """Claims side by side. The intervals of a unit share one axis."""

    verdicts: Sequence[Verdict]

    def render(self) -> str:
        """Return a block for each claim."""
        units: set[Unit] = {verdict.claim.unit for verdict in self.verdicts}
        axes = {unit: self.choose_axis(unit) for unit in units}
        blocks = (render_claim(verdict, axes[verdict.claim.unit]) for verdict in self.verdicts)
        return f'<div class="claims">{"".join(blocks)}</div>'

    def choose_axis(self, unit: Unit) -> Axis:
        """Return an axis that holds all intervals and thresholds of a unit."""
        verdicts = [verdict for verdict in self.verdicts if verdict.claim.unit == unit]
        estimates = [verdict.estimate for verdict in verdicts if verdict.estimate is not None]
        ends = [end for each in estimates for end in (each.value, each.low, each.high) if end is not None]
        ends += [verdict.claim.threshold for verdict in verdicts]
        if unit != "times":
            return Axis(*choose_ends(ends))
        low, high = choose_ends([math.log2(end) for end in ends])
        return Axis(2.0**low, 2.0**high, is_log=True)


def choose_ends(values: Sequence[float]) -> tuple[float, float]:
    """Return round ends of an axis that holds all values."""
    step = next((each for each in AXIS_STEPS if max(values) - min(values) <= MAX_AXIS_PARTS * each), AXIS_STEPS[-1])
    low, high = step * math.floor(min(values) / step), step * math.ceil(max(values) / step)
    return low, high if high > low else low + step


def render_claim(verdict: Verdict, axis: Axis) -> str:
    """Return a claim: name and verdict, rule, interval, and numbers."""
    claim = verdict.claim
    badge = f'<span class="verdict {STYLES[verdict.outcome]}">{WORDS[verdict.outcome]}</span>'
    who = f'<div class="who"><h3>{escape(claim.name)}</h3>{badge}</div>'
    rule = f'<p class="small quiet">{escape(claim.measured)}.</p>'
    numbers = f'<p class="small num-line">{describe_numbers(verdict)}</p>'
    return f'<div class="claim">{who}{rule}{render_measure(verdict, axis)}{numbers}</div>'


def render_measure(verdict: Verdict, axis: Axis) -> str:
    """Return the interval of a claim on the shared axis, with its threshold."""
    estimate, threshold = verdict.estimate, verdict.claim.threshold
    if estimate is None:
        return f'<p class="unavailable">{escape(verdict.reason)}</p>'

    def place(value: float) -> str:
        return f"{axis.place(value):.2f}"

    start, end = (estimate.value if each is None else each for each in (estimate.low, estimate.high))
    interval = describe_interval(estimate, verdict.claim.unit) or "none"
    value = format_value(estimate.value, verdict.claim.unit)
    label = f"{value} {verdict.claim.unit}, interval {interval}, threshold {format_threshold(threshold)}"
    places = f"--lo:{place(start)};--mid:{place(estimate.value)};--hi:{place(end)}"
    tick = f'<i style="--at:{place(threshold)}"></i>'
    bar = f'<div class="interval" role="img" aria-label="{escape(label)}" style="{places}">{tick}</div>'
    ends = "".join(
        f'<span style="--x:{at}">{format_threshold(value)}</span>'
        for at, value in ((0, axis.low), (100, axis.high))
        if value != threshold
    )
    marks = f'{ends}<span class="thr" style="--x:{place(threshold)}">{format_threshold(threshold)}</span>'
    return f'<div class="measure">{bar}<div class="scale" aria-hidden="true">{marks}</div></div>'


def describe_numbers(verdict: Verdict) -> str:
    """Return value and intervals of a claim as HTML."""
    if verdict.estimate is None:
        return ""
    unit, interval = verdict.claim.unit, describe_interval(verdict.estimate, verdict.claim.unit)
    words = f"95 % interval {interval} over {verdict.describe_seeds()}" if interval else "one seed gives no interval"
    checks = " ".join(map(describe_check, verdict.checks))
    return f"<b>{format_value(verdict.estimate.value, unit)}</b> {unit}, {escape(f'{words}. {checks}')}"

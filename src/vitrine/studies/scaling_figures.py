"""Figures of `scaling`: accuracy by compute, like figure 5 of arXiv:2010.11929, and by time, with the fitted frontiers."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

import numpy as np

from vitrine.core.console import format_number
from vitrine.evaluation.intervals import Estimate
from vitrine.studies.claims import student_interval
from vitrine.studies.frontier import find_frontier
from vitrine.studies.runner import RunOutcome
from vitrine.studies.scaling_grid import FAMILIES, STYLES, Family
from vitrine.studies.scaling_readings import COMPUTE, TIME, FamilyRuns, Measure, collect_family, list_whole_seeds, read_cost
from vitrine.studies.size_figures import format_mean
from vitrine.studies.study import StudyFigure, StudyPlan
from vitrine.training.metrics_log import label_ends, label_top_tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NUM_PLACES = 40  # at which a fitted line and its band are drawn
MAX_TICKS = 8


def describe_frontiers(plan: StudyPlan, outcomes: Sequence[RunOutcome], measure: Measure) -> StudyFigure:
    """Return the figure of accuracy by compute or time; that by compute has a table of all numbers."""
    is_first = measure is COMPUTE
    return StudyFigure(
        draw=lambda figure: draw_frontiers(figure, plan, outcomes, measure),
        alt=f"Accuracy on test images by {measure.name}. {'; '.join(describe_families(outcomes, measure))}.",
        look=f"Look at how far apart the lines of ViT and ResNet are from left to right: that is the ratio of {measure.unit}.",
        caption=(
            "Each dot is one run. A line is the frontier of a family, fitted to the runs that no cheaper one matches, mean "
            "over seeds; the band is its 95 % interval over seeds."
        ),
        columns=("model", "MMACs", "exaFLOPs", "seconds", "accuracy, %") if is_first else (),
        rows=tuple(format_model(outcomes, name) for name in list_models(outcomes)) if is_first else (),
    )


def describe_families(outcomes: Sequence[RunOutcome], measure: Measure) -> list[str]:
    """Return ranges of cost and accuracy of each family in words."""
    words = []
    for family in FAMILIES:
        points = list_points(outcomes, family, measure)
        if points:
            costs, accuracies = zip(*points, strict=True)
            words.append(
                f"{family}: {min(accuracies):.0f} to {max(accuracies):.0f} percent, {min(costs):.3g} to {max(costs):.3g} "
                f"{measure.unit}"
            )
    return words


def list_models(outcomes: Sequence[RunOutcome]) -> list[str]:
    """Return the names of all models in the order of their runs."""
    return [*dict.fromkeys(each.run.columns["model"] for each in outcomes)]


def list_points(outcomes: Sequence[RunOutcome], family: Family, measure: Measure) -> list[tuple[float, float]]:
    """Return cost and accuracy in percent of every run of a family."""
    return [
        (read_cost(each, measure), 100 * each.reading["accuracy"])
        for each in outcomes
        if each.run.columns["family"] == family and each.reading is not None
    ]


def format_model(outcomes: Sequence[RunOutcome], name: str) -> tuple[str, ...]:
    """Return cost and accuracy of a model, means over its seeds with their spread."""
    runs = [each for each in outcomes if each.run.columns["model"] == name]
    seconds = [read_cost(each, TIME) for each in runs]
    spread = f" \u00b1 {stdev(seconds):.0f}" if len(seconds) > 1 else ""
    return (
        name,
        f"{runs[0].run.columns['macs'] / 1e6:,.3g}",
        format_number(read_cost(runs[0], COMPUTE)),
        f"{fmean(seconds):.0f}{spread}",
        format_mean([each.reading["accuracy"] for each in runs if each.reading is not None]),
    )


def draw_frontiers(figure: "Figure", plan: StudyPlan, outcomes: Sequence[RunOutcome], measure: Measure) -> None:
    """Draw every run as a dot, and the fitted frontier of each family as a line with its band and name."""
    panel, ends = figure.add_subplot(), []
    panel.set_xscale("log")
    for family in FAMILIES:
        colour, marker = STYLES[family]
        points = list_points(outcomes, family, measure)
        if not points:
            continue
        panel.plot(*zip(*points, strict=True), color=colour, linestyle="", marker=marker, markersize=4)
        seeds = list_whole_seeds(plan, outcomes, [family])
        line = fit_line(collect_family(outcomes, family, seeds, measure)) if seeds else []
        ends.append((draw_line(panel, line, colour) if line else max(points)[1], family, colour))
    panel.set_title("Accuracy on test images")
    panel.set_xlabel(f"{measure.name}, {measure.unit} (log scale)")
    label_top_tick(panel, "\u202f%")
    label_costs(panel)
    label_ends(panel, ends)


def draw_line(panel: "Axes", line: Sequence[tuple[float, Estimate]], colour: str) -> float:
    """Draw a fitted frontier with its band, and return the accuracy at its end."""
    costs, values = [cost for cost, _ in line], [each.value for _, each in line]
    panel.plot(costs, values, color=colour)
    low = [each.low for _, each in line if each.low is not None]
    high = [each.high for _, each in line if each.high is not None]
    if low and high:  # one seed has no band
        panel.fill_between(costs, low, high, color=colour, alpha=0.12, linewidth=0)
    return values[-1]


def fit_line(runs: FamilyRuns) -> list[tuple[float, Estimate]]:
    """Return the accuracy in percent of the fitted frontier by cost, mean over seeds with its interval; empty without a fit.

    The mean is that of logits. Seeds without a fit are left out.
    """
    frontier = runs.fit()
    if not frontier.is_fitted.any():
        return []
    costs = runs.cost[find_frontier(runs.cost, runs.logits)]
    places = np.linspace(np.log(costs.min()), np.log(costs.max()), NUM_PLACES)
    logits = frontier.predict(places)[frontier.is_fitted]  # (S, X)
    estimates = [student_interval(column.tolist()) for column in logits.T]
    return [(float(np.exp(place)), to_percent(each)) for place, each in zip(places, estimates, strict=True)]


def to_percent(logit: Estimate) -> Estimate:
    """Return the accuracy in percent of a logit."""
    from scipy.special import expit

    value, low, high = (None if each is None else 100 * float(expit(each)) for each in (logit.value, logit.low, logit.high))
    assert value is not None
    return Estimate(value, low, high)


def label_costs(panel: "Axes") -> None:
    """Label the log axis of costs with round numbers, not more than there is room for."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = panel.get_xlim()
    choices = (LogLocator(subs=subs).tick_values(low, high) for subs in ((1, 2, 5), (1, 3), (1,)))
    inside = [[tick for tick in ticks if low <= tick <= high] for ticks in choices]
    ticks = next((each for each in inside if len(each) <= MAX_TICKS), inside[-1])
    panel.set_xticks(ticks, [format_cost(tick) for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_xlim(low, high)


def format_cost(cost: float) -> str:
    """Format a round number: 2e-7, 0.5, 200, 1,000."""
    return f"{cost:,.0f}" if cost >= 1 else f"{cost:g}".replace("e-0", "e-")

"""Figures of `data-size`: accuracy by number of images, like figure 4 of arXiv:2010.11929, and the gap in several measures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrine.core.figures import INK_2, VIT
from vitrine.studies.answers import Readings
from vitrine.studies.data_size_grid import Grid, GridModel
from vitrine.studies.data_size_readings import MAIN, collect
from vitrine.studies.page_claims import format_signed
from vitrine.studies.runner import RunOutcome
from vitrine.studies.size_figures import (
    Curve,
    Points,
    describe_means,
    draw_accuracies,
    format_gap,
    format_mean,
    list_accuracies,
    list_amounts,
    set_sizes,
)
from vitrine.studies.study import StudyFigure, StudyPlan
from vitrine.training.metrics_log import label_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS = "images to train on"
OTHER_STYLES = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))  # of lines that are not the study's own


def describe_accuracies(plan: StudyPlan, grid: Grid, outcomes: Sequence[RunOutcome]) -> StudyFigure:
    """Return the figure of accuracies with the same settings on every number of images."""
    readings, amounts = collect(outcomes, MAIN), list_amounts(outcomes)
    curves = [build_curve(model) for model in grid.models]
    words = describe_means(readings, [curve.name for curve in curves])
    return StudyFigure(
        draw=lambda figure: draw_accuracies(figure, curves, readings, 100 / plan.num_classes, amounts, AXIS),
        alt=f"Accuracy on test images. {words}, at {', '.join(amounts.values())} images.",
        look="Look at how the distance between ViT and ResNet changes from left to right.",
        caption=(
            "Each dot is one run on images that it has not trained on; lines join the means over seeds. The dotted line is "
            "guessing."
        ),
        columns=("images", *(f"{model.name}, %" for model in grid.models), " minus ".join(grid.compared)),
        rows=tuple(format_size(grid, readings, size, amount) for size, amount in amounts.items()),
    )


def build_curve(model: GridModel) -> Curve:
    """Build how the line of a model is drawn."""
    return Curve(name=model.name, colour=model.colour, marker=model.marker, line_width=model.line_width)


def format_size(grid: Grid, readings: Readings, num_images: int, amount: str) -> tuple[str, ...]:
    """Return the means of all models on a number of images, with their spread over seeds, and the gap of the compared ones."""
    means = [format_mean(list_accuracies(readings, model.name, num_images)) for model in grid.models]
    return amount, *means, format_gap(readings, grid.compared, num_images)


def describe_gaps(gaps: Sequence[tuple[str, Points]], outcomes: Sequence[RunOutcome]) -> StudyFigure:
    """Return the figure of the mean gap by number of images, in the study's own and in other measures."""
    words = "; ".join(
        f"{name}: {', '.join(format_signed(value, 'points') for _, value in points)} points" for name, points in gaps
    )
    return StudyFigure(
        draw=lambda figure: draw_gaps(figure, gaps, list_amounts(outcomes)),
        alt=f"Accuracy of ViT minus ResNet. {words}.",
        look="Look at the right ends: above 0 the ViT is ahead.",
        caption=(
            "Mean over seeds of the accuracy of the ViT minus that of the ResNet. The solid line is what the verdicts rest on; "
            "the others measure the same models in other ways."
        ),
    )


def draw_gaps(figure: "Figure", gaps: Sequence[tuple[str, Points]], amounts: dict[int, str]) -> None:
    """Draw the mean gap of each measure as a line with its name at the end."""
    panel, ends = figure.add_subplot(), []
    others = iter(OTHER_STYLES)
    for name, points in gaps:
        style = "-" if name == MAIN.name else next(others)
        colour = VIT if name == MAIN.name else INK_2
        if points:
            panel.plot(*zip(*points, strict=True), color=colour, linestyle=style, marker="o", markersize=4)
            ends.append((points[-1][1], name, colour))
    panel.axhline(0, color=INK_2, linewidth=0.8)
    panel.set_title("ViT minus ResNet, points")
    set_sizes(panel, amounts, AXIS)
    label_ends(panel, ends)

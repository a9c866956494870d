"""Figures of `data-size`: accuracy by number of images, like figure 4 of arXiv:2010.11929, and the gap in several measures."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from vitrine.core.figures import INK_2, VIT
from vitrine.core.page_parts import THIN_SPACE
from vitrine.studies.data_size_grid import Grid, GridModel
from vitrine.studies.data_size_readings import MAIN, Readings, collect
from vitrine.studies.page_claims import format_signed
from vitrine.studies.runner import RunOutcome
from vitrine.studies.study import StudyFigure, StudyPlan
from vitrine.training.metrics_log import label_ends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = list[tuple[int, float]]
"""Values by number of images."""
OTHER_STYLES = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))  # of lines that are not the study's own


def describe_accuracies(plan: StudyPlan, grid: Grid, outcomes: Sequence[RunOutcome]) -> StudyFigure:
    """Return the figure of accuracies with the same settings on every number of images."""
    readings, amounts = collect(outcomes, MAIN), list_amounts(outcomes)
    means = {model.name: compute_means(readings, model) for model in grid.models}
    words = "; ".join(
        f"{name}: {', '.join(f'{100 * mean:.0f}' for _, mean in points)} percent" for name, points in means.items() if points
    )
    return StudyFigure(
        draw=lambda figure: draw_accuracies(figure, 100 / plan.num_classes, grid, readings, amounts),
        alt=f"Accuracy on test images. {words}, at {', '.join(amounts.values())} images.",
        look="Look at how the distance between ViT and ResNet changes from left to right.",
        caption=(
            "Each dot is one run on images that it has not trained on; lines join the means over seeds. The dotted line is "
            "guessing."
        ),
        columns=("images", *(f"{model.name}, %" for model in grid.models), " minus ".join(grid.compared)),
        rows=tuple(format_size(grid, readings, size, amount) for size, amount in amounts.items()),
    )


def format_size(grid: Grid, readings: Readings, num_images: int, amount: str) -> tuple[str, ...]:
    """Return the means of all models on a number of images, with their spread over seeds, and the gap of the compared ones."""
    found = {model.name: list_accuracies(readings, model, num_images) for model in grid.models}
    first, second = (found[name] for name in grid.compared)
    gap = format_signed(100 * (fmean(first) - fmean(second)), "points") if first and second else ""
    return amount, *map(format_mean, found.values()), gap


def list_accuracies(readings: Readings, model: GridModel, num_images: int) -> list[float]:
    """Return the accuracies of a model on a number of images, seed by seed."""
    return [reading["accuracy"] for (name, size, _), reading in readings.items() if (name, size) == (model.name, num_images)]


def format_mean(values: Sequence[float]) -> str:
    """Format the mean of some accuracies in percent, with their standard deviation if there are several."""
    if not values:
        return ""
    return f"{100 * fmean(values):.1f}" + (f" \u00b1 {100 * stdev(values):.1f}" if len(values) > 1 else "")


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


def compute_means(readings: Readings, model: GridModel) -> Points:
    """Return the mean accuracy of a model over the seeds, by number of images."""
    sizes = sorted({size for name, size, _ in readings if name == model.name})
    return [(size, fmean(list_accuracies(readings, model, size))) for size in sizes]


def list_amounts(outcomes: Sequence[RunOutcome]) -> dict[int, str]:
    """Return the numbers of images in words: the last may be fresh ones."""
    return dict(sorted({each.run.columns["num_images"]: each.run.columns["amount"] for each in outcomes}.items()))


def draw_accuracies(figure: "Figure", guessing: float, grid: Grid, readings: Readings, amounts: dict[int, str]) -> None:
    """Draw every run as a dot, and the means of each model as a line with its name at the end."""
    panel, ends = figure.add_subplot(), []
    for model in grid.models:
        means = compute_means(readings, model)
        if not means:
            continue
        sizes, values = zip(*means, strict=True)
        accuracies = [100 * value for value in values]
        panel.plot(sizes, accuracies, color=model.colour, linewidth=model.line_width)
        ends.append((accuracies[-1], model.name, model.colour))
        dots = [(size, 100 * reading["accuracy"]) for (name, size, _), reading in readings.items() if name == model.name]
        panel.plot(*zip(*dots, strict=True), color=model.colour, linestyle="", marker=model.marker, markersize=4)
    panel.axhline(guessing, color=INK_2, linewidth=0.8, linestyle=":")
    panel.set_title("Accuracy on test images")
    panel.set_ylim(0, 100)
    panel.set_yticks(range(0, 101, 25), ["0", "25", "50", "75", f"100{THIN_SPACE}%"])
    set_sizes(panel, amounts)
    label_ends(panel, ends)


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
    set_sizes(panel, amounts)
    label_ends(panel, ends)


def set_sizes(panel: "Axes", amounts: dict[int, str]) -> None:
    """Label the axis of the numbers of images."""
    panel.set_xscale("log")
    panel.set_xticks([*amounts], [*amounts.values()])
    panel.minorticks_off()
    panel.set_xlabel("images to train on (log scale)")

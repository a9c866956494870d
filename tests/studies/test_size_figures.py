"""Figures of accuracy by number of images: the means that are drawn."""

from typing import Any

import pytest
from matplotlib.figure import Figure

from vitrine.studies.size_figures import (
    Curve,
    choose_floor,
    compute_means,
    describe_means,
    draw_accuracies,
    format_gap,
    format_mean,
    set_sizes,
)


def read(accuracy: float) -> dict[str, Any]:
    return {"accuracy": accuracy, "num_images": 10}


READINGS = {("ViT", 400, 0): read(0.9), ("ViT", 20, 0): read(0.2), ("ViT", 20, 1): read(0.4), ("ResNet", 20, 0): read(0.8)}


def test_means_are_over_seeds_in_the_order_of_the_numbers_of_images() -> None:
    assert compute_means(READINGS, "ViT") == [(20, pytest.approx(0.3)), (400, 0.9)]
    assert describe_means(READINGS, ["ViT", "hybrid", "ResNet"]) == "ViT: 30, 90 percent; ResNet: 80 percent"


def test_means_have_their_spread() -> None:
    assert (format_mean([0.2, 0.4]), format_mean([0.5]), format_mean([])) == ("30.0 \u00b1 14.1", "50.0", "")


def test_gaps_are_of_the_seeds_that_both_models_have() -> None:
    """ViT has seed 1 too, on which the ResNet has failed."""
    assert format_gap(READINGS, ("ViT", "ResNet"), 20) == "\u221260.0"
    assert format_gap(READINGS, ("ResNet", "ViT"), 20) == "+60.0"
    assert format_gap(READINGS, ("ViT", "ResNet"), 400) == ""


def test_a_curve_has_a_dot_for_each_run_and_a_line_through_the_means() -> None:
    figure = Figure()
    hollow = Curve(name="ViT", colour="#112233", line_style=":", is_hollow=True, label_colour="#445566")
    curves = [hollow, Curve(name="ResNet", colour="#778899"), Curve(name="hybrid", colour="#778899")]
    draw_accuracies(figure, curves, READINGS, 25.0, {20: "twenty", 400: "all"}, "labelled images")
    (panel,) = figure.axes
    line, dots = [each for each in panel.get_lines() if each.get_color() == "#112233"]
    assert (line.get_linestyle(), list(line.get_ydata())) == (":", [pytest.approx(30), pytest.approx(90)])
    assert (dots.get_markerfacecolor(), len(dots.get_ydata())) == ("none", 3)
    assert {text.get_text(): text.get_color() for text in panel.texts} == {"ViT": "#445566", "ResNet": "#778899"}
    assert (panel.get_xscale(), panel.get_xlabel()) == ("log", "labelled images (log scale)")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["twenty", "all"]


@pytest.mark.parametrize(("lowest", "floor"), [(0.0, 0), (0.24, 0), (0.3, 25), (0.76, 75), (1.0, 75)])
def test_the_axis_starts_below_all_runs(lowest: float, floor: int) -> None:
    readings = {("ViT", 20, 0): read(1.0), ("ViT", 20, 1): read(lowest)}
    assert choose_floor(readings) == floor
    figure = Figure()
    draw_accuracies(figure, [Curve(name="ViT", colour="#112233")], readings, 10.0, {20: "20"}, "images", floor)
    (panel,) = figure.axes
    assert panel.get_ylim() == (floor, 100)
    assert len(panel.get_lines()) == (3 if floor == 0 else 2)  # guessing is drawn where it is seen


@pytest.mark.parametrize(("width", "labels"), [(7.2, ["512", "32,768", "fresh"]), (3.5, ["512", "33k", "fresh"])])
def test_numbers_of_images_are_short_where_there_is_little_room(width: float, labels: list[str]) -> None:
    panel = Figure(figsize=(width, 3)).add_subplot()
    set_sizes(panel, {512: "512", 32_768: "32,768", 131_072: "fresh"}, "images")
    assert [label.get_text() for label in panel.get_xticklabels()] == labels

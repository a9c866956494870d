"""Figures of a fit: the power law in closed form, axes that hold everything, both widths."""

import numpy as np
import pytest

from tests.pages import parse
from vitrine.core.figures import draw_svg
from vitrine.evaluation.calibration import compute_coverage
from vitrine.evaluation.intervals import Estimate
from vitrine.fitting.learning_curve import LearningCurve
from vitrine.fitting.page_figures import (
    draw_coverage,
    draw_learning_curve,
    follow_law,
    format_per_class,
    list_ends,
    set_accuracy_axis,
)

CURVE = LearningCurve(
    images_per_class=(2.0, 4.0, 8.0, 12.0, 16.0),
    accuracies=tuple(Estimate(value, value - 0.03, value + 0.03) for value in (0.6, 0.7, 0.8, 0.85, 0.88)),
    doubled_images_per_class=40.0,
    doubled=Estimate(0.92, 0.9, 0.94),
    gain=Estimate(0.02, 0.01, 0.03),
)


def test_errors_follow_a_power_law() -> None:
    sizes = np.array([10.0, 20.0, 40.0])
    assert follow_law((10, 20), (0.6, 0.8), sizes) == pytest.approx([0.6, 0.8, 0.9])  # each doubling halves the error
    assert np.isfinite(follow_law((10, 20), (0.9, 1.0), sizes)).all()


@pytest.mark.parametrize(("width", "words"), [(7.2, "twice as many"), (3.5, "twice")])
def test_the_curve_names_now_and_twice_as_many(width: float, words: str) -> None:
    text = parse(draw_svg(lambda figure: draw_learning_curve(figure, CURVE), width, 3.0)).text
    assert "now" in text
    assert words in text
    assert all(f" {tick} " in text for tick in ("2", "4", "8", "12", "20", "40"))


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_curve_at_an_end_of_the_scale(value: float) -> None:
    flat = Estimate(value, value, value)
    curve = LearningCurve((2.0, 4.0), (flat, flat), 10.0, flat, Estimate(0.0, 0.0, 0.0))
    assert draw_svg(lambda figure: draw_learning_curve(figure, curve), 3.5, 3.0).startswith("<svg")


@pytest.mark.parametrize("num_images", [1, 2, 300])
def test_coverage_of_any_number_of_images(num_images: int) -> None:
    random = np.random.default_rng(0)
    confidences = random.random(num_images)
    coverage = compute_coverage(confidences, random.random(num_images) < confidences)
    svg = draw_svg(lambda figure: draw_coverage(figure, coverage, num_images, (0.5, 0.9), "unsure below 0.5"), 7.2, 3.0)
    assert "unsure below 0.5" in parse(svg).text


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.98, 1.0), (0.5, 0.5), (0.0, 0.0), (0.71, 0.93)])
def test_the_axis_holds_both_ends(low: float, high: float) -> None:
    from matplotlib.figure import Figure

    panel = Figure().add_subplot()
    set_accuracy_axis(panel, low, high, "Accuracy")
    bottom, top = panel.get_ylim()
    assert bottom <= low <= high <= top
    assert 2 <= len(panel.get_yticks()) <= 8
    assert panel.get_yticklabels()[-1].get_text().endswith("%")


def test_without_an_interval_both_ends_are_the_value() -> None:
    assert list_ends(Estimate(0.5, None, None)) == (0.5, 0.5)


def test_photos_per_class_are_short() -> None:
    assert list(map(format_per_class, (1.0, 2.5, 5.99, 9.99, 19.98, 1234.5))) == ["1", "2.5", "6", "10", "20", "1,234"]

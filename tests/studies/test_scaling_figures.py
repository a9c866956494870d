"""Figures of scaling: dots, fitted frontiers with their bands, axes and numbers."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from tests.studies.test_scaling import SEEDS, make_outcomes, make_plan
from vitrine.core.figures import HYBRID, RESNET, VIT
from vitrine.studies.claims import student_interval
from vitrine.studies.scaling_figures import describe_frontiers, fit_line, format_cost, format_model, to_percent
from vitrine.studies.scaling_readings import COMPUTE, TIME, Measure, collect_family


@pytest.mark.parametrize("measure", [COMPUTE, TIME])
def test_every_run_is_a_dot_and_every_family_has_a_line_with_its_band(measure: Measure) -> None:
    plan = make_plan()
    figure = Figure()
    describe_frontiers(plan, make_outcomes(plan, ratio=2.0), measure).draw(figure)
    (panel,) = figure.axes
    assert panel.get_xscale() == "log"
    assert measure.unit in panel.get_xlabel()
    dots = {line.get_color(): len(line.get_xdata()) for line in panel.get_lines() if line.get_linestyle() == "None"}
    assert dots == {VIT: 18, RESNET: 18, HYBRID: 9}
    assert {line.get_color() for line in panel.get_lines() if line.get_linestyle() == "-"} == {VIT, RESNET, HYBRID}
    assert len([each for each in panel.collections if isinstance(each, PolyCollection)]) == 3
    assert {text.get_text() for text in panel.texts} == {"ViT", "ResNet", "hybrid"}


def test_one_seed_has_lines_without_bands() -> None:
    plan = make_plan((0,))
    figure = Figure()
    describe_frontiers(plan, make_outcomes(plan, ratio=2.0), COMPUTE).draw(figure)
    (panel,) = figure.axes
    assert len([line for line in panel.get_lines() if line.get_linestyle() == "-"]) == 3
    assert [each for each in panel.collections if isinstance(each, PolyCollection)] == []


def test_a_family_without_a_fit_has_dots_alone() -> None:
    plan = make_plan()
    outcomes = [each for each in make_outcomes(plan, ratio=2.0) if each.run.columns["model"] != "hybrid 4x1-1+24x2"]
    figure = Figure()
    describe_frontiers(plan, outcomes, COMPUTE).draw(figure)
    (panel,) = figure.axes
    assert HYBRID not in {line.get_color() for line in panel.get_lines() if line.get_linestyle() == "-"}
    assert "hybrid" in {text.get_text() for text in panel.texts}


def test_the_band_is_student_s_interval_of_the_logits_of_each_seed() -> None:
    runs = collect_family(make_outcomes(make_plan(), ratio=2.0), "ViT", SEEDS, COMPUTE)
    line = fit_line(runs)
    cost, found = line[-1]
    assert cost == pytest.approx(runs.cost.max())
    logits = runs.fit().predict(np.log([cost]))[:, 0]
    assert found == to_percent(student_interval(logits.tolist()))
    assert found.value == pytest.approx(100 / (1 + np.exp(-logits.mean())))


def test_the_table_has_means_with_their_spread() -> None:
    plan = make_plan()
    outcomes = make_outcomes(plan, ratio=2.0)
    row = format_model(outcomes, "ViT 28x2")
    accuracies = [
        100 * each.reading["accuracy"]
        for each in outcomes
        if each.reading is not None and each.run.columns["model"] == "ViT 28x2"
    ]
    assert row[:4] == ("ViT 28x2", "0.257", "2.021e-07", "5 \u00b1 0")
    assert row[4] == f"{np.mean(accuracies):.1f} \u00b1 {np.std(accuracies, ddof=1):.1f}"


@pytest.mark.parametrize(("cost", "text"), [(2e-7, "2e-7"), (5e-11, "5e-11"), (0.5, "0.5"), (200.0, "200"), (1000.0, "1,000")])
def test_costs_are_round_numbers(cost: float, text: str) -> None:
    assert format_cost(cost) == text

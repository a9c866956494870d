"""The report has every step, figure, cost and command, loads nothing from elsewhere, and its figures show the given numbers."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.demo.stage import make_checkpoint, make_images
from vitrine.demo import report
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, StepResult, plan_demo
from vitrine.demo.report import (
    COLOURS,
    COLUMNS,
    FONT_SIZE,
    compare_costs,
    draw_accuracies,
    draw_curves,
    draw_head_distances,
    format_rows,
    write_demo_report,
)
from vitrine.evaluation.intervals import Estimate, wilson_interval


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    make_images(tmp_path / "my <images>")
    make_checkpoint(tmp_path / "tiny")
    config = DemoConfig(out=tmp_path / "out", data=str(tmp_path / "my <images>"), model=str(tmp_path / "tiny"), steps=2)
    return plan_demo(config)


@pytest.fixture
def results(plan: Plan) -> list[StepResult]:
    """Make results of a finished demo, with the files that its steps write."""
    out = plan.config.out
    (out / "inspect").mkdir()
    for name in ("inspect/rollout.png", "inspect/positions-0.png", "distances.png"):
        draw_head_distances(np.ones((1, 1)), out / name)
    results = []
    for index, step in enumerate(plan.steps):
        if step.recipe is not None:
            (out / step.key).mkdir()
            (out / step.key / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
        measurements = {"accuracy": wilson_interval(0.5 + index / 100, 24), "num_parameters": 12_345, "macs": 1_500_000}
        measurements |= {"exaflops": 1.234e-8, "num_images": 64, "num_test_images": 24}
        more = {} if step.key == "inspect" else measurements
        results.append(StepResult(key=step.key, title=step.title, command=step.command, seconds=3.21, **more))
    return results


def test_rows_have_a_cell_for_each_column(results: list[StepResult]) -> None:
    rows = {row[0]: row for row in format_rows(results)}
    assert {len(row) for row in rows.values()} == {len(COLUMNS)}
    assert rows["transfer"] == ("transfer", "50.00 %", "31.43 .. 68.57 %", "3.2", "1.234e-08", "12,345", "1.5")
    assert rows["inspect"] == ("inspect", "", "", "3.2", "", "", "")


def test_page_has_all_results(plan: Plan, results: list[StepResult]) -> None:
    page = write_demo_report(plan, results)
    text = page.read_text()
    assert page == plan.config.out / "report.html"
    assert "24 training images of 3 classes, 24 test images" in text
    assert "to my &lt;images&gt;</title>" in text
    for result in results:
        assert html.escape(result.command) in text
        assert f"<td>{result.key}</td>" in text
    assert text.count("31.43 .. 68.57 %") == 2  # in the tables of accuracies and of costs
    assert (
        text.count("<img ") == text.count('src="data:image/png;base64,') == 5
    )  # accuracies, curves, and three of the inspection
    assert not re.search(r'(src|href)="(?!data:)', text)
    for name in ("accuracies.png", "training.png"):
        assert (plan.config.out / name).is_file()


def test_costs_are_relative_to_the_vit(results: list[StepResult]) -> None:
    macs = {"transfer": 1_000_000, "resnet": 590_000, "hybrid": 1_100_000}
    changed = [replace(result, macs=macs.get(result.key, result.macs)) for result in results]
    assert re.findall(r"\d+ %", compare_costs(changed)) == ["59 %", "110 %"]
    assert compare_costs([result for result in changed if result.key == "inspect"]) == ""


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    figures: list[Figure] = []
    monkeypatch.setattr(report, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def build_result(key: str, accuracy: Estimate | None) -> StepResult:
    return StepResult(key=key, title=key, command="", seconds=1.0, accuracy=accuracy)


def test_figure_of_accuracies_has_dots_and_intervals(drawn: list[Figure]) -> None:
    results = [build_result("transfer", Estimate(0.8, 0.7, 0.9)), build_result("scratch", Estimate(0.5, 0.4, 0.6))]
    draw_accuracies([*results, build_result("inspect", None)], Path("x.png"))
    (panel,) = drawn[0].axes
    lines = [list(map(float, line.get_xdata())) for line in panel.lines]
    assert lines == [pytest.approx(values) for values in ([70, 90], [80], [40, 60], [50])]
    assert [label.get_text() for label in panel.get_yticklabels()] == ["transfer", "scratch"]
    assert {line.get_color() for line in panel.lines} == {COLOURS["transfer"], COLOURS["scratch"]}


def test_figure_of_curves_has_the_losses(drawn: list[Figure]) -> None:
    records = [{"step": 10, "loss": 2.0}, {"step": 15, "val_top1": 0.5}, {"step": 20, "loss": None}, {"step": 30, "loss": 1.0}]
    draw_curves({"resnet": records, "hybrid": records[:1]}, Path("x.png"))
    (panel,) = drawn[0].axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines] == [
        ([10, 30], [2.0, 1.0]),
        ([10], [2.0]),
    ]
    assert [line.get_marker() for line in panel.lines] == ["", "o"]  # a single point needs a marker
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["resnet", "hybrid"]


def test_figure_of_distances_has_a_dot_for_each_head(drawn: list[Figure]) -> None:
    draw_head_distances(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), Path("x.png"))
    (panel,) = drawn[0].axes
    assert [list(line.get_ydata()) for line in panel.lines] == [[1, 4], [2, 5], [3, 6]]
    assert panel.yaxis.label.get_fontsize() == FONT_SIZE

"""The report has every step, figure, cost and command, loads nothing from elsewhere, and shows the given numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.demo.stage import make_checkpoint, make_images
from tests.pages import list_rows, read_page
from vitrine.core.figures import HYBRID, RESNET
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, StepResult, plan_demo
from vitrine.demo.report import (
    COLUMNS,
    compare_costs,
    describe_comparison,
    draw_losses,
    format_rows,
    write_demo_report,
)
from vitrine.evaluation.intervals import Estimate, wilson_interval
from vitrine.inspection.inspect_model import Inspection, inspect


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    make_images(tmp_path / "my <images>")
    make_checkpoint(tmp_path / "tiny")
    config = DemoConfig(out=tmp_path / "out", data=str(tmp_path / "my <images>"), model=str(tmp_path / "tiny"), steps=2)
    return plan_demo(config)


@pytest.fixture
def inspection(plan: Plan) -> Inspection:
    return inspect(plan.checkpoint, [*Path(plan.config.data, "test", "dark").iterdir()][:2], device="cpu")


@pytest.fixture
def results(plan: Plan) -> list[StepResult]:
    """Make results of a finished demo, with the files that its steps write."""
    results = []
    for index, step in enumerate(plan.steps):
        if step.recipe is not None:
            (plan.config.out / step.key).mkdir()
            (plan.config.out / step.key / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + "\n")
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


def test_page_has_all_results(plan: Plan, results: list[StepResult], inspection: Inspection) -> None:
    path = write_demo_report(plan, results, inspection)
    assert path == plan.config.out / "report.html"
    page = read_page(path, max_bytes=3_000_000)
    assert "my <images>" in page.one(kind="lede").text
    assert "24 images of 3 classes" in page.one(kind="lede").text
    tested = [result for result in results if result.accuracy is not None]
    rungs = page.one("header").one(kind="ladder").find("li")[:-1]  # the last is the axis
    assert [rung.one(kind="value").text for rung in rungs] == [f"{100 * each.accuracy.value:.1f}\u202f%" for each in tested]
    assert [row[0] for row in list_rows(page.find("table")[-1])] == [result.key for result in results]
    commands = [block.text for block in page.find("pre")]
    assert commands[:-1] == [result.command for result in results]
    assert len(page.find(kind="lens")) == 2
    assert len(page.find(kind="chart")) == 2  # losses, and the distances of the inspection


def test_costs_are_relative_to_the_vit(results: list[StepResult]) -> None:
    macs = {"transfer": 1_000_000, "resnet": 590_000, "hybrid": 1_100_000}
    changed = [replace(result, macs=macs.get(result.key, result.macs)) for result in results]
    assert re.findall(r"\d+ %", compare_costs(changed)) == ["59 %", "110 %"]
    assert compare_costs([result for result in changed if result.key == "inspect"]) == ""


def build_result(key: str, accuracy: Estimate | None) -> StepResult:
    return StepResult(key=key, title=key, command="", seconds=1.0, accuracy=accuracy)


def test_overlapping_intervals_decide_nothing() -> None:
    transfer = build_result("transfer", Estimate(0.8, 0.7, 0.9))
    apart, close = (build_result("scratch", estimate) for estimate in (Estimate(0.5, 0.4, 0.6), Estimate(0.7, 0.6, 0.8)))
    assert "helped" in describe_comparison([transfer, apart])
    assert "not surely" in describe_comparison([transfer, close])
    assert "harm" in describe_comparison([build_result("transfer", apart.accuracy), build_result("scratch", transfer.accuracy)])
    assert "%" not in describe_comparison([transfer])


def test_figure_of_losses_has_a_line_for_each_run() -> None:
    records = [{"step": 10, "loss": 2.0}, {"step": 15, "val_top1": 0.5}, {"step": 20, "loss": None}, {"step": 30, "loss": 1.0}]
    figure = Figure()
    draw_losses(figure, {"resnet": records, "hybrid": records[:1], "scratch": records[1:3]}, "Loss")
    (panel,) = figure.axes
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in panel.lines] == [
        ([10, 30], [2.0, 1.0]),
        ([10], [2.0]),
    ]
    assert [line.get_marker() for line in panel.lines] == ["", "o"]  # a single point needs a marker
    assert [line.get_color() for line in panel.lines] == [RESNET, HYBRID]
    assert {text.get_text() for text in panel.texts} == {"resnet", "hybrid"}

"""The report has every step, figure, cost and command, loads nothing from elsewhere, and shows the given numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.demo.stage import make_checkpoint, make_images
from tests.pages import list_rows, read_page
from vitrine.demo.config import DemoConfig
from vitrine.demo.plan import Plan, plan_demo
from vitrine.demo.report import COLUMNS, compare_costs, describe_demo, format_rows, write_demo_report
from vitrine.demo.results import StepResult
from vitrine.demo.steps import describe_step
from vitrine.evaluation.intervals import wilson_interval
from vitrine.inspection.inspect_model import Inspection, inspect


def make_plan(folder: Path, **changes: object) -> Plan:
    """Plan a demo on a folder of images."""
    make_images(folder / "my <images>")
    return plan_demo(DemoConfig(out=folder / "out", data=str(folder / "my <images>"), steps=2, **changes))


@pytest.fixture(params=["own models", "checkpoint"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    if request.param == "own models":
        return make_plan(tmp_path, quick=True)
    make_checkpoint(tmp_path / "tiny")
    return make_plan(tmp_path, model=str(tmp_path / "tiny"))


@pytest.fixture
def inspection(plan: Plan, tmp_path: Path) -> Inspection:
    checkpoint = make_checkpoint(tmp_path / "inspected")
    return inspect(str(checkpoint), [*Path(plan.config.data, "test", "dark").iterdir()][:2], device="cpu")


@pytest.fixture
def results(plan: Plan) -> list[StepResult]:
    """Make results of a finished demo, with the files that its steps write."""
    results = []
    for index, step in enumerate(plan.steps):
        if step.recipe is not None:
            (plan.config.out / step.key).mkdir()
            record = {"step": 1, "loss": 2.0, "accuracy": 0.5}
            (plan.config.out / step.key / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        measurements = {"accuracy": wilson_interval(0.5 + index / 100, 24), "num_parameters": 12_345, "macs": 1_500_000}
        measurements |= {"exaflops": 1.234e-8, "num_images": 64, "num_test_images": 24}
        more = {} if step.kind == "inspect" else measurements
        results.append(StepResult(**describe_step(step), seconds=3.21, **more))
    return results


def test_rows_have_a_cell_for_each_column(results: list[StepResult]) -> None:
    rows = format_rows(results)
    assert {len(row) for row in rows} == {len(COLUMNS)}
    assert rows[0][1:] == ("50.00 %", "31.43 .. 68.57 %", "3.2", "1.234e-08", "12,345", "1.5")
    assert rows[-1] == ("vit-inspect", "", "", "3.2", "", "", "")


def test_page_has_all_results(plan: Plan, results: list[StepResult], inspection: Inspection) -> None:
    path = write_demo_report(plan, results, inspection)
    assert path == plan.config.out / "report.html"
    page = read_page(path, max_bytes=3_000_000)
    assert "my <images>" in page.one(kind="lede").text
    assert "24 images of 3 classes" in page.one(kind="lede").text
    compared = [each.accuracy for each in results if each.kind in ("transfer", "scratch")]
    label = page.one("header").one(kind="chart").find("div")[0].attributes["aria-label"]
    assert re.findall(r"([\d.]+) percent", label) == [f"{100 * each.value:.1f}" for each in compared if each is not None]
    assert [row[0] for row in list_rows(page.find("table")[-1])] == [result.key for result in results]
    commands = {block.text for block in page.find("pre")}
    assert {result.command for result in results} < commands
    assert len(page.find(kind="lens")) == 2
    # accuracies, few-shot, losses, distances; before, the pre-training
    assert len(page.find(kind="chart")) == (6 if plan.config.model is None else 5)  # that of data-size too
    assert ("--quick" in page.one("header").text) == plan.config.quick


def test_the_lede_names_a_checkpoint(plan: Plan) -> None:
    assert ("tiny is fine-tuned" in describe_demo(plan)) == (plan.config.model is not None)


def test_costs_are_relative_to_the_vit(results: list[StepResult]) -> None:
    macs = {"vit": 1_000_000, "resnet": 590_000, "hybrid": 1_100_000}
    changed = [replace(result, macs=macs[result.family]) for result in results]
    assert re.findall(r"\d+ %", compare_costs(changed)) == ["59 %", "110 %"]
    assert compare_costs([result for result in changed if result.kind == "inspect"]) == ""

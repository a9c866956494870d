"""report.html of runs: numbers against summary.json and predictions of the saved model, runs without a test, failures."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.pages import Element, list_links, read_page
from tests.photos import draw_divided
from tests.run.test_build import make_masked
from tests.run.test_run import make_recipe, read_split, write_data
from vitrine.core.console import VitrineWarning
from vitrine.evaluation.intervals import wilson_interval
from vitrine.formats.load import load_checkpoint
from vitrine.recipe import Recipe
from vitrine.run import report as module
from vitrine.run import run as run_module
from vitrine.run.folder import RunFolder
from vitrine.run.report import format_hours
from vitrine.run.run import run_recipe
from vitrine.training.metrics_log import read_records


@pytest.fixture(autouse=True)
def generator() -> Iterator[None]:
    """Restore torch's generator, which runs seed."""
    with torch.random.fork_rng():
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


@pytest.fixture(scope="module")
def finished(source: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, Any]:
    out = tmp_path_factory.mktemp("runs") / "finished"
    with torch.random.fork_rng():
        return RunFolder(out), run_recipe(make_recipe(source), out, "shades <b>")


def find_section(page: Element, entry: str) -> Element:
    (key,) = [link.attributes["href"] for link in page.one("nav").find("a") if link.text == entry]
    (section,) = [each for each in page.find("section") if f"#{each.attributes['id']}" == key]
    return section


def list_entries(page: Element) -> list[str]:
    return [link.text for link in page.one("nav").find("a")]


def test_a_run_without_a_page_gets_one_later(source: str, tmp_path: Path) -> None:
    """And its result is that of a run with one."""
    recipe = make_recipe(source)
    plain = replace(recipe, report=replace(recipe.report, page=False))
    summary, folder = run_recipe(plain, tmp_path / "run"), RunFolder(tmp_path / "run")
    assert not folder.report.exists()
    assert not folder.curves.exists()
    run_recipe(plain, tmp_path / "run")
    assert not folder.report.exists()
    assert run_recipe(recipe, tmp_path / "run") == summary
    assert folder.report.is_file()
    assert folder.curves.is_file()


def test_headline_is_the_test_accuracy(finished: tuple[RunFolder, Any]) -> None:
    folder, summary = finished
    page = read_page(folder.report)
    interval = wilson_interval(summary.test_top1, 21)
    assert page.one(kind="value").text == f"{100 * summary.test_top1:.1f}%"
    assert f"{round(21 * summary.test_top1)} of 21 test images" in page.one("h1").text
    label = page.one("header").one(kind="interval").attributes["aria-label"]
    assert f"{100 * interval.low:.1f} to {100 * interval.high:.1f}" in label
    assert list_entries(page) == ["Learning curves", "Classes", "Confusions", "Surest mistakes", "Time and memory", "Commands"]


def test_classes_and_mistakes_are_those_of_the_saved_model(finished: tuple[RunFolder, Any], source: str) -> None:
    folder, _ = finished
    page = read_page(folder.report)
    images, labels = read_split(source, "test")
    with torch.no_grad():
        predicted = load_checkpoint(folder.model).model(images).argmax(dim=1)
    found = dict(
        zip(*([cell.text for cell in page.one(kind="classes").find(kind=kind)] for kind in ("name", "num")), strict=True)
    )
    hits = {str(label): int(((predicted == label) & (labels == label)).sum()) for label in range(4)}
    assert found == {label: f"{count} / {int((labels == int(label)).sum())}" for label, count in hits.items()}
    names = [name.text for name in page.one(kind="gallery").find("code")]
    wrong = torch.nonzero(predicted != labels)[:, 0].tolist()
    assert len(names) == min(10, len(wrong))
    assert {int(name.rpartition("[")[2].rstrip("]")) for name in names} <= set(wrong)


def test_curves_end_with_one_test_point(finished: tuple[RunFolder, Any]) -> None:
    folder, summary = finished
    charts = find_section(read_page(folder.report), "Learning curves").find(kind="chart")
    wide = charts[0].one(kind="wide-only").one("svg")
    texts = [text.text for text in wide.find("text")]
    assert texts.count(f"test {100 * summary.test_top1:.1f} %") == 1
    assert {"Loss", "Accuracy", "training", "val top-1"} <= set(texts)
    assert "val top-5" not in texts  # of four classes
    assert charts[0].one(kind="narrow-only").one("svg").attributes["width"] == "350"


def test_commands_have_the_paths_of_the_run(finished: tuple[RunFolder, Any], source: str) -> None:
    folder, _ = finished
    commands = [block.text for block in find_section(read_page(folder.report), "Commands").find("pre")]
    assert commands[0].split()[:3] == ["vitrine", "train", str(folder.recipe)]
    assert commands[1].split()[:4] == ["vitrine", "evaluate", str(folder.model), source]
    assert folder.recipe.is_file()
    assert folder.model.is_dir()


def test_results_do_not_depend_on_the_report(
    finished: tuple[RunFolder, Any], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, summary = finished
    monkeypatch.setattr(run_module, "write_run_report", lambda *arguments: None)
    other = run_recipe(make_recipe(source), tmp_path / "run")
    assert replace(other, device_hours=summary.device_hours) == summary
    weights = [load_checkpoint(path / "model").model.state_dict() for path in (folder.path, tmp_path / "run")]
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_failing_report_loses_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("cannot be drawn")

    monkeypatch.setattr(module, "build_page", fail)
    with pytest.warns(VitrineWarning, match="cannot be drawn"):
        summary = run_recipe(make_recipe(source), tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert folder.read_summary() == replace(summary, interrupted_by=None)
    assert folder.model.is_dir()
    assert not folder.report.exists()


def test_failing_predictions_lose_nothing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: run_module.Run) -> None:
        raise MemoryError

    monkeypatch.setattr(run_module.Run, "build_final_result", fail)
    with pytest.warns(VitrineWarning, match="MemoryError"):
        assert run_recipe(make_recipe(source), tmp_path / "run").is_finished
    assert RunFolder(tmp_path / "run").summary.is_file()


def test_a_finished_run_without_a_report_gets_one(finished: tuple[RunFolder, Any], source: str, tmp_path: Path) -> None:
    """As of a former version: from its files alone, without reading the test images again."""
    folder, summary = finished
    old = RunFolder(shutil.copytree(folder.path, tmp_path / "old"))
    old.report.unlink()
    before = old.curves.stat().st_mtime_ns
    run_recipe(make_recipe(source), old.path, "shades")
    page = read_page(old.report)
    assert page.one(kind="value").text == f"{100 * summary.test_top1:.1f}%"
    assert list_entries(page) == ["Learning curves", "Time and memory", "Commands"]
    assert len(page.find(kind="note")) == 1
    assert old.curves.stat().st_mtime_ns == before
    written = old.report.read_bytes()
    run_recipe(make_recipe(source), old.path, "shades")
    assert old.report.read_bytes() == written


def test_a_run_without_a_test_has_the_validation_accuracy(source: str, tmp_path: Path) -> None:
    summary = run_recipe(make_recipe(source, evaluation={"test": False}), tmp_path / "run")
    assert summary.test_top1 is None
    last = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if "val_top1" in record][-1]
    page = read_page(tmp_path / "run" / "report.html")
    assert page.one(kind="value").text == f"{100 * last['val_top1']:.1f}%"
    assert "of 23 validation" in page.one("h1").text


def test_a_folder_that_is_not_divided_shows_classes_and_mistakes_of_its_held_out_images(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    for index in range(40):
        path = tmp_path / "photos" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    summary = run_recipe(make_recipe(str(tmp_path / "photos"), data={"held_out": 0.5}), tmp_path / "run")
    assert (summary.test_top1, summary.watched_on) == (None, "held_out")
    page = read_page(tmp_path / "run" / "report.html")
    assert "of 20 validation" in page.one("h1").text
    assert "Classes" in list_entries(page)
    counts = [cell.text for cell in page.one(kind="classes").find(kind="num")]
    assert sum(int(count.partition("/")[2]) for count in counts) == 20
    hits = sum(int(count.partition("/")[0]) for count in counts)
    last = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if "held_out_top1" in record][-1]
    assert hits == round(20 * last["held_out_top1"])


def test_a_run_of_masked_patches_has_its_loss(source: str, tmp_path: Path) -> None:
    run_recipe(make_masked(source, total_steps=3), tmp_path / "run")
    last = [record for record in read_records(tmp_path / "run" / "metrics.jsonl") if "val_loss" in record][-1]
    page = read_page(tmp_path / "run" / "report.html")
    assert page.one(kind="value").text == f"{last['val_loss']:.3g}"
    assert list_entries(page) == ["Learning curves", "Time and memory", "Commands"]
    assert not page.find(kind="interval")


def write_manifest(folder: Path) -> str:
    """Write images of which some have two labels."""
    draw_divided(folder, ["a", "b"], 8, 4)
    lines = ["file,label,split"]
    for path in sorted(folder.rglob("*.png")):
        split, name = path.relative_to(folder).parts[:2]
        lines.append(f"{path.relative_to(folder)},{'a;b' if path.stem == '1' else name},{split}")
    (folder / "list.csv").write_text("\n".join(lines))
    return str(folder / "list.csv")


def make_photo_recipe(source: str, **changes: Any) -> Recipe:
    return make_recipe(source, model={"num_channels": 3}, total_steps=2, optim={"warmup_steps": 1}, **changes)


def test_a_run_on_several_labels(tmp_path: Path) -> None:
    recipe = make_photo_recipe(write_manifest(tmp_path / "photos"), supervised={"loss": "sigmoid"})
    summary = run_recipe(recipe, tmp_path / "run")
    page = read_page(tmp_path / "run" / "report.html")
    assert page.one(kind="value").text == f"{100 * summary.test_top1:.1f}%"
    assert page.find(kind="classes") == page.find(kind="pairs") == []


def test_links_lead_to_the_test_images(tmp_path: Path) -> None:
    draw_divided(tmp_path / "photos", ["a", "<b>", "c d"], 8, 4)
    run_recipe(make_photo_recipe(str(tmp_path / "photos")), tmp_path / "runs" / "run")
    page = read_page(tmp_path / "runs" / "run" / "report.html")
    links = list_links(page, tmp_path / "runs" / "run" / "report.html")
    assert links
    assert all(link.resolve().is_file() for link in links)
    assert all(link.resolve().is_relative_to(tmp_path / "photos" / "test") for link in links)
    inspect = [block.text for block in page.find("pre")][-1]
    assert str(links[0].resolve()) in inspect.replace("'", "")


@pytest.mark.parametrize(("hours", "words"), [(0.01, "36 s"), (0.5, "30.0 min"), (30.0, "30.0 h")])
def test_times_have_a_readable_unit(hours: float, words: str) -> None:
    assert format_hours(hours, "cpu") == f"{words} on cpu"

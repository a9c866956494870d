"""The picture shows the figures that were recorded, words stand clear of each other, and matplotlib is left as it was."""

import itertools
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from vitrine.train.plot import Record, collect_curves, draw_figure, is_accuracy, is_loss, plot_curves


def make_records(total_steps: int = 20_000, num_records: int = 100) -> list[dict[str, float | None]]:
    """Of a run that goes as most do, evaluated at each tenth record."""
    random = np.random.default_rng(0)
    records: list[dict[str, float | None]] = []
    for count in range(1, num_records + 1):
        share = count / num_records
        rate = 5e-4 * (1 + math.cos(math.pi * share))
        record: dict[str, float | None] = {"step": round(share * total_steps), "rate": rate, "grad_norm": 1.0}
        record |= {"loss": 1 + 6 * math.exp(-5 * share) + random.normal(0, 0.1), "accuracy": 0.8 * (1 - math.exp(-4 * share))}
        if count % 10 == 0:
            record |= {"held_out_loss": 1.2 + 6 * math.exp(-5 * share), "held_out_top1": 0.7 * share}
            record |= {"val_top1": 0.6 * share, "few_shot_5": 0.5 * share}
        records.append(record)
    return records


def draw(records: list[dict[str, float | None]], title: str = "ViT-S/16 on flowers") -> Figure:
    losses, rates = collect_curves(records, is_loss), collect_curves(records, lambda name: name == "rate")
    figure = draw_figure(losses, collect_curves(records, is_accuracy, scale=100.0), rates, title)
    FigureCanvasAgg(figure).draw()
    return figure


def read_lines(panel: Axes) -> dict[str, np.ndarray]:
    return {str(line.get_label()): np.array(line.get_xydata()) for line in panel.get_lines()}


def test_curves_are_the_recorded_figures() -> None:
    records = make_records()
    drawn = {axes.get_ylabel(): read_lines(axes) for axes in draw(records).axes}
    assert list(drawn["loss"]) == ["training", "held out"]
    assert list(drawn["accuracy (%)"]) == ["training", "held out top-1", "val top-1", "few-shot 5"]
    for panel, label, name, scale in [
        ("loss", "training", "loss", 1),
        ("loss", "held out", "held_out_loss", 1),
        ("learning rate", "learning rate", "rate", 1),
        ("accuracy (%)", "training", "accuracy", 100),
        ("accuracy (%)", "few-shot 5", "few_shot_5", 100),
    ]:
        expected = [(record["step"], record[name]) for record in records if name in record]
        np.testing.assert_allclose(drawn[panel][label], np.array(expected, dtype=float) * [1, scale])


def test_training_is_thin_and_evaluations_are_marked() -> None:
    training, *evaluated = draw(make_records()).axes[0].get_lines()
    assert training.get_marker() == ""
    assert all(line.get_marker() == "o" for line in evaluated)
    assert training.get_linewidth() < min(line.get_linewidth() for line in evaluated)


def list_boxes(figure: Figure) -> dict[str, Bbox]:
    """Where words stand, and panels."""
    boxes = {"title": figure.findobj(lambda artist: isinstance(artist, Text) and artist.get_text() == figure.get_suptitle())}
    for number, axes in enumerate(figure.axes):
        legend = axes.get_legend()
        boxes[f"{number} panel"], boxes[f"{number} y"] = [axes.patch], [axes.yaxis.label]
        if legend is not None:  # else it is the rate's, whose steps are those of the loss
            boxes[f"{number} x"], boxes[f"{number} legend"] = [axes.xaxis.label], [legend]
        for axis in (axes.yaxis, axes.xaxis) if legend is not None else (axes.yaxis,):
            low, high = axis.get_view_interval()
            ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            for tick in ticks:
                boxes[f"{number} {axis.axis_name} at {tick.get_loc()}"] = [
                    tick.label1 if tick.label1.get_visible() else tick.label2
                ]
    return {name: artists[0].get_window_extent() for name, artists in boxes.items()}


MORE = {"val_loss": 2.0, "val_top5": 0.9, "held_out_top5": 0.95, "few_shot_10": 0.4}


@pytest.mark.parametrize(
    ("total_steps", "title", "more"),
    [(100, "flowers", {}), (3_000_000, "flowers", MORE), (20_000, "a title of many words " * 12, MORE)],
)
def test_words_stand_clear_of_each_other(total_steps: int, title: str, more: dict[str, float]) -> None:
    figure = draw([record | (more if "val_top1" in record else {}) for record in make_records(total_steps)], title)
    boxes = list_boxes(figure)
    assert len(boxes) > 20
    for (name, box), (other_name, other) in itertools.combinations(boxes.items(), 2):
        if not (name.endswith("panel") and other_name.endswith("panel")):  # the rate's panel is that of the loss
            assert Bbox.intersection(box, other) is None, (name, other_name)
    outside = [name for name, box in boxes.items() if not (figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1)]
    outside += [name for name, box in boxes.items() if not (figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1)]
    assert outside == []


def test_the_picture_is_a_png_of_two_panels(tmp_path: Path) -> None:
    assert plot_curves(make_records(), tmp_path / "curves.png", "ViT-S/16 on flowers")
    with Image.open(tmp_path / "curves.png") as image:
        assert (image.format, image.size) == ("PNG", (1536, 576))
        pixels = np.array(image.convert("RGB"))
    for colour in ("#8395a7", "#c4c4c4", "#d1495b"):  # training, rate and held out, of which each has its pixels at the left
        wanted = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)])
        assert (np.abs(pixels[:, :768].astype(int) - wanted).sum(axis=2) < 12).sum() > 50
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]


def test_without_accuracies_there_is_one_panel(tmp_path: Path) -> None:
    wanted = ("step", "loss", "rate", "held_out_loss")
    records = [{name: value for name, value in record.items() if name in wanted} for record in make_records()]
    assert plot_curves(records, tmp_path / "curves.png", "masked patches")
    with Image.open(tmp_path / "curves.png") as image:
        assert image.size == (768, 576)
    assert {axes.get_ylabel() for axes in draw(records).axes} == {"loss", "learning rate"}


def test_without_losses_there_is_one_panel(tmp_path: Path) -> None:
    records: list[dict[str, float | None]] = [{"step": 5, "few_shot_5": 0.4}, {"step": 9, "few_shot_5": 0.5, "rate": 0.1}]
    assert plot_curves(records, tmp_path / "curves.png", "few-shot")
    assert [axes.get_ylabel() for axes in draw(records).axes] == ["accuracy (%)"]


@pytest.mark.parametrize("step", [0, 1000])
def test_one_record_is_seen(step: int) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 7.0, "accuracy": 0.0, "rate": 0.0}]
    for axes in draw(records).axes:
        assert [line.get_marker() for line in axes.get_lines()] == ["."]


@pytest.mark.parametrize("records", [[], [{"step": 1}], [{"step": 1, "grad_norm": 2.0}], [{"step": 1, "loss": None}]])
def test_nothing_to_show_is_no_file(records: list[Record], tmp_path: Path) -> None:
    assert not plot_curves(records, tmp_path / "curves.png", "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_what_was_not_finite_is_a_gap(bad: float | None) -> None:
    records: list[dict[str, float | None]] = [{"step": step, "loss": 1.0 + step} for step in range(40)]
    for record in records[10:15]:
        record["loss"] = bad
    training = read_lines(draw(records).axes[0])["training"]
    assert len(training) == 40
    assert np.isfinite(training[:, 1]).tolist() == [not 10 <= place < 15 for place in range(40)]


@pytest.mark.parametrize("title", ["from $5 to $6_ in 花 🌷", ""])
def test_any_title_will_do(title: str, tmp_path: Path) -> None:
    assert plot_curves([{"step": 1, "loss": 2.0}], tmp_path / "curves.png", title)


UNTOUCHED = """
import sys
from pathlib import Path
import vitrine.train.plot
assert "matplotlib" not in sys.modules
import matplotlib
before = matplotlib.rcParams.copy()
assert vitrine.train.plot.plot_curves([{"step": 1, "loss": 2.0}], Path(sys.argv[1]), "title")
assert dict.__eq__(matplotlib.rcParams, before)  # its own __eq__ asks for the backend, and so chooses one
assert "matplotlib.pyplot" not in sys.modules
"""


def test_matplotlib_is_left_as_it_was(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", UNTOUCHED, str(tmp_path / "curves.png")], check=True)

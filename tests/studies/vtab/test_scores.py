"""Scores of VTAB against table 9 of arXiv:2010.11929, and bars of the figure read back from it."""

from pathlib import Path
from statistics import fmean, stdev

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from vitrine.core.figures import Draw
from vitrine.data.sources.vtab import TASKS
from vitrine.studies.vtab import scores as scores_module
from vitrine.studies.vtab.scores import (
    Score,
    TaskResult,
    build_task_result,
    compute_scores,
    draw_scores,
    find_overall,
    label_bar,
)

# In the order of the table's columns, and the means printed in its last column and in table 2.
TABLE_9 = {
    "H/14 JFT": (
        (95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6),
        (91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2),
        77.63,
    ),
    "L/16 JFT": (
        (95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4, 83.6, 96.5, 89.7, 77.1),
        (86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1),
        76.28,
    ),
    "L/16 I21k": (
        (90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9, 82.5, 95.6, 85.2, 75.3),
        (70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7),
        72.72,
    ),
}
GROUPS = {"H/14 JFT": (86.69, 87.00, 65.03), "L/16 JFT": (85.56, 86.72, 62.96), "L/16 I21k": (83.27, 84.65, 57.50)}


def make_results(*rows: tuple[float, ...]) -> list[TaskResult]:
    """Build results of all tasks from accuracies in per cent, a row for each seed."""
    return [
        build_task_result(name=name, group=task.group, accuracies=[row[index] / 100 for row in rows], num_test_images=1000)
        for index, (name, task) in enumerate(TASKS.items())
    ]


@pytest.mark.parametrize("model", TABLE_9)
def test_groups_and_score_are_those_of_the_paper(model: str) -> None:
    first, second, mean = TABLE_9[model]
    scores = {score.name: score for score in compute_scores(make_results((*first, *second)))}
    assert list(scores) == ["natural", "specialised", "structured", "VTAB"]
    # The tolerance is half of the last printed digit.
    assert [100 * scores[group].mean for group in ("natural", "specialised", "structured")] == pytest.approx(
        GROUPS[model], abs=0.006
    )
    assert 100 * scores["VTAB"].mean == pytest.approx(mean, abs=0.03)  # table 9 rounds each task to a tenth
    assert [score.num_tasks for score in scores.values()] == [score.num_all for score in scores.values()] == [7, 4, 8, 19]
    assert scores["VTAB"].is_complete
    assert scores["VTAB"].std is None


def test_spread_is_over_the_scores_of_each_seed() -> None:
    rows = [(*first, *second) for first, second, _ in TABLE_9.values()]
    overall = find_overall(compute_scores(make_results(*rows)))
    assert overall is not None
    assert overall.std is not None
    means = [fmean(row) for row in rows]
    assert (100 * overall.mean, 100 * overall.std) == (pytest.approx(fmean(means)), pytest.approx(stdev(means)))
    task = make_results(*rows)[3]
    assert task.accuracies == pytest.approx((0.997, 0.997, 0.993))
    assert task.std == pytest.approx(stdev((0.997, 0.997, 0.993)))


def test_score_counts_only_tasks_of_the_benchmark() -> None:
    accuracies = {"natural": (0.5, 0.7), "structured": (0.3,), "generated": (0.9, 0.8), "other": (1.0,)}
    results = [
        build_task_result(name=f"{group}-{index}", group=group, accuracies=[value], num_test_images=100)
        for group, values in accuracies.items()
        for index, value in enumerate(values)
    ]
    scores = {score.name: score for score in compute_scores(results)}
    assert list(scores) == ["natural", "structured", "VTAB", "generated", "other"]
    assert {name: round(score.mean, 12) for name, score in scores.items()} == {
        "natural": 0.6,
        "structured": 0.3,
        "VTAB": 0.5,
        "generated": 0.85,
        "other": 1.0,
    }
    assert (scores["VTAB"].num_tasks, scores["VTAB"].num_all, scores["VTAB"].is_complete) == (3, 19, False)
    assert scores["generated"].num_all is None


def test_no_score_without_tasks_of_the_benchmark() -> None:
    scores = compute_scores([build_task_result(name="photos", group="other", accuracies=[0.5], num_test_images=10)])
    assert [score.name for score in scores] == ["other"]
    assert find_overall(scores) is None


def test_interval_of_50_out_of_100_is_wilson_s() -> None:
    result = build_task_result(name="pets", group="natural", accuracies=[0.5], num_test_images=100)
    assert (result.low, result.high) == (pytest.approx(0.4038, abs=1e-4), pytest.approx(0.5962, abs=1e-4))


NOTE = "Not the paper's protocol: model.image_size 224 instead of 384; " * 4


def draw(path: Path, *accuracies: tuple[float, ...]) -> list[Score]:
    groups = ("natural", "structured", "generated")
    results = [
        build_task_result(name=group, group=group, accuracies=values, num_test_images=100)
        for group, values in zip(groups, accuracies, strict=True)
    ]
    scores = compute_scores(results)
    draw_scores(scores, results, "a-model", NOTE, path)
    return scores


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Axes]:
    """Return the panels that are drawn."""
    drawn: list[Axes] = []

    def keep(draw: Draw, path: Path, width: float, height: float) -> None:
        figure = Figure((width, height))
        draw(figure)
        drawn.extend(figure.axes)

    monkeypatch.setattr(scores_module, "draw_png", keep)
    return drawn


def test_the_figure_is_a_png(tmp_path: Path) -> None:
    draw(tmp_path / "vtab.png", (0.8,), (0.4,), (0.2,))
    with Image.open(tmp_path / "vtab.png") as image:
        assert (image.format, min(image.size) > 500) == ("PNG", True)


def test_bars_are_as_high_as_the_scores(panels: list[Axes]) -> None:
    scores = draw(Path("x.png"), (0.8,), (0.4,), (0.2,))
    assert [bar.get_height() for bar in panels[0].patches] == pytest.approx([100 * score.mean for score in scores])


def test_several_seeds_have_an_error_bar(panels: list[Axes]) -> None:
    scores = draw(Path("x.png"), (0.7, 0.9), (0.3, 0.5), (0.1, 0.3))
    ends = [segment[:, 1].tolist() for each in panels[0].collections for segment in each.get_segments()]
    expected = [[100 * (score.mean - score.std), 100 * (score.mean + score.std)] for score in scores]
    assert ends == [pytest.approx(each) for each in expected]
    draw(Path("x.png"), (0.8,), (0.4,), (0.2,))
    assert list(panels[1].collections) == []


@pytest.mark.parametrize(
    ("num_tasks", "num_all", "label"),
    [(7, 7, "natural\n7 tasks"), (2, 7, "natural\n2 of 7 tasks"), (1, None, "natural\n1 task"), (3, None, "natural\n3 tasks")],
)
def test_bar_labels_count_tasks(num_tasks: int, num_all: int | None, label: str) -> None:
    assert label_bar(Score(name="natural", num_tasks=num_tasks, num_all=num_all, mean=0.5, std=None)) == label

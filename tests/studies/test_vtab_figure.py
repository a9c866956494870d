"""The figure of VTAB: bars as high as the scores, measured in its pixels."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrine.studies.vtab_figure import COLOURS, draw_scores, label_bar
from vitrine.studies.vtab_scores import Score, build_result, compute_scores

NOTE = "Not the paper's protocol: model.image_size 224 instead of 384; " * 4


def find_heights(path: Path, names: list[str]) -> dict[str, int]:
    """Of each bar in pixels, along the column where it is highest."""
    pixels = np.asarray(Image.open(path).convert("RGB")).astype(int)
    heights: dict[str, int] = {}
    for name in names:
        colour = [int(COLOURS[name][place : place + 2], 16) for place in (1, 3, 5)]
        heights[name] = int((np.abs(pixels - colour).max(axis=2) < 3).sum(axis=0).max())
    return heights


def draw(path: Path, *accuracies: tuple[float, ...]) -> list[Score]:
    groups = ("natural", "structured", "generated")
    results = [
        build_result(name=group, group=group, accuracies=values, num_test_images=100)
        for group, values in zip(groups, accuracies, strict=True)
    ]
    scores = compute_scores(results)
    draw_scores(scores, results, "a-model", NOTE, path)
    return scores


def test_bars_are_as_high_as_the_scores(tmp_path: Path) -> None:
    scores = draw(tmp_path / "vtab.png", (0.8,), (0.4,), (0.2,))
    heights = find_heights(tmp_path / "vtab.png", [score.name for score in scores])
    for score in scores:
        # A pixel or two at the ends.
        assert heights[score.name] / heights["natural"] == pytest.approx(score.mean / 0.8, abs=0.02)


def test_several_seeds_have_a_spread(tmp_path: Path) -> None:
    """A black line on the bar, which a single seed has not."""
    draw(tmp_path / "one.png", (0.8,), (0.4,), (0.2,))
    draw(tmp_path / "two.png", (0.7, 0.9), (0.3, 0.5), (0.1, 0.3))
    images = [np.asarray(Image.open(tmp_path / f"{name}.png").convert("L")) for name in ("one", "two")]
    assert (images[1] == 0).sum() > (images[0] == 0).sum() + 4 * 20


@pytest.mark.parametrize(
    ("num_tasks", "num_all", "label"),
    [(7, 7, "natural\n7 tasks"), (2, 7, "natural\n2 of 7 tasks"), (1, None, "natural\n1 task"), (3, None, "natural\n3 tasks")],
)
def test_a_bar_says_of_how_many_tasks_it_is(num_tasks: int, num_all: int | None, label: str) -> None:
    assert label_bar(Score(name="natural", num_tasks=num_tasks, num_all=num_all, mean=0.5, std=None)) == label

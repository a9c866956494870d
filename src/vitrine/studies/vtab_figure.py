"""The scores of VTAB by group, as figure 2 of arXiv:2010.11929 shows them."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrine.core.figures import save_figure, shorten
from vitrine.data.vtab_tasks import GROUPS
from vitrine.studies.vtab_scores import OVERALL, Score, TaskResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    OVERALL: "#3d405b",
    "natural": "#5aa469",
    "specialised": "#2e86ab",
    "structured": "#d1495b",
    "generated": "#b08bbb",
    "other": "#a3a3a3",
}
LETTERS_PER_INCH = 13  # of the note below

DOTS: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 5, "color": "#222222", "markeredgecolor": "white"}


def draw_scores(scores: Sequence[Score], results: Sequence[TaskResult], model: str, note: str, path: Path) -> None:
    """A bar for each group with its spread over seeds, where there are several, and a dot for each task, written as PNG."""
    from matplotlib.figure import Figure

    width = 2.2 + 1.35 * len(scores)
    figure = Figure(figsize=(width, 5.0), dpi=120, layout="constrained")
    figure.suptitle(f"VTAB-1k: {shorten(model)}", fontsize=13, parse_math=False)
    panel = figure.add_subplot()
    for place, score in enumerate(scores):
        groups = GROUPS if score.name == OVERALL else (score.name,)
        draw_bar(panel, place, score, [each.mean for each in results if each.group in groups])
    panel.set_xticks(range(len(scores)), [label_bar(score) for score in scores], fontsize=10)
    panel.set_ylim(0.0, 108.0)
    panel.set_yticks(range(0, 101, 20))
    panel.set_ylabel("top-1 accuracy (%)", fontsize=11)
    panel.set_xlabel(
        textwrap.fill(note, int(LETTERS_PER_INCH * width)), fontsize=9, color="#555555", parse_math=False, labelpad=10
    )
    panel.grid(axis="y", color="#eeeeee", zorder=0)
    panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def draw_bar(panel: "Axes", place: int, score: Score, members: Sequence[float]) -> None:
    spread = 100 * (score.std or 0.0)
    panel.bar(place, 100 * score.mean, width=0.66, color=COLOURS[score.name], zorder=2)
    if score.std is not None:
        panel.errorbar(place, 100 * score.mean, yerr=spread, color="black", capsize=5, zorder=4)
    panel.plot([place - 0.24] * len(members), [100 * mean for mean in members], zorder=3, clip_on=False, **DOTS)
    figure, above = f"{100 * score.mean:.1f}", (place, 100 * score.mean + spread)
    panel.annotate(figure, above, (0, 3), textcoords="offset points", ha="center", fontsize=11, zorder=5)


def label_bar(score: Score) -> str:
    tasks = f"{score.num_tasks}" if score.num_all is None or score.is_complete else f"{score.num_tasks} of {score.num_all}"
    return f"{score.name}\n{tasks} task{'' if tasks == '1' else 's'}"

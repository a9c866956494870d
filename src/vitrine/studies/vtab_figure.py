"""The scores of VTAB by group, as figure 2 of arXiv:2010.11929 shows them."""

from collections.abc import Sequence
from pathlib import Path

from vitrine.core.figures import save_figure
from vitrine.studies.vtab_scores import OVERALL, Score, TaskResult

COLOURS = {
    OVERALL: "#3d405b",
    "natural": "#5aa469",
    "specialised": "#2e86ab",
    "structured": "#d1495b",
    "generated": "#b08bbb",
    "other": "#a3a3a3",
}
GROUPS_OF = {OVERALL: ("natural", "specialised", "structured")}


def draw_scores(scores: Sequence[Score], results: Sequence[TaskResult], title: str, note: str, path: Path) -> None:
    """A bar for each group with its spread over seeds, where there are several, and a dot for each task, written as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.2 + 1.35 * len(scores), 4.8), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=13, wrap=True, parse_math=False)
    panel = figure.add_subplot()
    for place, score in enumerate(scores):
        error = None if score.std is None else 100 * score.std
        panel.bar(place, 100 * score.mean, width=0.66, color=COLOURS[score.name], yerr=error, capsize=5, zorder=2)
        members = [each.mean for each in results if each.group in GROUPS_OF.get(score.name, (score.name,))]
        panel.plot([place - 0.24] * len(members), [100 * mean for mean in members], **DOTS)
        top = max(100 * score.mean + (error or 0.0), 0.0)
        panel.annotate(f"{100 * score.mean:.1f}", (place, top), (0, 3), textcoords="offset points", ha="center", fontsize=11)
    panel.set_xticks(range(len(scores)), [label_bar(score) for score in scores], fontsize=10)
    panel.set_ylim(0.0, 105.0)
    panel.set_yticks(range(0, 101, 20))
    panel.set_ylabel("top-1 accuracy (%)", fontsize=11)
    panel.set_xlabel(note, fontsize=9, color="#555555", parse_math=False)
    panel.grid(axis="y", color="#eeeeee", zorder=0)
    panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


DOTS = {"linestyle": "", "marker": "o", "markersize": 4, "color": "black", "alpha": 0.55, "zorder": 3, "clip_on": False}


def label_bar(score: Score) -> str:
    tasks = f"{score.num_tasks}" if score.num_all is None or score.is_complete else f"{score.num_tasks} of {score.num_all}"
    return f"{score.name}\n{tasks} task{'' if tasks == '1' else 's'}"

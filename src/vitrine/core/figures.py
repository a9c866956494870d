"""Figures of matplotlib as files, without a window and without a trace in the process."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.core.files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LONGEST_NAME = 28


def shorten(name: str) -> str:
    """What can be written beside a picture; bytes of a file's name that are no UTF-8 become question marks."""
    name = name.encode("utf-8", "replace").decode()
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def save_figure(figure: "Figure", path: Path) -> None:
    """As PNG, whole or not at all."""
    # Not pyplot: it keeps figures and a choice of window for the whole process, which may be a user's notebook.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with whole_file(path) as partial, warnings.catch_warnings():
        # Letters that the font lacks become boxes: a blemish, and no news to bring in the midst of a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(partial)

"""Self-contained HTML reports, figures as PNG.

Figures of matplotlib as files, without a window and without a trace in the process.
One page with all figures in it: it can be sent and opened anywhere, without a network, on a phone too.
"""

import base64
import html
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.core.files import atomic_file

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

    with atomic_file(path) as partial, warnings.catch_warnings():
        # Letters that the font lacks become boxes: a blemish, and no news to bring in the midst of a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(partial)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; } p { max-width: 46rem; }
img { max-width: 100%; display: block; margin: 1rem 0; } .facts, figcaption, th { color: #666; }
.wide { overflow-x: auto; overflow-wrap: normal; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .8rem .2rem 0; white-space: nowrap; font-weight: normal; }
th:first-child, td:first-child { text-align: left; } tr { border-bottom: 1px solid #eee; }
pre { background: #f6f6f4; padding: .6rem .8rem; overflow-x: auto; font-size: .85rem; }
.gallery { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; } figure { margin: 0; width: 150px; }
figure img { margin: 0; } figcaption { font-size: .75rem; line-height: 1.3; margin-top: .3rem; }
"""

# What the bytes of an image file begin with.
SIGNATURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg"}


@dataclass(frozen=True)
class Figure:
    """An image file, by its path or its bytes (PNG, JPEG); None where there is none to be seen, only its caption."""

    image: Path | bytes | None
    caption: str = ""
    """What is written below it in a gallery, and said to whoever cannot see it."""


@dataclass(frozen=True)
class Gallery:
    """Thumbnails side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Commands:
    """What to type, each on a line."""

    lines: Sequence[str]


Part = Figure | Gallery | Table | Commands


@dataclass(frozen=True)
class Section:
    title: str
    caption: str
    """How to read what follows."""
    parts: Sequence[Part] = ()


def write_html_report(path: Path, title: str, facts: str, sections: Sequence[Section]) -> None:
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p>',
    ]
    for section in sections:
        lines.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.caption)}</p>")
        lines += [render(part, section.title) for part in section.parts]
    lines.append("</body></html>")
    with atomic_file(path) as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")


def render(part: Part, title: str) -> str:
    if isinstance(part, Figure):
        return embed(part, title)
    if isinstance(part, Gallery):
        figures = "".join(
            f"<figure>{embed(each, title)}<figcaption>{escape(each.caption)}</figcaption></figure>" for each in part.figures
        )
        return f'<div class="gallery">{figures}</div>'
    if isinstance(part, Commands):
        return f"<pre>{escape(chr(10).join(part.lines))}</pre>"
    head = "".join(f"<th>{escape(column)}</th>" for column in part.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in part.rows)
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def embed(figure: Figure, title: str) -> str:
    if figure.image is None:
        return ""
    content = figure.image if isinstance(figure.image, bytes) else figure.image.read_bytes()
    kind = next(kind for signature, kind in SIGNATURES.items() if content.startswith(signature))
    said = figure.caption or (figure.image.name if isinstance(figure.image, Path) else "")
    encoded = base64.b64encode(content).decode("ascii")
    return f'<img alt="{escape(title)}: {escape(said)}" src="data:image/{kind};base64,{encoded}">'


def escape(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode())

"""Self-contained HTML reports: one file with all figures embedded, which opens anywhere without a network."""

import base64
import html
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vitrine.core.console import escape_controls
from vitrine.core.files import atomic_file

if TYPE_CHECKING:
    from matplotlib import figure

MAX_LABEL_LENGTH = 28

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

# File signature -> image type.
SIGNATURES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg"}


@dataclass(frozen=True)
class Figure:
    """An image in a report, given as a path or as bytes (PNG, JPEG); None shows the caption alone."""

    image: Path | bytes | None
    caption: str = ""
    """Text below the image in a gallery, and its alternative text."""


@dataclass(frozen=True)
class Gallery:
    """Thumbnails side by side."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Table:
    """A table in a report, the first column left-aligned and the others right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Commands:
    """Command lines, shown as preformatted text."""

    lines: Sequence[str]


Part = Figure | Gallery | Table | Commands


@dataclass(frozen=True)
class Section:
    """A heading, a caption that explains the parts, and the parts."""

    title: str
    caption: str
    parts: Sequence[Part] = ()


def write_html_report(path: Path, title: str, subtitle: str, sections: Sequence[Section]) -> None:
    """Write a report to one HTML file with all images embedded."""
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="facts">{escape(subtitle)}</p>',
    ]
    for section in sections:
        lines.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.caption)}</p>")
        lines += [render_part(part, section.title) for part in section.parts]
    lines.append("</body></html>")
    with atomic_file(path) as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")


def render_part(part: Part, title: str) -> str:
    """Return the HTML of one part of a section with this title."""
    if isinstance(part, Figure):
        return render_image(part, title)
    if isinstance(part, Gallery):
        captions = (f"{render_image(each, title)}<figcaption>{escape(each.caption)}</figcaption>" for each in part.figures)
        return f'<div class="gallery">{"".join(f"<figure>{caption}</figure>" for caption in captions)}</div>'
    if isinstance(part, Commands):
        return f"<pre>{chr(10).join(map(escape, part.lines))}</pre>"
    head = "".join(f"<th>{escape(column)}</th>" for column in part.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in part.rows)
    return f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'


def render_image(figure: Figure, title: str) -> str:
    """Return an <img> tag with the image embedded in it, or nothing if the figure has no image."""
    if figure.image is None:
        return ""
    content = figure.image if isinstance(figure.image, bytes) else figure.image.read_bytes()
    kind = next(kind for signature, kind in SIGNATURES.items() if content.startswith(signature))
    description = figure.caption or (figure.image.name if isinstance(figure.image, Path) else "")
    encoded = base64.b64encode(content).decode("ascii")
    return f'<img alt="{escape(title)}: {escape(description)}" src="data:image/{kind};base64,{encoded}">'


def escape(text: str) -> str:
    return html.escape(escape_controls(text))


def save_figure(figure: "figure.Figure", path: Path) -> None:
    """Save a matplotlib figure as PNG atomically."""
    # Not pyplot: it keeps figures and a display backend for the whole process, which may be a user's notebook.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with atomic_file(path) as partial, warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes, which does not merit a warning during a run.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(partial)


def shorten_label(name: str) -> str:
    """Cut a name to fit beside a figure."""
    name = escape_controls(name)
    return name if len(name) <= MAX_LABEL_LENGTH else f"{name[: MAX_LABEL_LENGTH - 1]}…"

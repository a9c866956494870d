"""One page with all figures in it: it can be sent and opened anywhere, without a network."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.files import whole_file

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
p { max-width: 46rem; } img { max-width: 100%; display: block; margin: 1rem 0; } .facts { color: #666; }
"""


@dataclass(frozen=True)
class Section:
    title: str
    caption: str
    """How to read its figures."""
    figures: Sequence[Path]


def write_page(path: Path, title: str, facts: str, sections: Sequence[Section]) -> None:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f'<h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p>',
    ]
    for section in sections:
        parts.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.caption)}</p>")
        parts += [embed(figure, section.title) for figure in section.figures]
    parts.append("</body></html>")
    with whole_file(path) as partial:
        partial.write_text("\n".join(parts), encoding="utf-8")


def embed(figure: Path, title: str) -> str:
    content = base64.b64encode(figure.read_bytes()).decode("ascii")
    return f'<img alt="{escape(title)}: {escape(figure.name)}" src="data:image/png;base64,{content}">'


def escape(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode())

"""Pages: one HTML file each, with styles, script and images inside, which opens anywhere without a network.

All pages share one skeleton: bar, contents, the answer (title, headline, facts), sections, and a footer. `page_parts` has the
components of a section, static/tokens.css the design.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vitrine.core.figures import read_static
from vitrine.core.files import atomic_file
from vitrine.core.page_parts import Facts, Note, Part, escape, render_parts
from vitrine.version import __version__

MARK = (
    '<svg width="20" height="20" viewBox="0 0 20 20" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.4">'
    '<path d="M2.5 5.5 6 2.5h11.5v12L14 17.5H2.5zM2.5 5.5H14v12M14 5.5l3.5-3"/>'
    '<path d="M5 8h2.5v2.5H5zM9 12h2.5v2.5H9z" fill="var(--accent)" stroke="none"/></svg>'
)


@dataclass(frozen=True)
class Section:
    """A section: its heading states a finding, its entry in the contents is two to five words."""

    title: str
    entry: str
    text: str = ""
    parts: Sequence[Part] = ()

    def render(self, key: str) -> str:
        """Return the section with an id for the contents."""
        text = f"<p>{escape(self.text)}</p>" if self.text else ""
        heading = f'<h2 id="{key}-h">{escape(self.title)}</h2>'
        return f'<section id="{key}" aria-labelledby="{key}-h">{heading}{text}{render_parts(self.parts)}</section>'


@dataclass(frozen=True, kw_only=True)
class Page:
    """Everything on a page."""

    kind: str
    """What sort of page it is, e.g. Evaluation."""
    title: str
    """The finding, as a sentence."""
    lede: str = ""
    answer: Part | None = None
    """Headline, ladder or claims."""
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    """Sentences of caution about the answer."""
    sections: Sequence[Section] = ()
    command: str | None = None
    """The command that made the page."""
    remarks: Sequence[str] = field(default_factory=tuple)
    """Ends of the footer, e.g. the seed and where the numbers are."""

    def render(self) -> str:
        """Return the page as HTML."""
        keys = [f"s{number}" for number in range(len(self.sections))]
        pairs = list(zip(keys, self.sections, strict=True))
        entries = "".join(f'<li><a href="#{key}">{escape(section.entry)}</a></li>' for key, section in pairs)
        head = (
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="color-scheme" content="light dark"><title>{escape(self.title)}</title>'
            f"<style>{read_static('tokens.css')}{read_static('components.css')}</style></head>"
        )
        bar = (
            f'<div class="bar"><span class="mark">{MARK}Vitrine</span><span class="quiet">{escape(self.kind)}</span>'
            '<span class="push"></span><button type="button" data-theme-switch>Light / dark</button></div>'
        )
        body = (
            f'<div class="body"><nav aria-label="Contents"><ol>{entries}</ol></nav><main id="main">{self.render_answer()}'
            f"{''.join(section.render(key) for key, section in pairs)}{self.render_footer()}</main></div>"
        )
        return (
            f'<!doctype html>\n<html lang="en">{head}<body><a class="skip" href="#main">Skip to content</a><div class="page">'
            f'{bar}{body}</div><div role="status" class="hidden"></div>'
            f'<script type="module">{read_static("page.js")}</script></body></html>\n'
        )

    def render_answer(self) -> str:
        """Return the header of the page: title, lede, headline and facts."""
        lede = f'<p class="lede">{escape(self.lede)}</p>' if self.lede else ""
        answer = "" if self.answer is None else self.answer.render()
        facts = Facts(self.facts).render() if self.facts else ""
        notes = render_parts([Note(note) for note in self.notes])
        return f"<header><h1>{escape(self.title)}</h1>{lede}{answer}{facts}{notes}</header>"

    def render_footer(self) -> str:
        """Return version, command and remarks."""
        command = [] if self.command is None else [f"<code>{escape(self.command)}</code>"]
        words = [f"Vitrine {__version__}", *command, *map(escape, self.remarks)]
        return f'<footer class="small faint">{" · ".join(words)}</footer>'


def write_page(path: Path, page: Page) -> None:
    """Write a page to one HTML file."""
    text = page.render()  # before the file is opened: this may fail
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")

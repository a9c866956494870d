"""Reads pages as browsers do, with html.parser: elements by tag and class, their text, and checks that hold for every page."""

import base64
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "img", "input", "br", "link", "hr", "path", "use"}


@dataclass
class Element:
    """An element of a page with its attributes and content."""

    tag: str
    attributes: dict[str, str]
    content: list["Element | str"] = field(default_factory=list)

    def walk(self) -> Iterator["Element"]:
        for child in self.content:
            if isinstance(child, Element):
                yield child
                yield from child.walk()

    def find(self, tag: str | None = None, kind: str | None = None) -> list["Element"]:
        """Return all elements inside with this tag and this class."""
        return [
            each
            for each in self.walk()
            if tag in (None, each.tag) and (kind is None or kind in each.attributes.get("class", "").split())
        ]

    def one(self, tag: str | None = None, kind: str | None = None) -> "Element":
        (found,) = self.find(tag, kind)
        return found

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else " " if child.tag == "br" else child.text for child in self.content)
        return "".join(parts)


class Reader(HTMLParser):
    """Builds elements, and fails where a tag is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].content.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parse(text: str) -> Element:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"<{reader.open[-1].tag}> is not closed"
    return reader.open[0]


def read_page(path: Path, max_bytes: int = 1_000_000) -> Element:
    """Parse a page and check what holds for all: one file, no network, contents, unique ids, alternative texts, size."""
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < max_bytes
    page = parse(text)
    elements = list(page.walk())
    outside = [element for element in elements if element.tag in ("link", "iframe", "object") or "srcset" in element.attributes]
    assert outside == []
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    for image in page.find("img"):
        kind, content = image.attributes["src"].removeprefix("data:image/").split(";base64,")
        assert base64.b64decode(content)[:4] in {"png": [b"\x89PNG"], "jpeg": [b"\xff\xd8\xff\xe0"]}[kind]
        assert "alt" in image.attributes
    ids = [element.attributes["id"] for element in elements if "id" in element.attributes]
    main = [each for each in elements if each.tag == "main"]
    assert len(main) == 1
    assert len([each for each in ids if not each.startswith("f")]) == len({each for each in ids if not each.startswith("f")})
    entries = [link.attributes["href"] for link in page.one("nav").find("a")]
    assert entries == [f"#{section.attributes['id']}" for section in page.find("section")]
    assert len(page.find("h1")) == 1
    assert page.one("title").text == page.one("h1").text
    used = {name for element in elements for name in re.findall(r"(?:url\(|^)#(\w+)", element.attributes.get("href", ""))}
    assert used <= set(ids)
    return page


def list_links(page: Element, path: Path) -> list[Path]:
    """Return the files that a page links to; a relative link is below the folder of the page."""
    links = [link.attributes["href"] for link in page.find("a") if not link.attributes["href"].startswith("#")]
    return [path.parent / unquote(link.removeprefix("file://"), errors="surrogateescape") for link in links]


def list_rows(table: Element) -> list[list[str]]:
    """Return the cells of a table's body."""
    return [[cell.text for cell in row.find("td")] for row in table.one("tbody").find("tr")]

"""Pages: the skeleton that all share, one file without network, hostile names, the package's static files."""

import re
from pathlib import Path

import pytest

from tests.core.test_page_parts import HOSTILE
from tests.pages import parse, read_page
from vitrine.core.figures import STATIC
from vitrine.core.html_report import Page, Section, write_page
from vitrine.core.page_parts import Facts, Headline, Interval, Note
from vitrine.version import __version__


def build(text: str = "text") -> Page:
    return Page(
        kind=text,
        title=text,
        lede=text,
        answer=Headline("89.2", "%", text, Interval(0.892, 0.86, 0.917)),
        facts=[(text, text)],
        notes=[text],
        sections=[
            Section(f"First {text}", text, text, [Note(text)]),
            Section(f"Second {text}", text, "", [Facts([("a", text)])]),
        ],
        command=text,
        remarks=[text],
    )


def test_a_page_has_the_shared_skeleton(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", build("finding"))
    page = read_page(tmp_path / "page.html")
    assert page.one("h1").text == "finding"
    assert page.one(kind="lede").text == "finding"
    assert [heading.text for heading in page.find("h2")] == ["First finding", "Second finding"]
    assert [link.text for link in page.one("nav").find("a")] == ["finding", "finding"]
    assert page.one("footer").text == f"Vitrine {__version__} · finding · finding"
    assert page.one("html").attributes["lang"] == "en"
    assert {"viewport", "color-scheme"} <= {each.attributes.get("name") for each in page.find("meta")}
    assert page.one(kind="skip").attributes["href"] == "#main"
    assert "data-theme-switch" in page.one("button").attributes
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_hostile_names_are_text_everywhere(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", build(HOSTILE))
    page = parse((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert len(page.find("script")) == 1
    assert page.one("main").text.count("<script>alert('1')</script>") == 13
    assert r"\u202egpj\udce9" in page.one("title").text


def test_a_page_without_an_answer(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", Page(kind="Inspection", title="Nothing"))
    page = read_page(tmp_path / "page.html")
    assert page.find(kind="headline") == page.find(kind="facts") == page.find("section") == []


def test_the_old_page_stays_if_a_part_fails(tmp_path: Path) -> None:
    class Broken:
        def render(self) -> str:
            raise RuntimeError("cannot be drawn")

    (tmp_path / "page.html").write_text("old")
    with pytest.raises(RuntimeError, match="cannot be drawn"):
        write_page(tmp_path / "page.html", Page(kind="a", title="b", sections=[Section("c", "d", "", [Broken()])]))
    assert (tmp_path / "page.html").read_text() == "old"


def test_every_theme_colour_is_a_pair() -> None:
    """A component without its own colours follows the theme: other files than the tokens name none."""
    assert not re.search("#[0-9a-f]{3,8}\\b", (STATIC / "components.css").read_text())


def test_static_files_are_part_of_the_package() -> None:
    """A wheel has only what package-data lists."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["vitrine"]
    package = STATIC.parents[1]
    listed = {path for pattern in patterns for path in package.glob(pattern)}
    assert {path for path in STATIC.iterdir() if path.is_file()} <= listed

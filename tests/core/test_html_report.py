"""Figures are saved atomically without pyplot; a report embeds its images and escapes names."""

import base64
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from matplotlib import figure as matplotlib_figure
from matplotlib.artist import Artist
from PIL import Image

from vitrine.core.html_report import Commands, Figure, Gallery, Section, Table, save_figure, shorten_label, write_html_report


class Broken(Artist):
    def draw(self, renderer: object) -> None:
        raise RuntimeError("cannot be drawn")


class Doubtful(Artist):
    def draw(self, renderer: object) -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)


def make_figure(text: str = "", artist: Artist | None = None) -> matplotlib_figure.Figure:
    figure = matplotlib_figure.Figure(figsize=(2, 1), dpi=50, facecolor="#ff0000")
    figure.text(0.1, 0.5, text)
    if artist is not None:
        figure.add_artist(artist)
    return figure


def test_a_figure_is_written_as_png(tmp_path: Path) -> None:
    save_figure(make_figure(), tmp_path / "größer.png")
    assert [path.name for path in tmp_path.iterdir()] == ["größer.png"]
    with Image.open(tmp_path / "größer.png") as image:
        assert (image.format, image.size) == ("PNG", (100, 50))
        assert image.convert("RGB").getpixel((99, 49)) == (255, 0, 0)


def test_a_figure_is_png_whatever_its_name(tmp_path: Path) -> None:
    save_figure(make_figure(), tmp_path / "curves")
    with Image.open(tmp_path / "curves") as image:
        assert image.format == "PNG"


def test_a_failed_drawing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("old")
    with pytest.raises(RuntimeError, match="cannot be drawn"):
        save_figure(make_figure(artist=Broken()), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    save_figure(make_figure(), tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        image.load()


def test_letters_that_the_font_lacks_are_not_warned_about(tmp_path: Path) -> None:
    save_figure(make_figure("猫 🐈 \u0600"), tmp_path / "a.png")


def test_other_warnings_are_shown(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="something else"):
        save_figure(make_figure(artist=Doubtful()), tmp_path / "a.png")


UNTOUCHED = """
import sys
from pathlib import Path
from vitrine.core.html_report import save_figure, shorten_label
assert "matplotlib" not in sys.modules
from matplotlib.figure import Figure
save_figure(Figure(), Path(sys.argv[1]))
assert "matplotlib.pyplot" not in sys.modules
"""


def test_saving_a_figure_does_not_import_pyplot(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", UNTOUCHED, str(tmp_path / "a.png")], check=True)


def test_long_names_are_cut() -> None:
    assert shorten_label("x" * 28) == "x" * 28
    assert shorten_label("x" * 29) == "x" * 27 + "…"
    assert shorten_label("") == ""


def test_images_are_embedded_and_text_is_escaped(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "one.png")
    section = Section("<Attention>", "What & where", [Figure(tmp_path / "one.png")])
    write_html_report(tmp_path / "index.html", "Inside <script>", "5 images", [section])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;Attention&gt;" in text
    assert "What &amp; where" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    (content,) = re.findall(r"base64,([^\"]+)", text)
    assert base64.b64decode(content) == (tmp_path / "one.png").read_bytes()


def test_names_that_are_not_utf8_are_shown_with_escapes(tmp_path: Path) -> None:
    write_html_report(tmp_path / "index.html", "Inside caf\udce9", "", [])
    assert r"caf\udce9" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_tables_commands_and_galleries_are_rendered(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "one.jpg")
    gallery = Gallery([Figure((tmp_path / "one.jpg").read_bytes(), "a <b>")])
    parts = [Table(("name", "fraction"), [("x & y", "3 %")]), Commands(("vitrine demo", "vitrine models")), gallery]
    write_html_report(tmp_path / "index.html", "Report", "", [Section("All", "", parts)])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<td>x &amp; y</td><td>3 %</td>" in text
    assert "<pre>vitrine demo\nvitrine models</pre>" in text
    assert "data:image/jpeg;base64," in text
    assert "<figcaption>a &lt;b&gt;</figcaption>" in text

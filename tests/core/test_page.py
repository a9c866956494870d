"""The page stands by itself and takes names as they come."""

import base64
import re
from pathlib import Path

from PIL import Image

from vitrine.core.page import Commands, Figure, Gallery, Section, Table, write_page


def test_figures_are_inside_and_nothing_is_fetched(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "one.png")
    section = Section("<Attention>", "What & where", [Figure(tmp_path / "one.png")])
    write_page(tmp_path / "index.html", "Inside <script>", "5 images", [section])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;Attention&gt;" in text
    assert "What &amp; where" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    (content,) = re.findall(r"base64,([^\"]+)", text)
    assert base64.b64decode(content) == (tmp_path / "one.png").read_bytes()


def test_names_that_are_no_utf8_do_no_harm(tmp_path: Path) -> None:
    write_page(tmp_path / "index.html", "Inside caf\udce9", "", [])
    assert "caf?" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_tables_commands_and_galleries_say_what_they_hold(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), "red").save(tmp_path / "one.jpg")
    gallery = Gallery([Figure((tmp_path / "one.jpg").read_bytes(), "a <b>")])
    parts = [Table(("name", "share"), [("x & y", "3 %")]), Commands(("vitrine demo", "vitrine models")), gallery]
    write_page(tmp_path / "index.html", "Report", "", [Section("All", "", parts)])
    text = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<td>x &amp; y</td><td>3 %</td>" in text
    assert "<pre>vitrine demo\nvitrine models</pre>" in text
    assert "data:image/jpeg;base64," in text
    assert "<figcaption>a &lt;b&gt;</figcaption>" in text

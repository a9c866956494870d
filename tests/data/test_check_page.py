"""The page of a check shows what was found and needs nothing else."""

import re
from pathlib import Path

import pytest

from tests.data.pictures import write_picture
from vitrine.data import check_page
from vitrine.data.check import Finding, Place, check_data
from vitrine.data.check_page import CAPTIONS, write_check
from vitrine.data.opening import find_data


def test_findings_are_shown_with_thumbnails(tmp_path: Path, cache: Path) -> None:
    for name, seed in (("cat/0", 0), ("cat/1", 0), ("cat/2", 1), ("dog/0", 2)):
        write_picture(tmp_path / "data" / f"{name}.jpg", seed)
    (tmp_path / "data" / "dog" / "<bad>.jpg").write_bytes(b"nothing")
    check = check_data(find_data(tmp_path / "data"))
    write_check(check, tmp_path / "page.html", "my photos")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Check of my photos" in text
    assert "5 images. Something is wrong." in text
    assert "<h2>Exact copies: 1</h2>" in text
    assert "cat/0.jpg · cat · the same bytes" in text
    assert "dog/&lt;bad&gt;.jpg" in text
    assert text.count("data:image/jpeg;base64,") == 2
    assert "<td>cat</td><td>3</td>" in text
    assert not re.search(r"(src|href)=\"(?!data:)", text)


def test_long_lists_are_cut(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_page, "MOST_SHOWN", 2)
    write_picture(tmp_path / "data" / "cat" / "0.jpg", 0)
    check = check_data(find_data(tmp_path / "data"))
    check.findings.extend([Finding("label suspect", (Place(None, 0),), f"doubt {number}") for number in range(5)])
    check.findings.append(Finding("no training images", (), "class emu"))
    write_check(check, tmp_path / "page.html", "photos")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The first 2 of 5." in text
    assert "doubt 1" in text
    assert "doubt 2" not in text
    assert "<td>class emu</td>" in text


def test_large_groups_are_cut(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_page, "MOST_COPIES", 2)
    for number in range(5):
        write_picture(tmp_path / "data" / "cat" / f"{number}.jpg", 0)
    write_check(check_data(find_data(tmp_path / "data")), tmp_path / "page.html", "photos")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("data:image/jpeg;base64,") == 2
    assert "<figcaption>and 3 more</figcaption>" in text


def test_every_kind_has_a_caption() -> None:
    from typing import get_args

    from vitrine.data.check import FindingKind

    assert set(CAPTIONS) == set(get_args(FindingKind))

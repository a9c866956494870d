"""The page of a data check: issues with thumbnails and links, counts by class, long lists cut, hostile names."""

from pathlib import Path
from typing import get_args

import pytest

from tests.data.quality.test_check import write_picture
from tests.pages import list_links, list_rows, read_page
from vitrine.data.open_data import find_data
from vitrine.data.quality import check_page
from vitrine.data.quality.check import ImageRef, Issue, IssueKind, check_data
from vitrine.data.quality.check_page import CAPTIONS, write_check_report

pytestmark = pytest.mark.usefixtures("cache")


def test_issues_are_shown_with_thumbnails_and_links(tmp_path: Path) -> None:
    for name, seed in (("cat/0", 0), ("cat/1", 0), ("cat/2", 1), ("dog/0", 2)):
        write_picture(tmp_path / "data" / f"{name}.jpg", seed)
    (tmp_path / "data" / "dog" / "<bad>.jpg").write_bytes(b"nothing")
    write_check_report(check_data(find_data(tmp_path / "data")), tmp_path / "page.html", "my photos", "vitrine data check x")
    page = read_page(tmp_path / "page.html")
    assert "2 errors in the 5 images" in page.one("h1").text
    unreadable, copies, classes = page.find("section")
    assert unreadable.find("img") == []
    assert unreadable.one("code").text == "dog/<bad>.jpg"
    assert len(copies.find("img")) == 2
    assert copies.one("h3").text == "identical bytes"
    assert [name.text for name in copies.find("code")] == ["cat/0.jpg", "cat/1.jpg"]
    assert list_rows(classes.one("table")) == [["cat", "3"], ["dog", "2"]]
    assert [link.resolve() for link in list_links(page, tmp_path / "page.html")] == [
        tmp_path / "data" / name for name in ("dog/<bad>.jpg", "cat/0.jpg", "cat/1.jpg")
    ]
    assert "vitrine data check x" in page.one("footer").text


def test_clean_data_has_only_its_classes(tmp_path: Path) -> None:
    for seed in range(2):
        write_picture(tmp_path / "data" / "cat" / f"{seed}.jpg", seed)
    write_check_report(check_data(find_data(tmp_path / "data")), tmp_path / "page.html", "photos")
    page = read_page(tmp_path / "page.html")
    assert page.one("h1").text.startswith("No errors")
    assert len(page.find("section")) == 1


def test_long_lists_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_page, "MAX_SHOWN", 2)
    monkeypatch.setattr(check_page, "MAX_OPEN_CLASSES", 1)
    for name in ("cat", "dog", "emu"):
        for number in range(2):
            write_picture(tmp_path / "data" / name / f"{number}.jpg", ord(name[0]) + 100 * number)
    check = check_data(find_data(tmp_path / "data"))
    doubts = [Issue("label suspect", (ImageRef(None, 0),), f"doubt {number}") for number in range(5)]
    check = check.with_issues([*doubts, Issue("no training images", (), "class emu")])
    write_check_report(check, tmp_path / "page.html", "photos")
    page = read_page(tmp_path / "page.html")
    untrained, suspects, classes = page.find("section")
    assert list_rows(untrained.one("table")) == [["class emu"]]
    assert "2 of 5" in suspects.text
    assert len(suspects.find("img")) == 2
    assert [len(list_rows(table)) for table in classes.find("table")] == [1, 2]


def test_large_groups_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_page, "MAX_COPIES", 2)
    for number in range(5):
        write_picture(tmp_path / "data" / "cat" / f"{number}.jpg", 0)
    write_check_report(check_data(find_data(tmp_path / "data")), tmp_path / "page.html", "photos")
    page = read_page(tmp_path / "page.html")
    assert len(page.find("img")) == 2
    assert "3 more" in page.one(kind="row").text


def test_every_kind_has_a_caption() -> None:
    assert set(CAPTIONS) == set(get_args(IssueKind))


def test_page_of_real_photographs_is_small(assets: Path, tmp_path: Path) -> None:
    check = check_data(find_data(assets / "flowers102"))
    doubts = [Issue("label suspect", (ImageRef("test", index),), "x") for index in range(40)]
    write_check_report(check.with_issues(doubts), tmp_path / "page.html", "flowers102")
    page = read_page(tmp_path / "page.html", max_bytes=1_000_000)
    assert all(link.is_file() for link in list_links(page, tmp_path / "page.html"))

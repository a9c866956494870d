"""Sections of a fit's page: findings computed from the numbers, for every way in which a fit can end."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fitting.test_findings import WON, make_result, make_source
from tests.fitting.test_page_figures import CURVE
from tests.pages import Element, list_rows, read_page
from vitrine.core.files import write_json
from vitrine.core.html_report import write_page
from vitrine.evaluation.intervals import Estimate
from vitrine.evaluation.label_issues import LabelIssue
from vitrine.fitting.config import FitConfig
from vitrine.fitting.finetune import Contest
from vitrine.fitting.folder import FitFolder, describe_settings
from vitrine.fitting.images import FitImages
from vitrine.fitting.page import build_page
from vitrine.fitting.result import FitResult, LadderStep
from vitrine.formats.checkpoint import Calibration

LOST = Contest(60, 0.5, 0.49, 0.8, 0.8, 0.3)
MANY = FitImages(make_source(60), None, num_available=(300, 0))
SUSPECTS = [LabelIssue(number, 0, 1, 0.9) for number in range(9)]


def write(result: FitResult, folder: Path, config: FitConfig | None = None) -> Element:
    folder.mkdir(exist_ok=True)
    path = FitFolder(folder)
    write_json(path.settings, describe_settings(result.model, result.data, config or FitConfig()))
    write_page(path.report, build_page(result, path, None))
    return read_page(path.report)


def find_section(page: Element, entry: str) -> Element:
    (key,) = [link.attributes["href"] for link in page.one("nav").find("a") if link.text == entry]
    (section,) = [each for each in page.find("section") if f"#{each.attributes['id']}" == key]
    return section


def find_title(page: Element, entry: str) -> str:
    return find_section(page, entry).one("h2").text


def list_entries(page: Element) -> list[str]:
    return [link.text for link in page.one("nav").find("a")]


def test_sections_are_in_order(tmp_path: Path) -> None:
    page = write(make_result(curve=CURVE, suspects=SUSPECTS), tmp_path)
    assert list_entries(page) == [
        *("The ladder", "More photos", "Classes", "Confusions", "Surest mistakes", "Labels to check", "When to trust it"),
        *("Framing", "Time", "Continue"),
    ]


def test_facts_of_the_model(tmp_path: Path) -> None:
    page = write(make_result(), tmp_path)
    facts = {term.text: value.text for term, value in zip(page.one("dl").find("dt"), page.one("dl").find("dd"), strict=True)}
    assert list(facts) == ["Model", "Reads", "Macro accuracy", "Calibration error", "Time"]
    assert facts["Model"].startswith("tiny, ")
    assert "24 px" in facts["Reads"]
    assert facts["Calibration error"].endswith("uncalibrated 10.0\u202f%")
    assert facts["Time"] == "1:10 of 5:00"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"contest": WON}, "improved it"),
        ({"contest": LOST}, "did not surely"),
        ({}, "too few"),
        ({"images": MANY}, "more time"),
        ({"minutes": 0.0}, "no time was given"),
        ({"interrupted_by": 2}, "interrupted"),
    ],
)
def test_the_lede_says_whether_fine_tuning_helped(changes: dict[str, object], words: str, tmp_path: Path) -> None:
    lede = write(make_result(**changes), tmp_path).one(kind="lede").text
    assert words in lede
    assert "5 classes from" in lede


def test_the_ladder_says_what_was_kept(tmp_path: Path) -> None:
    result = make_result()
    worse = LadderStep("Logistic regression", "", 90.0, Estimate(0.3, 0.2, 0.4), 1.0, "not better")
    page = write(replace(result, steps=[*result.steps, worse]), tmp_path)
    section = find_section(page, "The ladder")
    assert "linear discriminant, ready after 1:01" in section.one("h2").text
    assert [each.text for each in section.find(kind="outcome")] == ["kept", "not better"]
    assert "No other interval overlaps" in section.text
    assert "Fine-tuning beat" in find_title(write(make_result(contest=WON), tmp_path), "The ladder")
    assert "model of 1:01" in find_title(write(make_result(contest=LOST), tmp_path), "The ladder")


def test_more_photos_help_only_if_the_interval_says_so(tmp_path: Path) -> None:
    assert "+2.0 points (+1.0 to +3.0)" in find_title(write(make_result(curve=CURVE), tmp_path), "More photos")
    flat = replace(CURVE, gain=Estimate(0.01, 0.0, 0.03))
    assert "hardly" in find_title(write(make_result(curve=flat), tmp_path), "More photos")


def test_a_missing_curve_is_explained(tmp_path: Path) -> None:
    assert "no time" in write(make_result(), tmp_path).one(kind="unavailable").text
    source = make_source(2)
    few = make_result(images=FitImages(source, None, num_available=(10, 0)))
    assert "there are 10, and 2 of the smallest" in write(few, tmp_path).one(kind="unavailable").text


def test_suspects_have_images_unless_they_are_above(tmp_path: Path) -> None:
    section = find_section(write(make_result(suspects=SUSPECTS), tmp_path), "Labels to check")
    assert section.one("h2").text.startswith("9 training labels")
    assert len(section.find("figure")) == 8
    assert list_rows(section.one("table")) == [["data.npz[8]", "a", "b"]]
    section = find_section(write(make_result(suspects=SUSPECTS, is_tested=False), tmp_path), "Labels to check")
    assert section.find("figure") == []
    assert len(list_rows(section.one("table"))) == 9
    many = [LabelIssue(number % 100, 0, 1, 0.9) for number in range(70)]
    assert "12 more" in find_section(write(make_result(suspects=many), tmp_path), "Labels to check").text


def test_answers_without_a_test_say_so(tmp_path: Path) -> None:
    page = write(make_result(is_tested=False, contest=WON), tmp_path)
    assert page.one(kind="count").text.endswith("held out from fine-tuning right")
    assert "fitted without them" in find_section(page, "Classes").text


def test_the_threshold_is_a_command(tmp_path: Path) -> None:
    result = make_result()
    section = find_section(write(result, tmp_path), "When to trust it")
    assert "Below 0.60" in section.one("h2").text
    assert section.one("pre").text.endswith("--reject-below 0.60")
    never = replace(result, checkpoint=replace(result.checkpoint, calibration=Calibration()))
    section = find_section(write(never, tmp_path), "When to trust it")
    assert section.find("pre") == []
    assert "never" in section.one("h2").text
    sure = replace(never, expected=Estimate(0.97, 0.96, 0.98))
    assert "always answers" in find_title(write(sure, tmp_path), "When to trust it")


def test_the_time_ends_with_the_limit(tmp_path: Path) -> None:
    section = find_section(write(make_result(), tmp_path), "Time")
    assert section.one("h2").text.startswith("Features took 50 s")
    assert section.one(kind="scale").find("span")[-1].text == "5 min"


def test_commands_repeat_the_settings(tmp_path: Path) -> None:
    page = write(make_result(), tmp_path / "it's", FitConfig(seed=4, framing="squash"))
    commands = [each.text for each in find_section(page, "Continue").find("pre")]
    assert [command.split()[1] for command in commands] == ["predict", "evaluate", "convert", "fit"]
    assert commands[-1].endswith("--framing squash --seed 4")
    assert "--minutes 30" in commands[-1]
    assert "'\"'\"'" in commands[-1]
    untested = make_result(images=FitImages(make_source(), None, num_available=(100, 0)), is_tested=False, minutes=0.0)
    commands = [each.text for each in find_section(write(untested, tmp_path), "Continue").find("pre")]
    assert [command.split()[1] for command in commands] == ["predict", "convert", "fit"]
    assert "--minutes 10" in commands[-1]


def test_notes_and_images_left_out_are_in_the_header(tmp_path: Path) -> None:
    source = make_source()
    images = FitImages(source, source, {"cannot be read": ["<b>x</b>.jpg"]}, num_available=(1000, 200))
    header = write(make_result(images=images, notes=["A note."]), tmp_path).one("header")
    notes = [each.text for each in header.find(kind="note")]
    assert notes[0] == "A note."
    assert "100 of 1,000" in notes[1]
    assert "<b>x</b>.jpg" in notes[2]

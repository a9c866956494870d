"""Every figure of README.md, docs/paper.md and docs/results is in a data file of docs/results/data, and those that follow from
others do so.

`tests/figures.py` compares a page with its data file; here it is also shown to notice a change of any figure.
"""

import re
import runpy
from collections.abc import Iterator
from decimal import Decimal
from statistics import mean, stdev
from typing import Any

import pytest

from tests.figures import DATA, ROOT, WORD, compare, draft, find_tables, is_name, matches, read_data, read_page, resolve
from vitrine.evaluation.intervals import wilson_interval
from vitrine.models.cost import compute_cost
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES

READER = runpy.run_path(str(ROOT / "docs" / "readme.py"))
PAGES = {path.stem: f"docs/results/{path.name}" for path in sorted((ROOT / "docs" / "results").glob("*.md"))}
PAGES |= {"paper": "docs/paper.md", "readme": "README.md"}
# Pages whose data files are still to be written, by `python -m tests.figures PAGE > docs/results/data/NAME.json`.
WITHOUT_DATA = {"duplicates", "formats"}
CHECKED = sorted(set(PAGES) - WITHOUT_DATA)


def read_text(name: str) -> str:
    """Return a page's text, of the README without the commands that are run for it and their output."""
    text = read_page(PAGES[name])
    return text if name != "readme" else drop_examples(text)


def drop_examples(text: str) -> str:
    lines = text.splitlines()
    for example in reversed(list(READER["find_examples"](lines))):
        del lines[example.start : example.stop]
    return "\n".join(lines)


def test_every_page_has_its_data_file() -> None:
    assert {path.stem for path in DATA.glob("*.json")} == {*CHECKED, "readme-outputs"}


@pytest.mark.parametrize("name", CHECKED)
def test_figures_are_those_of_the_data_file(name: str) -> None:
    assert compare(read_text(name), name) == []


@pytest.mark.parametrize("name", CHECKED)
def test_tables_have_the_rows_and_columns_of_the_data_file(name: str) -> None:
    of_page, of_data = (
        [(table["columns"], list(table["rows"])) for table in find_tables(node)]
        for node in (draft(read_text(name)), read_data(name))
    )
    assert of_page == of_data


@pytest.mark.parametrize("name", CHECKED)
def test_a_change_of_any_digit_is_noticed(name: str) -> None:
    """Only a name that becomes another known name is not: R50x1 to R50x2."""
    text = read_text(name)
    places = [digit.start() for digit in re.finditer(r"\d", text)]
    assert len(places) > 10
    changed = [f"{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}" for place in places]
    unnoticed = [(place, new) for place, new in zip(places, changed, strict=True) if matches(new, name)]
    assert [new[place - 40 : place + 20] for place, new in unnoticed if not is_name(find_word(new, place))] == []


def find_word(text: str, place: int) -> str:
    """Return the word around a place of a text."""
    return next((word[0] for word in WORD.finditer(text) if word.start() <= place < word.end()), "")


def test_the_first_difference_is_named() -> None:
    text = read_text("masked").replace("48.18", "48.19")
    assert [re.findall(r"48\.1\d|from scratch", difference) for difference in compare(text, "masked")] == [
        ["48.19", "48.18", "from scratch"]
    ]

"""Every command of the README runs, one after another, and prints what the page shows in kind; its links lead somewhere."""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from vitrine.cli import main
from vitrine.commands import demo
from vitrine.demo.config import DemoConfig
from vitrine.formats.registry import FORMATS

pytestmark = pytest.mark.usefixtures("short_runs")

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
READER = runpy.run_path(str(ROOT / "docs" / "readme.py"))
EXAMPLES = list(READER["find_examples"](TEXT.splitlines()))

# What makes a long command short: a few steps more are said than the page says.
SHORT = ("--total-steps", "3", "--optim.warmup-steps", "1")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the commands print, run in the order of the page in one folder; training takes a few steps only."""
    folder = tmp_path_factory.mktemp("reader")
    printed = {}
    for example in EXAMPLES:
        if example.command == "vitrine demo":
            printed[example.command] = tell_short_demo(folder)
        else:
            more = SHORT if example.command.startswith("vitrine finetune") else ()
            printed[example.command] = READER["run"](example.command, folder, *more)
    return printed


def tell_short_demo(folder: Path) -> list[str]:
    short = {"steps": 3, "pretrain_steps": 3, "num_drawn": 2, "num_measured": 4}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(demo, "DemoConfig", lambda **given: DemoConfig(**given, **short))
        main(["demo"])
    return printed.getvalue().splitlines()


def test_there_are_the_demo_and_six_tasks() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.command)
def test_a_command_prints_what_the_page_shows(example: Any, outputs: dict[str, list[str]]) -> None:
    """The same headings; figures are another run's."""
    assert describe(example.shown[0]) == describe(outputs[example.command][0])


def describe(line: str) -> list[str]:
    """Its words, without figures."""
    return [word for word in line.split() if not re.search(r"\d", word)]


def test_every_format_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| yes \|", TEXT, flags=re.MULTILINE)
    assert sorted(rows) == sorted(FORMATS)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:|#)([^)]+)\)", TEXT))))
def test_a_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()

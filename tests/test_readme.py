"""The commands of the README run and print tables like those on the page; it lists every public name; its links exist."""

import io
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import vitrine
from vitrine.cli import main
from vitrine.commands import demo
from vitrine.demo.config import DemoConfig
from vitrine.formats.registry import FORMATS

pytestmark = pytest.mark.usefixtures("short_runs")

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
READER = runpy.run_path(str(ROOT / "docs" / "readme.py"))
EXAMPLES = list(READER["find_examples"](TEXT.splitlines()))

# Options that make training short.
SHORT = ("--total-steps", "3", "--optim.warmup-steps", "1")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Output of the commands, run in the order of the page in one folder, with a few training steps."""
    folder = tmp_path_factory.mktemp("reader")
    printed = {}
    for example in EXAMPLES:
        if example.command == "vitrine demo":
            printed[example.command] = run_short_demo(folder)
        else:
            options = SHORT if example.command.startswith("vitrine finetune") else ()
            printed[example.command] = READER["run"](example.command, folder, *options)
    return printed


def run_short_demo(folder: Path) -> list[str]:
    short = {"steps": 3, "pretrain_steps": 3, "num_drawn": 2, "num_measured": 4}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(demo, "DemoConfig", lambda **given: DemoConfig(**given, **short))
        main(["demo"])
    return printed.getvalue().splitlines()


def test_the_page_has_the_demo_and_six_tasks() -> None:
    assert len(EXAMPLES) == 7


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.command)
def test_a_command_prints_the_headings_of_the_page(example: Any, outputs: dict[str, list[str]]) -> None:
    assert words_without_numbers(example.output[0]) == words_without_numbers(outputs[example.command][0])


def words_without_numbers(line: str) -> list[str]:
    return [word for word in line.split() if not re.search(r"\d", word)]


def test_the_python_api_lists_every_public_name() -> None:
    section = TEXT.split("## Python API\n", 1)[1].split("\n## ", 1)[0]
    names = {name for line in section.splitlines() if line.startswith("|") for name in re.findall(r"`(\w+)`", line)}
    assert names == set(vitrine.PUBLIC_NAMES) - {"__version__"}
    assert len(section.splitlines()) < 70, "it should fit on one page"


def test_every_format_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| yes \|", TEXT, flags=re.MULTILINE)
    assert sorted(rows) == sorted(FORMATS)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:|#)([^)]+)\)", TEXT))))
def test_a_linked_file_exists(link: str) -> None:
    assert (ROOT / link).exists()

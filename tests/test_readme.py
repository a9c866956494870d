"""The commands of the README run and print tables like those on the page; it lists every public name; its links exist."""

import io
import json
import re
import runpy
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import vitrine
from tests.figures import list_anchors
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


def test_the_page_has_the_demo_and_seven_tasks() -> None:
    assert len(EXAMPLES) == 8


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.command)
def test_a_command_prints_the_headings_of_the_page(example: Any, outputs: dict[str, list[str]]) -> None:
    assert words_without_numbers(example.output[0]) == words_without_numbers(outputs[example.command][0])


def test_the_output_is_the_recorded_one() -> None:
    """`make readme` records what it inserts."""
    recorded = json.loads((ROOT / "docs" / "results" / "data" / "readme-outputs.json").read_text(encoding="utf-8"))
    assert {example.command: list(example.output) for example in EXAMPLES} == recorded


@pytest.mark.full
def test_the_commands_print_the_figures_of_the_page(tmp_path: Path) -> None:
    """`make test-full` runs what `make readme` ran, and compares within the tolerances of docs/readme.py."""
    printed = {example.command: READER["run"](example.command, tmp_path) for example in EXAMPLES}
    differences = [READER["compare_outputs"](example.output, printed[example.command]) for example in EXAMPLES]
    assert [difference for each in differences for difference in each] == []


def replace_in_output(command: str, old: str, new: str) -> list[str]:
    """Return the differences that are found if a figure of a command's output on the page is another one."""
    (example,) = (each for each in EXAMPLES if each.command.startswith(command))
    text = "\n".join(example.output)
    assert re.search(old, text)
    return READER["compare_outputs"](example.output, re.sub(old, new, text, count=1).splitlines())


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("vitrine demo", r"184,904", "184,905"),  # a count of parameters
        ("vitrine demo", r"2\.594e-06", "2.595e-06"),
        ("vitrine demo", r"82\.54 %", "72.00 %"),  # an accuracy, by more than the tolerance
        ("vitrine demo", r"hybrid-scratch ", "hybrid-scratched"),  # a row
        ("vitrine finetune", r"14,400", "14,401"),
        ("vitrine predict", r"0 (\d\d)", r"1 \1"),  # a class
        ("vitrine evaluate", r"loss( +)0\.\d\d", r"loss\g<1>0.99"),
        ("vitrine inspect", r"layer 1( +)\d\d", r"layer 1\g<1>33"),
        ("vitrine convert", r"8 of 8", "7 of 8"),
        ("vitrine convert", r"  0  ", "  1  "),
        ("vitrine data check", r"1,437", "1,438"),
        ("vitrine data check", r"No problems", "Two problems"),
    ],
)
def test_another_figure_in_the_output_is_a_difference(command: str, old: str, new: str) -> None:
    assert replace_in_output(command, old, new)


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("vitrine demo", r"82\.54 %", "79.00 %"),
        ("vitrine demo", r"%( +)\d\d\.\d ", r"%\g<1>99.9 "),  # seconds
        ("vitrine evaluate", r"(\n\d  .*)(\n\d  .*)", r"\2\1"),  # classes are sorted by accuracy
    ],
)
def test_rounding_and_time_are_not_a_difference(command: str, old: str, new: str) -> None:
    assert replace_in_output(command, old, new) == []


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
    path, _, anchor = link.partition("#")
    assert (ROOT / path).exists()
    assert not anchor or anchor in list_anchors(path)

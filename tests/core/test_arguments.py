"""Words become values, and what cannot be read becomes a sentence."""

import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest

from vitrine.core.arguments import parse_arguments, parse_known_options, parse_options, unbox


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    """How quick."""
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate} must be above 0.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    num_steps: int | None = None
    is_quick: bool = False
    text: str = ""


DEFAULTS = Outer(inner=Inner(rate=0.5, kind="b", sizes=(7,)), num_steps=3, is_quick=True, text="as it was")


def parse(*words: str) -> Outer:
    return parse_options("test", Outer, list(words), DEFAULTS)


def complain(*words: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is what each test looks at)
        parse(*words)
    return str(caught.value)


def test_what_is_not_given_is_as_in_the_defaults() -> None:
    assert parse() == DEFAULTS


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("--inner.rate", "1e-3"), replace(DEFAULTS, inner=replace(DEFAULTS.inner, rate=1e-3))),
        (("--inner.rate=2",), replace(DEFAULTS, inner=replace(DEFAULTS.inner, rate=2.0))),
        (("--inner.sizes", "4", "5", "6"), replace(DEFAULTS, inner=replace(DEFAULTS.inner, sizes=(4, 5, 6)))),
        (("--num-steps", "None"), replace(DEFAULTS, num_steps=None)),
        (("--num_steps", "9"), replace(DEFAULTS, num_steps=9)),
        (("--no-is-quick",), replace(DEFAULTS, is_quick=False)),
        (("--text", "two words"), replace(DEFAULTS, text="two words")),
        (("--text", ""), replace(DEFAULTS, text="")),
    ],
)
def test_what_is_given_is_changed_and_nothing_else(words: tuple[str, ...], changed: Outer) -> None:
    assert parse(*words) == changed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--inner.rate", "quick"), ("--inner.rate", "quick")),
        (("--inner.kind", "c"), ("--inner.kind", "c")),
        (("--inner.rat", "1"), ("--inner.rat",)),
        (("--bogus",), ("--bogus",)),
        (("word",), ("word",)),
        (("--num-steps",), ("--num-steps",)),
        (("--num-steps", "1.5"), ("--num-steps", "1.5")),
    ],
)
def test_what_cannot_be_read_costs_one_sentence(
    words: tuple[str, ...], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = complain(*words)
    assert all(name in sentence for name in named)
    assert "\n" not in sentence
    assert not set(sentence) & set("│─╭╮╰╯")
    assert sentence.endswith(". All options: `vitrine test --help`.")
    assert capsys.readouterr() == ("", "")


def test_a_check_of_the_dataclass_keeps_its_own_words() -> None:
    assert "rate=-1.0 must be above 0." in complain("--inner.rate", "-1")


@pytest.mark.parametrize("columns", ["20", "80", "200"])
def test_a_long_word_is_not_broken_by_a_narrow_window(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    word = "/a/folder/" + "of/many/parts/" * 12 + "model.safetensors"
    assert word in complain("--num-steps", word)


def test_help_is_no_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code in (None, 0)
    out, err = capsys.readouterr()
    assert "usage: vitrine test" in out
    assert "How quick." in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), DEFAULTS),
        (("--bogus", "5", "--num-steps", "9", "--other.flag"), replace(DEFAULTS, num_steps=9)),
        (("word", "--num-steps=9", "--bogus=5"), replace(DEFAULTS, num_steps=9)),
        (("--help",), DEFAULTS),
        (("-h", "--num-steps", "9"), replace(DEFAULTS, num_steps=9)),
        (("--inner.sizes", "4", "5", "--bogus", "6", "7"), replace(DEFAULTS, inner=replace(DEFAULTS.inner, sizes=(4, 5)))),
        (("--num-steps", "many"), None),
        (("--inner.rate", "-1"), None),
        (("--num-steps",), None),
    ],
)
def test_some_words_are_known_among_others(
    words: tuple[str, ...], found: Outer | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_known_options(Outer, list(words), DEFAULTS) == found
    assert capsys.readouterr() == ("", "")


def test_a_command_is_bound_and_not_yet_called() -> None:
    called: list[tuple[str, int]] = []

    def command(name: str, /, number: int = 3) -> None:
        """Do something."""
        called.append((name, number))

    bound = parse_arguments("test", command, ["here", "--number", "4"])
    assert called == []
    bound()
    parse_arguments("test", command, ["there"])()
    assert called == [("here", 4), ("there", 3)]


def test_what_a_command_needs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    def command(data: str, /) -> None:
        """Do something."""

    with pytest.raises(ValueError, match=r"data.*All options: `vitrine data pack --help`\.$"):
        parse_arguments("data pack", command, [])
    assert capsys.readouterr() == ("", "")


def test_an_error_of_the_command_is_not_the_parser_s() -> None:
    def command() -> None:
        raise ValueError("from within")

    with pytest.raises(ValueError, match=r"^from within$"):
        parse_arguments("test", command, [])()


UTF8_BOX = """\
╭─ Value error ───╮
│ Not a number:   │
│ 'x'             │
│ ─────────────── │
│ see --help      │
╰─────────────────╯
"""
ASCII_BOX = """\
Value error
-----------
Not a number: 'x'
-----------
see --help
"""


@pytest.mark.parametrize("box", [UTF8_BOX, ASCII_BOX, UTF8_BOX.replace("│", "\x1b[31m│\x1b[0m"), "ignored\nNot a number: 'x'"])
def test_the_sentence_is_taken_out_of_its_box(box: str) -> None:
    assert unbox(box) == "Not a number: 'x'."


def test_words_are_read_where_torch_is_blocked() -> None:
    """As for `--help`, which must not wait for it; and it is blocked as before, behind."""
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from tests.core.test_arguments import parse\n"
        "assert parse('--num-steps', '5').num_steps == 5\n"
        "assert sys.modules['torch'] is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)

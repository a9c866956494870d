"""Arguments become values, and bad input becomes one sentence."""

import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import pytest
from tyro.conf import Positional, arg

from vitrine.core import arguments
from vitrine.core.arguments import list_options, parse_arguments, parse_known_options, parse_options


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1
    """Learning rate."""
    kind: Literal["a", "b"] = "a"
    sizes: tuple[int, ...] = (1, 2)

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate={self.rate} must be above 0.")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    num_steps: int | None = None
    choice: Literal["x", "y"] | None = None
    pair: tuple[int, int] | None = None
    is_quick: bool = False
    no_cache: bool = False
    text: str = ""
    file: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Group:
    COMMON: ClassVar[tuple[str, ...]] = ("learning_rate",)

    learning_rate: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Nested:
    inner: Group = field(default_factory=Group)
    flat: Annotated[Inner, arg(name="")] = field(default_factory=Inner)
    num_steps: int = 1
    choice: str = ""


DEFAULTS = Outer(inner=Inner(rate=0.5, kind="b", sizes=(7,)), num_steps=3, choice="x", is_quick=True, text="some text")


def parse(*words: str) -> Outer:
    return parse_options("test", Outer, list(words), DEFAULTS)


def read_error(*words: str) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the message is what each test looks at)
        parse(*words)
    return str(caught.value)


def test_options_that_are_not_given_keep_their_defaults() -> None:
    assert parse() == DEFAULTS


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("--inner.rate", "1e-3"), replace(DEFAULTS, inner=replace(DEFAULTS.inner, rate=1e-3))),
        (("--inner.rate=2",), replace(DEFAULTS, inner=replace(DEFAULTS.inner, rate=2.0))),
        (("--inner.sizes", "4", "5", "6"), replace(DEFAULTS, inner=replace(DEFAULTS.inner, sizes=(4, 5, 6)))),
        (("--num-steps", "None"), replace(DEFAULTS, num_steps=None)),
        (("--num_steps", "9"), replace(DEFAULTS, num_steps=9)),
        (("--choice", "y"), replace(DEFAULTS, choice="y")),
        (("--choice", "None"), replace(DEFAULTS, choice=None)),
        (("--pair", "2", "3"), replace(DEFAULTS, pair=(2, 3))),
        (("--pair", "None"), DEFAULTS),
        (("--no-is-quick",), replace(DEFAULTS, is_quick=False)),
        (("--no-cache",), replace(DEFAULTS, no_cache=True)),
        (("--text", "two words"), replace(DEFAULTS, text="two words")),
        (("--text", ""), replace(DEFAULTS, text="")),
    ],
)
def test_only_the_given_options_change(words: tuple[str, ...], changed: Outer) -> None:
    assert parse(*words) == changed


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--inner.rate", "quick"), ("--inner.rate", "quick", "FLOAT")),
        (("--inner.kind", "c"), ("--inner.kind", "c", "a, b")),
        (("--choice", "z"), ("--choice", "z", "x, y")),
        (("--inner.rat", "1"), ("--inner.rat",)),
        (("--bogus",), ("--bogus",)),
        (("word",), ("word",)),
        (("--num-steps",), ("--num-steps", "INT")),
        (("--num-steps", "1.5"), ("--num-steps", "1.5")),
        (("--pair", "1", "2", "3"), ("3",)),
        (("--no-no-cache",), ("--no-no-cache",)),
        (("--inner.rate", "-1"), ("rate=-1.0 must be above 0.",)),
    ],
)
def test_bad_input_is_one_sentence(words: tuple[str, ...], named: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = read_error(*words)
    assert all(name in sentence for name in named)
    assert "\n" not in sentence
    assert not set(sentence) & set("│─╭╮╰╯")
    assert sentence.endswith(". All options: `vitrine test --help`.")
    assert capsys.readouterr() == ("", "")


def test_a_long_word_is_whole_in_a_narrow_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    word = "/a/folder/" + "of/many/parts/" * 12 + "model.safetensors"
    assert word in read_error("--num-steps", word)


def test_without_the_private_module_tyro_reports_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tyro

    assert tyro is not None
    monkeypatch.setitem(sys.modules, "tyro._errors", None)
    with pytest.raises(SystemExit) as stop:
        parse("--bogus")
    assert stop.value.code == 2
    assert "--bogus" in capsys.readouterr().err


def test_an_old_spelling_of_an_option_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arguments, "OPTION_ALIASES", {"--steps": "--num-steps"})
    assert parse("--steps", "9") == parse("--steps=9") == replace(DEFAULTS, num_steps=9)
    assert parse_known_options(Outer, ["--steps", "9"], DEFAULTS) == replace(DEFAULTS, num_steps=9)
    assert parse("--text", "steps").text == "steps"


def test_options_are_listed_with_their_groups() -> None:
    assert list(list_options(Nested)) == ["--inner.learning-rate", "--rate", "--kind", "--sizes", "--num-steps", "--choice"]


def test_a_short_form_is_accepted_where_it_is_given() -> None:
    short = {"--rate": "--inner.rate"}
    assert parse_options("test", Outer, ["--rate=2"], DEFAULTS, short).inner.rate == 2.0
    assert "--inner.rate" in read_error("--rate", "2")


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("--lr=3", "--lr (nearest: --inner.learning-rate)"),  # a name that other tools have
        ("--chioce", "(nearest: --choice)"),
        ("--bogus", "--bogus. "),  # nothing is near
    ],
)
def test_an_unknown_option_names_the_nearest(word: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=re.escape(nearest)):
        parse_options("test", Nested, [word], Nested())


def test_help_shows_the_common_fields_and_help_all_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Config:
        COMMON: ClassVar[tuple[str, ...]] = ("size",)
        size: int = 1
        rare: int = 2

    texts = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stop:
            parse_options("test", Config, [word], Config())
        assert stop.value.code == 0
        texts.append(capsys.readouterr().out)
    assert ["--size" in text for text in texts] == [True, True]
    assert ["--rare" in text for text in texts] == [False, True]
    assert ["vitrine test --help-all" in text for text in texts] == [True, False]
    assert parse_options("test", Config, ["--rare", "3"], Config()) == Config(rare=3)


def test_help_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse("--help")
    assert stop.value.code in (None, 0)
    out, err = capsys.readouterr()
    assert "usage: vitrine test" in out
    assert "Learning rate. (default: 0.5)" in out
    assert "--file PATH" in out
    assert "--choice {x,y}" in out
    assert "None" not in out
    assert "(default: )" not in out
    assert "--no-cache" in out
    assert "--no-no-cache" not in out
    assert err == ""


@pytest.mark.parametrize(
    ("words", "known"),
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
def test_known_options_are_found_among_others(
    words: tuple[str, ...], known: Outer | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_known_options(Outer, list(words), DEFAULTS) == known
    assert capsys.readouterr() == ("", "")


def test_a_command_is_bound_and_not_yet_called() -> None:
    called: list[tuple[str, int, str | None]] = []

    def command(name: str, /, number: int = 3, device: str | None = None) -> None:
        """Do something."""
        called.append((name, number, device))

    bound = parse_arguments("test", command, ["here", "--number", "4"])
    assert called == []
    bound()
    parse_arguments("test", command, ["there", "--device", "cuda"])()
    assert called == [("here", 4, None), ("there", 3, "cuda")]


def test_missing_arguments_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    def command(data: Annotated[Positional[str], arg(metavar="DATA")], *, out: Path) -> None:
        """Do something."""

    with pytest.raises(ValueError, match=r"Missing: DATA, --out\..*`vitrine data pack --help`"):
        parse_arguments("data pack", command, [])
    with pytest.raises(ValueError, match=r"--out.*--bogus"):
        parse_arguments("data pack", command, ["images", "--bogus"])
    assert capsys.readouterr() == ("", "")


def test_help_of_a_command_is_its_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    def command(data: str, /, device: str | None = None, no_cache: bool = False) -> None:
        """Do something.

        Args:
            data: Images.
            device: Device (default: GPU if available).
            no_cache: Do not use the cache.
        """

    with pytest.raises(SystemExit):
        parse_arguments("test", command, ["--help"])
    out = capsys.readouterr().out
    for text in ("Do something.", "Images.", "--device STR", "Device (default: GPU if available).", "Do not use the cache."):
        assert text in out
    assert "None" not in out
    assert "--no-no-cache" not in out


def test_an_error_of_the_command_is_not_the_parser_s() -> None:
    def command() -> None:
        raise ValueError("from within")

    with pytest.raises(ValueError, match=r"^from within$"):
        parse_arguments("test", command, [])()


def test_importing_the_parser_does_not_import_tyro() -> None:
    """`vitrine --help` needs no parser and must not wait for it."""
    script = "import sys, vitrine.core.arguments; assert 'tyro' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)

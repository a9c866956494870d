"""Tests of core/console.py.

Tables keep their figures whole, sizes have three digits, a size of images is one number or two, progress is for people.
Foreign words in our sentences.
What the library says aloud: a warning to programs, one line to people.
"""

import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest

from vitrine.cli import notices_in_a_line
from vitrine.core.console import (
    VitrineWarning,
    format_bytes,
    format_figure,
    join_names,
    parse_image_size,
    print_error,
    print_table,
    progress_bar,
    summarise,
    warn_user,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (346_270_624, "346 MB"), (7.38e9, "7.38 GB"), (2e15, "2e+03 TB")],
)
def test_sizes_have_three_digits_and_a_unit(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("figure", "text"), [(0.43372, "0.4337"), (17.564, "17.56"), (999.94, "999.9"), (111_800.4, "111,800")]
)
def test_figures_are_never_in_powers_of_ten(figure: float, text: str) -> None:
    assert format_figure(figure) == text


def test_a_narrow_window_does_not_cut_figures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["name", "figure"], [["x" * 30, "1,234,567,890"]])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 30 + "  1,234,567,890"


def test_errors_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ValueError("wrong"))
    assert capsys.readouterr() == ("", "vitrine: wrong\n")


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("224x320", (224, 320)), ("1x007", (1, 7)), ("0", (0, 0))])
def test_one_number_or_two_are_a_size(text: str, size: tuple[int, int]) -> None:
    assert parse_image_size(text, "--image-size") == size  # whether a model can be so small is for its configuration to say


@pytest.mark.parametrize(
    "text", ["", "x", "224x", "x224", "2x2x2", "-224", "22.4", " 224", "2 x 2", "224X224", "²", "1e3", "all"]
)
def test_anything_else_costs_a_sentence(text: str) -> None:
    message = f"--size {text} must be one number, as 224, or two, height and width, as 224x320."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        parse_image_size(text, "--size")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show_on(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, **environment: str) -> io.StringIO:
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = show_on(Terminal(), monkeypatch)
    assert list(progress_bar(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert "letters" in screen.getvalue()
    assert "3/3" in screen.getvalue()
    assert capsys.readouterr().out == ""


def test_progress_is_not_shown_to_whom_it_is_no_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for screen, is_shown in ((io.StringIO(), True), (io.StringIO(), False), (Terminal(), False)):
        show_on(screen, monkeypatch)
        assert list(progress_bar(range(5), 5, "numbers", is_shown)) == [0, 1, 2, 3, 4]
        assert screen.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_a_wish_for_colours_does_not_make_a_log_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR is set on many build servers, whose logs would fill with bars."""
    screen = show_on(io.StringIO(), monkeypatch, FORCE_COLOR="1")
    assert list(progress_bar(range(5), 5, "numbers")) == [0, 1, 2, 3, 4]
    assert screen.getvalue() == ""


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
@pytest.mark.parametrize("title", ["[red]", "[/red]", "[/]", "100%", "{x}", ""])
def test_a_title_is_shown_as_it_is(title: str, screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = show_on(screen(), monkeypatch)
    assert list(progress_bar(range(2), 2, title)) == [0, 1]
    assert title in shown.getvalue() or screen is io.StringIO


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
@pytest.mark.parametrize(("count", "total"), [(0, 0), (0, 3), (5, 3), (2, 3)])
def test_a_wrong_total_changes_no_item(
    count: int, total: int, screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_on(screen(), monkeypatch)
    assert list(progress_bar(range(count), total, "numbers")) == list(range(count))


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
def test_progress_takes_one_item_at_a_time_and_ends_with_its_reader(
    screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = show_on(screen(), monkeypatch)
    taken: list[int] = []

    def count() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    items = progress_bar(count(), 100, "numbers")
    assert taken == []
    assert [next(items), next(items)] == [0, 1]
    assert taken == [0, 1]
    items.close()
    assert taken == [0, 1]
    if screen is Terminal:
        assert "\x1b[?25h" in shown.getvalue()  # the cursor is back
    assert sys.stderr is shown


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_an_error_passes_through_progress(
    error: BaseException, screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = show_on(screen(), monkeypatch)

    def fail() -> Iterator[int]:
        yield 1
        raise error

    with pytest.raises(type(error)) as raised:
        list(progress_bar(fail(), 2, "numbers"))
    assert raised.value is error
    assert sys.stderr is shown
    if screen is Terminal:
        assert "\x1b[?25h" in shown.getvalue()


def test_cells_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files and classes are no markup, and may hold bytes that are no UTF-8."""
    names = ["photo[copy].png", "[/a]", ":cat:", "[bold]b", os.fsdecode(b"a\xff")]
    print_table(("image", "1."), [(name, name) for name in names])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [[name, name] for name in [*names[:4], r"a\udcff"]]


def test_long_lists_are_cut() -> None:
    assert join_names([str(number) for number in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert join_names([str(number) for number in range(12)], limit=2) == "0, 1 and 10 more"


def test_a_name_stays_on_its_line() -> None:
    assert join_names(["a", "two\nlines"]) == "a, 'two\\nlines'"


def test_an_error_is_its_first_sentence() -> None:
    assert summarise(RuntimeError("No room. Try again.\nframe 0")) == "No room"
    assert summarise(KeyError()) == "KeyError"
    assert len(summarise(ValueError("x" * 1000))) == 200


def test_a_notice_is_a_warning_of_its_own_kind() -> None:
    with pytest.warns(VitrineWarning, match="^taken as usual$") as caught:
        warn_user("taken as usual")
    assert [warning.category for warning in caught] == [VitrineWarning]
    assert caught[0].filename == __file__  # of the one who gave it
    assert issubclass(VitrineWarning, UserWarning)


def test_the_command_line_shows_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with notices_in_a_line():
        for text in ("taken as usual", "another", "taken as usual"):
            warn_user(text)
    assert capsys.readouterr() == ("", "vitrine: taken as usual\nvitrine: another\n")


def test_afterwards_a_notice_is_a_warning_again() -> None:
    show = warnings.showwarning
    with pytest.raises(RuntimeError), notices_in_a_line():
        raise RuntimeError
    assert warnings.showwarning is show
    with pytest.warns(VitrineWarning):
        warn_user("taken as usual")


SCRIPT = """
import warnings
from vitrine.cli import notices_in_a_line
from vitrine.core.console import notice
with notices_in_a_line():
    notice("ours")
    warnings.warn("theirs")
"""


@pytest.mark.parametrize(("options", "shown"), [([], ["<string>:7: UserWarning: theirs"]), (["-W", "ignore"], [])])
def test_other_warnings_are_shown_as_python_shows_them(options: list[str], shown: list[str]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["vitrine: ours", *shown]
    assert done.stdout == ""

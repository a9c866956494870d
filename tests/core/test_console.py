"""Tables keep their numbers whole, progress bars are for terminals, warnings are one line."""

import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator

import pytest

from vitrine.core import console
from vitrine.core.console import (
    COMMAND_OPTIONS,
    VitrineWarning,
    describe_os_error,
    escape_controls,
    format_bytes,
    format_number,
    join_names,
    name_setting,
    parse_image_size,
    print_error,
    print_lines,
    print_notice,
    print_table,
    print_warning,
    progress_bar,
    summarise_error,
    warn_user,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (346_270_624, "346 MB"), (7.38e9, "7.38 GB"), (2e15, "2e+03 TB")],
)
def test_bytes_have_three_digits_and_a_unit(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0.43372, "0.4337"), (17.564, "17.56"), (999.94, "999.9"), (111_800.4, "111,800")]
)
def test_numbers_have_four_digits_and_no_exponent(number: float, text: str) -> None:
    assert format_number(number) == text


def test_a_narrow_window_does_not_cut_numbers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["name", "number"], [["x" * 30, "1,234,567,890"]])
    assert capsys.readouterr().out.splitlines()[1] == "x" * 30 + "  1,234,567,890"


def test_errors_and_warnings_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ValueError("wrong"))
    print_warning("doubtful")
    assert capsys.readouterr() == ("", "vitrine: wrong\nWarning: doubtful\n")


@pytest.mark.parametrize(("text", "size"), [("224", (224, 224)), ("224x320", (224, 320)), ("1x007", (1, 7)), ("0", (0, 0))])
def test_an_image_size_is_one_number_or_two(text: str, size: tuple[int, int]) -> None:
    assert parse_image_size(text, "--image-size") == size  # the model's config checks the range


@pytest.mark.parametrize(
    "text", ["", "x", "224x", "x224", "2x2x2", "-224", "22.4", " 224", "2 x 2", "224X224", "²", "1e3", "all"]
)
def test_any_other_image_size_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'--size {text} ')}.*224x320"):
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


def test_progress_is_hidden_without_a_terminal_or_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for screen, is_shown in ((io.StringIO(), True), (io.StringIO(), False), (Terminal(), False)):
        show_on(screen, monkeypatch)
        assert list(progress_bar(range(5), 5, "numbers", is_shown)) == [0, 1, 2, 3, 4]
        assert screen.getvalue() == ""
    assert capsys.readouterr().out == ""


def test_force_color_does_not_make_a_log_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """FORCE_COLOR is set on many build servers, whose logs would fill with bars."""
    screen = show_on(io.StringIO(), monkeypatch, FORCE_COLOR="1")
    assert list(progress_bar(range(5), 5, "numbers")) == [0, 1, 2, 3, 4]
    assert screen.getvalue() == ""


@pytest.mark.parametrize("screen", [Terminal, io.StringIO])
@pytest.mark.parametrize("title", ["[red]", "[/red]", "[/]", "100%", "{x}", ""])
def test_a_title_is_shown_verbatim(title: str, screen: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_cells_are_shown_verbatim(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of files and classes are not markup, and may hold bytes that are not UTF-8."""
    names = ["photo[copy].png", "[/a]", ":cat:", "[bold]b", os.fsdecode(b"a\xff")]
    print_table(("image", "1."), [(name, name) for name in names])
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert shown == [[name, name] for name in [*names[:4], r"a\udcff"]]


def test_long_lists_are_cut() -> None:
    assert join_names([str(number) for number in range(8)]) == "0, 1, 2, 3, 4, 5, 6, 7"
    assert join_names([str(number) for number in range(12)], limit=2) == "0, 1 and 10 more"


def test_a_name_with_a_line_break_stays_on_one_line() -> None:
    assert join_names(["a", "two\nlines"]) == "a, two\\nlines"


def test_an_error_is_its_first_sentence() -> None:
    assert summarise_error(RuntimeError("No room. Try again.\nframe 0")) == "No room"
    assert summarise_error(KeyError()) == "KeyError"
    assert len(summarise_error(ValueError("x" * 1000))) == 200


def test_a_warning_has_its_own_category_and_the_place_of_its_caller() -> None:
    with pytest.warns(VitrineWarning, match="^assumed$") as caught:
        warn_user("assumed")
    assert [warning.category for warning in caught] == [VitrineWarning]
    assert caught[0].filename == __file__
    assert issubclass(VitrineWarning, UserWarning)


HOSTILE = (
    "a\x1b[31mred\u202egnp.jpg\x9b2J\u2066\u200e\u200f\u061c\nvitrine: all is well\r\t\x00\x7f\u2028\ufeff\u200b\U000e0041"
)


def test_controls_become_visible_escapes() -> None:
    shown = escape_controls(HOSTILE)
    assert shown.isprintable()
    assert shown == (
        r"a\x1b[31mred\u202egnp.jpg\x9b2J\u2066\u200e\u200f\u061c\nvitrine: all is well\r\t\x00\x7f\u2028\ufeff\u200b\U000e0041"
    )
    assert escape_controls(shown) == shown


def test_every_character_that_unicode_calls_a_control_or_reorders_text_is_escaped() -> None:
    """Unicode's own tables decide: category Cc, and the bidirectional classes of marks, embeddings and isolates."""
    marks = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "B")
    hostile = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.bidirectional(chr(code)) in marks]
    hostile += [chr(code) for code in range(256) if unicodedata.category(chr(code)) == "Cc"]
    assert [letter for letter in hostile if escape_controls(letter) == letter] == []


def test_letters_marks_numbers_punctuation_and_symbols_of_all_scripts_stay() -> None:
    letters = (chr(code) for code in range(32, sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "LMNPS")
    assert all(escape_controls(letter) == letter for letter in letters)


@pytest.mark.parametrize(
    "name",
    [
        "naïve café",
        "日本語",
        "👩\u200d💻 ❤️\u200d🔥 🇩🇪 👍🏽",
        "עברית",
        "العربية",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "क्\u200dष",
        "cat (1)",
        r"C:\x1b",
    ],
)
def test_ordinary_text_stays_as_it_is(name: str) -> None:
    assert escape_controls(name) == name


@pytest.mark.parametrize("name", ["c\u200dat", "\u200dcat", "cat\u200c", "日\u200d", "👩\u200d\u200d💻", "1\u200c2"])
def test_joiners_that_join_nothing_are_shown(name: str) -> None:
    assert "\\u200" in escape_controls(name)


def test_nothing_that_is_printed_keeps_its_controls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_lines(HOSTILE, "second line")
    print_table((HOSTILE, "1."), [(HOSTILE, HOSTILE)])
    print_notice(HOSTILE)
    print_error(HOSTILE)
    print_warning(HOSTILE)
    output = capsys.readouterr()
    assert [line.isprintable() for line in output.out.splitlines()] == [True] * 4
    assert [line.isprintable() for line in output.err.splitlines()] == [True] * 3
    screen = show_on(Terminal(), monkeypatch, COLUMNS="300")
    assert list(progress_bar(range(2), 2, HOSTILE)) == [0, 1]
    assert escape_controls(HOSTILE) in screen.getvalue()
    assert not any(mark in screen.getvalue() for mark in ("\x1b[31mred", "\u202e", "\x9b", "\u2066"))


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.ENOSPC, errno.ESTALE])
def test_an_error_of_the_system_is_a_sentence_without_its_number(number: int) -> None:
    error = OSError(number, os.strerror(number), "some/file")
    assert re.fullmatch(rf"some/file: {os.strerror(number)}; .*\.", describe_os_error(error))
    assert "Errno" not in describe_os_error(OSError(number, os.strerror(number)))
    assert summarise_error(error) == os.strerror(number)


def test_an_error_that_is_a_sentence_already_stays() -> None:
    assert describe_os_error(OSError("The disk is full.")) == "The disk is full."


def test_a_delayed_bar_appears_only_if_items_are_still_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show_on(Terminal(), monkeypatch)
    monkeypatch.setattr(console, "DELAY_S", 3600.0)
    assert list(progress_bar(iter("abc"), None, "letters", is_delayed=True)) == ["a", "b", "c"]
    assert screen.getvalue() == ""
    monkeypatch.setattr(console, "DELAY_S", 0.0)
    assert list(progress_bar(iter("abc"), None, "letters", is_delayed=True)) == ["a", "b", "c"]
    assert "letters" in screen.getvalue()


def test_only_the_first_of_several_processes_draws_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = show_on(Terminal(), monkeypatch, RANK="1")
    assert list(progress_bar(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert screen.getvalue() == ""


def test_a_setting_is_named_as_the_caller_gives_it() -> None:
    assert (name_setting("out"), name_setting("data.changed", "accept")) == ("out", "data.changed='accept'")
    token = COMMAND_OPTIONS.set(lambda: ["--out", "--model.gelu"])
    try:
        assert name_setting("out") == "--out"
        assert name_setting("gelu", "erf") == "--model.gelu erf"
        assert name_setting("num_heads") == "--num-heads of `vitrine convert`"
    finally:
        COMMAND_OPTIONS.reset(token)

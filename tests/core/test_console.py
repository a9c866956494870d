"""Tables keep their figures whole, sizes have three digits, a size of images is one number or two."""

import re

import pytest

from vitrine.core.console import format_bytes, format_figure, parse_image_size, print_error, print_table


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

"""Tables keep their figures whole, sizes have three digits."""

import pytest

from vitrine.core.console import format_bytes, format_figure, print_error, print_table


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

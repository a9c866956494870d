"""What the library says aloud: a warning to programs, one line to people."""

import subprocess
import sys
import warnings

import pytest

from vitrine.cli import notices_in_a_line
from vitrine.core.notices import Notice, notice


def test_a_notice_is_a_warning_of_its_own_kind() -> None:
    with pytest.warns(Notice, match="^taken as usual$") as caught:
        notice("taken as usual")
    assert [warning.category for warning in caught] == [Notice]
    assert caught[0].filename == __file__  # of the one who gave it
    assert issubclass(Notice, UserWarning)


def test_the_command_line_shows_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with notices_in_a_line():
        for text in ("taken as usual", "another", "taken as usual"):
            notice(text)
    assert capsys.readouterr() == ("", "vitrine: taken as usual\nvitrine: another\n")


def test_afterwards_a_notice_is_a_warning_again() -> None:
    show = warnings.showwarning
    with pytest.raises(RuntimeError), notices_in_a_line():
        raise RuntimeError
    assert warnings.showwarning is show
    with pytest.warns(Notice):
        notice("taken as usual")


SCRIPT = """
import warnings
from vitrine.cli import notices_in_a_line
from vitrine.core.notices import notice
with notices_in_a_line():
    notice("ours")
    warnings.warn("theirs")
"""


@pytest.mark.parametrize(("options", "shown"), [([], ["<string>:7: UserWarning: theirs"]), (["-W", "ignore"], [])])
def test_other_warnings_are_shown_as_python_shows_them(options: list[str], shown: list[str]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["vitrine: ours", *shown]
    assert done.stdout == ""

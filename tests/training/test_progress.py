"""Progress of a run as lines in a log, and as a bar on a terminal, always below the messages."""

import io
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from vitrine.training.progress import SECONDS_BETWEEN_DRAWS, Progress, format_duration

RECORD = {"step": 7, "loss": 1.23449, "accuracy": 0.567, "rate": 3e-4, "grad_norm": 2.0, "images_per_s": 210.4, "waited": 0.031}
NAMES = ("accuracy",)
METRICS = "loss 1.234  accuracy 0.567  lr 0.0003  210 images/s  data wait 3 %"


class Clock:
    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Terminal:
    """Replace standard error by a fake terminal, within a test because pytest captures it for each."""
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in ({"TERM": "xterm", "COLUMNS": "80"} | environment).items():
        monkeypatch.setenv(variable, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def show(written: str) -> list[str]:
    """Return the lines that a terminal shows, following the commands that move the cursor and erase a line."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|.", written, flags=re.DOTALL):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part.startswith("\x1b"):
            assert part[-1] in "mhl", f"{part!r} is not known here"  # colours, the cursor seen or not
        else:
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def run_until(error: BaseException) -> None:
    progress = Progress(10, 0, "run", NAMES, Clock())
    with pytest.raises(type(error)) as raised, progress:
        fail_at_step_3(progress, error)
    assert raised.value is error


def fail_at_step_3(progress: Progress, error: BaseException) -> None:
    for step in (1, 2, 3):
        progress.update(step, {"step": step, "loss": float("nan")})
    raise error


def test_a_log_has_the_first_and_last_line_and_one_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(1000, 0, "ViT-Ti/16 on flowers", NAMES, clock) as progress:
        for step in range(1, 1001):
            clock.now_s += 0.03
            progress.update(step, RECORD)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "ViT-Ti/16 on flowers"
    assert [line.split("/")[0] for line in lines] == ["step 1", "step 335", "step 669", "step 1000"]
    assert lines[1] == f"step 335/1000  {METRICS}  20 s left"
    assert lines[-1] == f"step 1000/1000  {METRICS}  took 30 s"


def test_remaining_time_of_a_resumed_run_ignores_earlier_steps(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress(1000, 900, "resumed", NAMES, clock) as progress:
        clock.now_s += 120.0
        progress.update(920, {"step": 920})
    assert capsys.readouterr().err.splitlines()[1:] == ["step 920/1000  8 min left"]


def test_an_interrupted_run_shows_its_last_step(capsys: pytest.CaptureFixture[str]) -> None:
    run_until(KeyboardInterrupt())
    assert capsys.readouterr().err.splitlines()[1:] == ["step 1/10  loss nan  0 s left", "step 3/10  loss nan  0 s left"]


def test_messages_are_printed_at_once_and_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, 0, "[run]", NAMES, Clock()) as progress:
        progress.print_message("[red] held out 0.43")
        assert capsys.readouterr() == ("", "[run]\n[red] held out 0.43\n")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TTY_INTERACTIVE": "0"}])
def test_a_terminal_without_a_cursor_gets_lines(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, **variables)
    with Progress(10, 0, "run", NAMES, Clock()) as progress:
        progress.update(10, {})
    assert terminal.getvalue() == "run\nstep 10/10  took 0 s\n"


def test_force_color_does_not_turn_a_log_into_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Progress(10, 0, "run", NAMES, Clock()) as progress:
        progress.update(10, {})
    assert capsys.readouterr().err == "run\nstep 10/10  took 0 s\n"


def test_the_bar_is_below_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    clock = Clock()
    with Progress(1000, 500, "ViT-Ti/16 on flowers", NAMES, clock) as progress:
        assert show(terminal.getvalue())[0].endswith("  500/1000")
        clock.now_s += 60.0
        progress.update(600, RECORD)
        progress.print_message("step 600  [held out] 0.43")
        print("a warning", file=sys.stderr)
        *said, bar, figures = show(terminal.getvalue())
        assert said == ["step 600  [held out] 0.43", "a warning"]
        assert re.fullmatch(r"ViT-Ti/16 on flowers  ━+╸?╺?━+  600/1000  4 min left", bar)
        assert figures == METRICS
        clock.now_s += 60.0
        progress.update(1000, RECORD)
    *said, bar, figures, below = show(terminal.getvalue())
    assert said == ["step 600  [held out] 0.43", "a warning"]
    assert bar.endswith("━  1000/1000  took 2 min")
    assert (figures, below) == (METRICS, "")
    assert sys.stderr is terminal


def test_the_bar_is_filled_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)

    def measure_bar(step: int) -> int:
        terminal.truncate(0)
        with Progress(1000, 0, "run", NAMES, Clock()) as progress:
            progress.update(step, {})
        last = terminal.getvalue().split("run")[-1]
        done = re.search("((?:\x1b\\[[0-9;]*m)*)(━+)", last)
        assert done is not None
        return len(done[2])

    assert measure_bar(500) == pytest.approx(measure_bar(1000) / 2, abs=2)  # half a character, and words of other lengths


@pytest.mark.parametrize("num_columns", [40, 80])
def test_metrics_are_complete_in_a_narrow_terminal(num_columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch, COLUMNS=str(num_columns))
    clock = Clock()
    with Progress(300_000, 0, "a title that is much longer than what there is room for", NAMES, clock) as progress:
        clock.now_s += 3600.0
        progress.update(100_000, RECORD)
    bar, *figures = show(terminal.getvalue())
    assert bar.endswith("  100000/300000  2 h 0 min left")
    assert " ".join(figures).split() == METRICS.split()
    assert max(map(len, [bar, *figures])) <= num_columns


def test_the_terminal_is_restored_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    run_until(ValueError("wrong"))
    assert terminal.getvalue().rindex("\x1b[?25h") > terminal.getvalue().rindex("\x1b[?25l")  # the cursor is back
    assert sys.stderr is terminal


RUN = """
from vitrine.training.progress import Progress
with Progress(4, 0, "run", (), iter(range(100)).__next__) as progress:
    for step in (1, 2, 3, 4):
        progress.update(step, {"loss": step / 8})
        print(f"output {step}")
    progress.print_message("saved")
"""


def test_the_bar_goes_to_the_terminal_and_standard_output_to_its_file(tmp_path: Path) -> None:
    """Standard output is a file here, so the bar must not draw its lines on the terminal."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TTY_")} | {"TERM": "xterm"}
    with (tmp_path / "output").open("wb") as output:
        subprocess.run([sys.executable, "-c", RUN], stdout=output, stderr=follower, env=environment, check=True)
    os.close(follower)
    written = b""
    while chunk := read_or_end(leader):
        written += chunk
    os.close(leader)
    said, bar, figures, below = show(written.decode())
    assert (said, figures, below) == ("saved", "loss 0.5", "")
    assert re.fullmatch(r"run  ━+  4/4  took \d+ s", bar)
    assert (tmp_path / "output").read_text() == "output 1\noutput 2\noutput 3\noutput 4\n"


def read_or_end(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Linux says so when the other side is closed and all is read
        return b""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (150.1, "3 min"),
        (3599.0, "1 h 0 min"),
        (12_000.0, "3 h 20 min"),
        (172_799.0, "2 days 0 h"),
        (371_000.0, "4 days 7 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_metrics_of_the_objective_are_shown_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, 0, "run", ("explained", "accuracy"), Clock()) as progress:
        progress.update(10, {"accuracy": 0.5, "grad_norm": 3.0, "explained": 0.25, "loss": 1.0})
    assert "  loss 1  explained 0.250  accuracy 0.500  took" in capsys.readouterr().err


@pytest.mark.parametrize(("speed", "text"), [(0.523, "0.52"), (9.96, "10"), (1234.5, "1,234"), (85.6, "86")])
def test_speeds(speed: float, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, 0, "run", NAMES, Clock()) as progress:
        progress.update(10, {"images_per_s": speed})
    assert f"  {text} images/s  " in capsys.readouterr().err


def test_importing_it_does_not_import_rich() -> None:
    code = "import sys, vitrine.training.progress; assert 'rich' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_bar_moves_between_logged_steps_but_not_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = open_terminal(monkeypatch), Clock()
    with Progress(1000, 0, "run", NAMES, clock) as progress:
        progress.update(10, RECORD)
        clock.now_s += SECONDS_BETWEEN_DRAWS
        progress.show_step(11)
        bar, figures = show(terminal.getvalue())
        assert "  11/1000  " in bar
        assert figures == METRICS
        written = terminal.getvalue()
        clock.now_s += SECONDS_BETWEEN_DRAWS / 2
        progress.show_step(12)
        assert terminal.getvalue() == written
        clock.now_s += SECONDS_BETWEEN_DRAWS / 2
        progress.show_step(13)
        assert "  13/1000  " in show(terminal.getvalue())[0]
    assert SECONDS_BETWEEN_DRAWS <= 0.5  # twice a second


def test_an_evaluation_is_counted_below_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, clock = open_terminal(monkeypatch), Clock()
    with Progress(1000, 0, "run", NAMES, clock) as progress:
        progress.update(500, RECORD)
        lines = []
        for _ in progress.track(iter("abc"), 3, "evaluating on [val]"):
            lines.append(show(terminal.getvalue())[1])
            clock.now_s += 1.0
        assert lines == [f"evaluating on [val] {number}/3" for number in range(3)]
        assert show(terminal.getvalue())[1] == METRICS


def test_steps_and_evaluations_are_not_in_logs(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(10, 0, "run", NAMES, Clock()) as progress:
        progress.show_step(1)
        assert list(progress.track(iter("abc"), 3, "evaluating")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "run\n"

"""The command line: help, one line and status 2 for a mistake, one line for a warning."""

import errno
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import warnings
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.data.pictures import write_classes
from tests.test_package import BLOCK_TORCH
from tests.training.test_progress import read_or_end
from vitrine import cli
from vitrine.core.console import VitrineWarning, warn_user


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return stop.value.code, output.out, output.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name}  " in out for name in cli.COMMANDS)


def test_without_a_command_the_help_is_shown_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    assert "usage: vitrine COMMAND" in out


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "model")
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: Unknown command 'model'. Nearest: models.")
    assert err.count("\n") == 1


def test_an_error_within_a_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models", "ViT-B/17x")
    assert (code, out) == (2, "")
    assert "'ViT-B/17x'" in err
    assert "ViT-B/16" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["models", "--bogus", "3"], "--bogus"),
        (["models", "--num-classes", "x"], "--num-classes"),
        (["data", "pack", "digits", "out", "--bogus"], "--bogus"),
        (["data", "pack", "--bogus"], "DATA"),
        (["data", "pack"], "DATA, OUT"),
    ],
)
def test_bad_options_are_one_line_that_names_the_command(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert named in err
    assert f" All options: `vitrine {cli.split_command(words)[0]} --help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "name", "rest"),
    [
        (["models"], "models", []),
        (["models", "data", "pack"], "models", ["data", "pack"]),
        (["data", "pack"], "data pack", []),
        (["data", "pack", "DATA", "--size", "64"], "data pack", ["DATA", "--size", "64"]),
        (["data"], "data", []),
        (["data", "foo", "bar"], "data foo", ["bar"]),
        (["pack", "data"], "pack", ["data"]),
    ],
)
def test_a_command_has_one_word_or_two(arguments: list[str], name: str, rest: list[str]) -> None:
    assert cli.split_command(arguments) == (name, rest)


@pytest.mark.parametrize("words", [[], ["foo"], ["foo", "bar"], ["packs"], ["Pack"], ["--help"], ["-h"], ["--size", "3"], [""]])
def test_the_first_word_alone_leads_to_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "data", *words)
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: Unknown command 'data")
    assert "data pack" in err
    assert err.count("\n") == 1


def test_the_second_word_alone_leads_to_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "pack")
    assert code == 2
    assert "data pack" in err


@pytest.mark.parametrize("words", [["help", "data", "pack"], ["data", "pack", "help"], ["data", "pack", "--help-all"]])
def test_help_is_a_word_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, *words) == run(capsys, "data", "pack", "--help")
    assert run(capsys, "help") == run(capsys, "--help")


def test_help_of_a_command_of_two_words(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "data", "pack", "--help")
    assert (code, err) == (0, "")
    assert "usage: vitrine data pack" in out
    assert all(
        option in out for option in ("DATA", "OUT", "--size", "--splits", "--channels", "--bad-images", "--overwrite", "--json")
    )


def test_a_warning_is_one_line_and_printed_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others change the filters meanwhile, after which Python forgets what it has shown."""

    def warn() -> None:
        for text in ("the same", "the same", "another", "the same"):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warn_user(text)

    monkeypatch.setattr(cli, "load_command", lambda name: warn)
    cli.main(["models"])
    assert capsys.readouterr() == ("", "Warning: the same\nWarning: another\n")


def test_of_several_processes_one_prints_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    with cli.one_line_warnings():
        warn_user("from rank 1")
    assert capsys.readouterr() == ("", "")


def test_warnings_are_python_s_own_after_the_command() -> None:
    show = warnings.showwarning
    with pytest.raises(RuntimeError), cli.one_line_warnings():
        raise RuntimeError
    assert warnings.showwarning is show
    with pytest.warns(VitrineWarning):
        warn_user("assumed")


WARNINGS = """
import warnings
from vitrine.cli import one_line_warnings
from vitrine.core.console import warn_user
with one_line_warnings():
    warn_user("ours")
    warnings.warn("theirs")
"""


@pytest.mark.parametrize(("options", "shown"), [([], ["<string>:7: UserWarning: theirs"]), (["-W", "ignore"], [])])
def test_other_warnings_are_shown_as_python_shows_them(options: list[str], shown: list[str]) -> None:
    done = subprocess.run([sys.executable, *options, "-c", WARNINGS], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["Warning: ours", *shown]
    assert done.stdout == ""


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_command", lambda name: interrupt)
    assert run(capsys, "models") == (130, "", "")


@pytest.mark.parametrize("name", cli.PARSE_THEIR_OWN)
def test_commands_that_parse_their_own_arguments_behave_like_the_others(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("--help", "-h"):
        code, out, err = run(capsys, name, word)
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: vitrine {name} ")
    code, out, err = run(capsys, name)
    assert (code, err) == (2, "")
    assert out.startswith(f"usage: vitrine {name} ")
    code, out, err = run(capsys, name, "--bogus")
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: ")
    assert err.count("\n") == 1


def test_help_with_a_recipe_or_data_needs_no_torch() -> None:
    commands = [["train", "digits", "--help"], ["finetune", "a-model", "shapes", "--help"], ["finetune", "--help"]]
    commands.append(["vtab", "a-model", "tasks", "--help"])
    code = f"""{BLOCK_TORCH}
from vitrine.cli import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit as stop:
        assert stop.code == 0
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    usages = [line for line in result.stdout.splitlines() if line.startswith("usage:")]
    assert [line.split("[")[0].strip() for line in usages] == [
        "usage: vitrine train digits",
        "usage: vitrine finetune a-model shapes",
        "usage: vitrine finetune MODEL DATA",
        "usage: vitrine vtab a-model tasks",
    ]


EVIL = "a\x1b]0;title\x07b\u202egpj\x9b2J\u2066"  # sets a terminal's title, clears its screen, and turns text around
TRAIN = ("--model.image-size", "16", "--model.num-channels", "3", "--data.no-in-memory", "--data.bad-images", "skip")
TRAIN += (
    "--total-steps",
    "2",
    "--optim.warmup-steps",
    "0",
    "--loader.num-workers",
    "0",
    "--loader.batch-size",
    "4",
    "--evaluation.num-times",
    "1",
)


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name, splits, classes, images, broken images and other files are named to harm a terminal."""
    folder = tmp_path_factory.mktemp("evil") / EVIL
    for number, (split, label) in enumerate(product(("train", "test"), (EVIL, f"c{EVIL}"))):
        (folder / split / label).mkdir(parents=True)
        for name in ("0", "1", EVIL):
            shade = (60 * number, 10 * len(name), 100)
            Image.new("RGB", (16 + len(name), 16), shade).save(folder / split / label / f"{name}.png")
    (folder / "train" / EVIL / f"bad{EVIL}.png").write_bytes(b"not an image")
    (folder / "train" / EVIL / f"other{EVIL}.{EVIL}").write_bytes(b"")
    return folder


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("screen", [io.StringIO, Terminal])
def test_no_name_acts_on_the_terminal_or_on_a_page(
    evil: Path, screen: type[io.StringIO], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real commands whose data, models, options and errors are named by a hostile user."""
    run_folder, data = tmp_path / f"run{EVIL}", str(evil)
    model, recipe = str(run_folder / "model"), str(run_folder / "recipe.json")
    one = str(evil / "train" / EVIL / f"{EVIL}.png")
    pages = {name: str(tmp_path / f"{name}{EVIL}") for name in ("check.html", "errors", "inside", "list", "rows.npz", "x.npz")}
    skip, commands = ("--bad-images", "skip", "--num-workers", "0"), cli.COMMANDS
    sessions: list[tuple[str, ...]] = [
        ("data", "check", data, "--page", pages["check.html"], "--leave-out", pages["list"]),
        ("train", "digits", "--data.source", data, *TRAIN, "--out", str(run_folder)),
        ("train", recipe, "--help"),
        ("evaluate", model, data, "--out", pages["errors"], "--against", model, *skip),
        ("predict", model, str(evil / "train"), "--num-workers", "0"),
        ("predict", model, one),
        ("features", model, data, "--out", f"{pages['rows.npz']}.npz", *skip),
        ("few-shot", model, data, "--shots", "1", *skip),
        ("probe", model, data, "--kinds", "means", *skip),
        ("inspect", model, one, "--out", pages["inside"]),
        ("fit", data, "--model", model, "--out", str(tmp_path / f"fit{EVIL}"), "--minutes", "0", "--num-workers", "0"),
        ("fit", EVIL, "--model", model),
        ("data", "duplicates", data, data),
        ("data", "check", data, "--model", model),
        ("data", "pack", data, str(tmp_path / f"pack{EVIL}"), "--size", "8", "--bad-images", "skip"),
        ("cache",),
        ("convert", model, f"{pages['x.npz']}.npz", "--format", "google-2020"),
        ("finetune", model, EVIL),
        ("finetune", EVIL, data, "--help"),
        ("vtab", EVIL, data),
        ("study", EVIL),
        ("study", "data-size", "--scale", "tiny", "--data", EVIL),
        ("models", EVIL),
        (EVIL,),
        ("evaluate", EVIL, data),
        ("evaluate", model, EVIL),
        ("evaluate", model, data, "--split", EVIL),
        ("evaluate", model, data, f"--{EVIL}", EVIL),
        ("evaluate", model, data, "--num-workers", EVIL),
        ("evaluate", model, data, "--gelu", EVIL),
        ("predict", model, EVIL),
    ]
    for variable in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    called, printed = set[str](), ""
    for words in sessions:
        out, err = screen(), screen()
        with monkeypatch.context() as patch, warnings.catch_warnings():
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            patch.setattr(sys, "argv", ["vitrine", *words])
            with suppress(SystemExit):
                cli.main(list(words))
        shown = out.getvalue() + err.getvalue()
        assert "Traceback" not in shown, words
        assert shown, words
        printed += shown
        called.add(cli.split_command(list(words))[0])
    assert Path(model).is_dir()
    assert called - {EVIL} == set(commands) - {"demo"}
    written = [path for path in tmp_path.rglob("*") if path.suffix == ".html" or path.name.startswith("check.html")]
    assert len(written) == 5  # of data check, inspect, evaluate, a run and a fit
    for text in (printed, *(path.read_text(encoding="utf-8") for path in written)):
        assert r"\x1b]0;title\x07b\u202egpj\x9b2J\u2066" in text
        assert [mark for mark in ("\x1b]", "\x07", "\u202e", "\x9b", "\u2066") if mark in text] == []


def run_program(*words: str, **streams: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "vitrine", *words], text=True, **streams)


@pytest.mark.parametrize("words", [["evaluate", "--help"], ["--version"], ["models"], ["train", "--list"]])
def test_a_closed_pipe_ends_a_command_quietly(words: list[str]) -> None:
    """As by SIGPIPE; a short output is only written when the program ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = run_program(*words, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_closed_pipe_of_errors_ends_a_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = run_program("unknown", stdout=subprocess.PIPE, stderr=pipe)
    assert (done.returncode, done.stdout) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(("words", "code"), [(["models", "ViT-B/16"], 0), (["unknown"], 2)])
@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_may_be_closed(words: list[str], code: int, closed: tuple[int, ...]) -> None:
    """As a shell's `2>&-` does; files that are opened later must not take the place of a stream."""
    command = f"import os, sys; [os.close(number) for number in {closed}]; os.execv(sys.executable, sys.argv[1:])"
    program = [sys.executable, "-c", command, sys.executable, "-m", "vitrine", *words]
    assert subprocess.run(program, capture_output=True).returncode == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_to_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = run_program("models", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "space" in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EPIPE, errno.EMFILE])
def test_an_error_of_the_system_is_a_sentence(
    number: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a broken pipe that is not the one that this program writes to, e.g. to a worker process."""

    def fail() -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(cli, "load_command", lambda name: fail)
    code, out, err = run(capsys, "models")
    assert (code, out) == (2, "")
    assert err.startswith(f"vitrine: some/file: {os.strerror(number)}; ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..")])
def test_a_lack_of_memory_is_a_sentence(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "load_command", lambda name: fail)
    code, _, err = run(capsys, "models")
    assert code == 2
    assert "memory" in err
    assert err.count("\n") == 1


def test_a_mistake_of_ours_shows_its_traceback() -> None:
    fail = f"def fail():\n    raise RuntimeError({EVIL!r})\n"
    code = f"from vitrine import cli\n{fail}cli.load_command = lambda name: fail\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code, "models"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1].startswith(r"RuntimeError: a\x1b]0;title\x07")
    assert "\x1b" not in done.stderr


def run_in_terminal(*words: str) -> str:
    """Return what a program writes to a terminal of its own, until it ends."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TTY_")} | {"TERM": "xterm"}
    start = "from vitrine.core import console; from vitrine.cli import main; console.DELAY_S = 0.0; main()"
    program = subprocess.Popen([sys.executable, "-c", start, *words], stdout=follower, stderr=follower, env=environment)
    os.close(follower)
    written = b""
    while chunk := read_or_end(leader):  # waits for output, or for the end
        written += chunk
    os.close(leader)
    assert program.wait() == 0, written.decode()
    return written.decode()


def test_every_wait_is_shown_on_a_terminal(tmp_path: Path, cache: Path) -> None:
    """From counting files to the test at the end; the cursor is back afterwards."""
    data = write_classes(tmp_path / "data", {"train": 4, "val": 2, "test": 2})
    size = ("--model.image-size", "16", "--model.patch-size", "8", "--loader.batch-size", "4", "--loader.num-workers", "0")
    train = ("train", "digits", "--data.source", str(data), "--model.num-channels", "3", *size[:4], "--total-steps", "2")
    train += (*size[4:], "--optim.warmup-steps", "0", "--data.no-in-memory", "--evaluation.num-times", "1")
    written = run_in_terminal(*train, "--out", str(tmp_path / "first"))
    assert all(title in written for title in ("Looking for images in", "Counting images in", "evaluating on val 0/"))
    assert "evaluating on test 0/" in written
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    model = str(tmp_path / "first" / "model")
    tune = ("finetune", model, str(data), "--head-init", "ridge", "--total-steps", "2", "--optim.warmup-steps", "0", *size[4:])
    assert "fitting the head" in run_in_terminal(*tune, "--out", str(tmp_path / "second"))
    written = run_in_terminal("features", model, str(data), "--out", str(tmp_path / "rows.npz"), "--num-workers", "0")
    assert all(title in written for title in ("Hashing images", "features train"))

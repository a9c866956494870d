"""The command line: help, one line and status 2 for a mistake, one line for a warning."""

import subprocess
import sys
import warnings

import pytest

from tests.test_package import BLOCK_TORCH
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
        (["models", "--bogus", "3"], "--bogus, 3"),
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
    assert err.endswith(f" All options: `vitrine {cli.split_command(words)[0]} --help`.\n")
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

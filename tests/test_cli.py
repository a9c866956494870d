"""The command line: help for people, one sentence and status 2 for mistakes."""

import subprocess
import sys
import warnings

import pytest

from tests.test_package import BLOCKS
from vitrine import cli
from vitrine.core.console import warn_user


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    output = capsys.readouterr()
    return stop.value.code, output.out, output.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"  {name}  " in out for name in cli.COMMANDS)


def test_nothing_to_do_is_a_mistake_that_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    assert "usage: vitrine COMMAND" in out


def test_an_unknown_command_offers_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "model")
    assert (code, out) == (2, "")
    assert err == "vitrine: Unknown command 'model'. Nearest: models. All commands: `vitrine --help`.\n"


def test_a_mistake_within_a_command_costs_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models", "ViT-B/17x")
    assert (code, out) == (2, "")
    assert err.startswith("vitrine: Unknown model 'ViT-B/17x'. Nearest: ViT-B/16")
    assert err.count("\n") == 1


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models", "--bogus", "3")
    assert (code, out) == (2, "")
    assert err == "vitrine: Unrecognized options: --bogus, 3. All options: `vitrine models --help`.\n"


def test_a_value_of_the_wrong_kind_costs_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "models", "--num-classes", "x")
    assert code == 2
    assert err.startswith("vitrine: Error parsing --num-classes: ")
    assert "'x'" in err
    assert err.endswith(" All options: `vitrine models --help`.\n")
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
def test_the_first_word_of_a_command_alone_leads_to_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_mistake_in_a_command_of_two_words_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "data", "pack", "--bogus")
    assert (code, out) == (2, "")
    assert err.endswith(" All options: `vitrine data pack --help`.\n")
    assert err.count("\n") == 1


def test_a_notice_is_given_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where others have changed the filters meanwhile, after which Python forgets what it showed."""

    def tell(name: str, arguments: list[str]) -> None:
        for text in ("the same", "the same", "another", "the same"):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warn_user(text)

    monkeypatch.setattr(cli, "run_command", tell)
    cli.main(["models"])
    assert capsys.readouterr().err == "vitrine: the same\nvitrine: another\n"


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_command", interrupt)
    assert run(capsys, "models") == (130, "", "")


@pytest.mark.parametrize("name", cli.READ_THEIR_OWN)
def test_commands_that_read_their_own_words_are_commands_like_the_others(name: str, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("block", BLOCKS)
def test_help_of_training_needs_no_torch(block: str) -> None:
    """With the values of a recipe, and of data that was opened for it."""
    commands = [["train", "digits", "--help"], ["finetune", "a-model", "shapes", "--help"], ["finetune", "--help"]]
    commands.append(["vtab", "a-model", "tasks", "--help"])
    code = f"""{BLOCKS[block]}
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

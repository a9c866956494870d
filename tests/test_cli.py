"""The command line: help for people, one sentence and status 2 for mistakes."""

import pytest

from vitrine import cli


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


def test_an_interrupt_ends_quietly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str, arguments: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run_command", interrupt)
    assert run(capsys, "models") == (130, "", "")


UTF8_BOX = """\
╭─ Value error ───╮
│ Not a number:   │
│ 'x'             │
│ ─────────────── │
│ see --help      │
╰─────────────────╯
"""
ASCII_BOX = """\
Value error
-----------
Not a number: 'x'
-----------
see --help
"""


@pytest.mark.parametrize("box", [UTF8_BOX, ASCII_BOX, UTF8_BOX.replace("│", "\x1b[31m│\x1b[0m"), "ignored\nNot a number: 'x'"])
def test_the_sentence_is_taken_out_of_its_box(box: str) -> None:
    assert cli.unbox(box) == "Not a number: 'x'."

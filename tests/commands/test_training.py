"""What `vitrine train` and `vitrine finetune` have in common, as a user meets it: options, interruptions, what is printed."""

import json
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from tests.run.test_run import TOTAL_STEPS, are_equal, interrupt_at, make_recipe, measure, read_weights, write_data
from vitrine.cli import main
from vitrine.commands.training import format_share, print_summaries
from vitrine.core.files import write_json
from vitrine.run.summary import Summary

SUMMARY = Summary(
    model="ViT-B/16",
    num_parameters=86_567_656,
    num_train_images=1000,
    seed=0,
    learning_rate=0.03,
    total_steps=12_000,
    steps=12_000,
    is_finished=True,
    stopped_early=False,
    interrupted_by=None,
    watched_on="val",
    best=0.815,
    best_step=9_000,
    test_top1=0.8049,
    test_top5=0.951,
    test_loss=0.71,
    num_test_images=500,
    images=6_144_000,
    exaflops=0.6481,
    device="cuda",
    device_hours=3.25,
)


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run of a dozen steps."""
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "shades" / "recipe.json"
    path.parent.mkdir()
    write_json(path, make_recipe(write_data(folder / "shades.npz")).to_json())
    return path


def train(*arguments: object) -> None:
    main(["train", *map(str, arguments)])


def end(*arguments: object) -> object:
    """The status of a command that does not come to its end."""
    with pytest.raises(SystemExit) as stop:
        train(*arguments)
    return stop.value.code


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The sentence that a mistake costs, before anything was trained."""
    capsys.readouterr()
    assert end(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("vitrine: ").strip()


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of that run, finished."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(recipe, "--out", out)
    return out


def test_one_run_is_printed_and_written(recipe: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(recipe, "--out", whole, "--json", tmp_path / "results.json")  # finished, and so only read
    output = capsys.readouterr()
    top1, _, _ = measure(whole / "model", json.loads(recipe.read_text())["data"]["source"], "test")
    lines = output.out.splitlines()
    columns = [column.strip() for column in lines[0].split("  ") if column]
    assert columns == ["seed", "steps", "best on the way", "test top-1", "test top-5", "images", "exaFLOPs", "device-hours"]
    assert lines[1].split()[:2] == ["0", str(TOTAL_STEPS)]
    assert f"{100 * top1:.2f} %" in lines[1]
    assert lines[2:] == [f"The model is in {whole / 'model'}, its curves in {whole / 'curves.png'}."]
    assert output.err == ""
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == {"runs": [json.loads((whole / "summary.json").read_text())]}
    assert results["runs"][0]["test_top1"] == top1


def test_an_interrupted_run_says_how_to_go_on_and_does(
    recipe: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(recipe), "--out", str(tmp_path / "a run"), "--json", str(tmp_path / "results.json")]
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/vitrine", "train", *words])
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(7, signal.SIGINT, patch)
        assert end(*words) == 130
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1] == (
        f"Stopped at step 7 of {TOTAL_STEPS}, and saved. To go on, give the same command again: "
        f"{shlex.join(['vitrine', 'train', *words])}"
    )
    assert not (tmp_path / "results.json").exists()
    assert not (tmp_path / "a run" / "model").exists()

    train(*words)
    assert "Going on from step 7" in capsys.readouterr().err
    assert are_equal(read_weights(tmp_path / "a run" / "model"), read_weights(whole / "model"))
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["steps"] == TOTAL_STEPS


def test_an_interrupted_choice_of_a_rate_ends_as_told(recipe: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        assert end(recipe, "--out", tmp_path / "run", "--select-rate", "--rates", 0.01, 0.02) == 128 + signal.SIGTERM
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["rate-0.01"]


def test_a_signal_at_the_last_step_of_a_seed_ends_the_others(recipe: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(TOTAL_STEPS, signal.SIGTERM, patch)
        assert end(recipe, "--out", tmp_path / "run", "--seeds", 0, 1) == 128 + signal.SIGTERM
    assert not (tmp_path / "run" / "seed-1").exists()


def test_a_rate_is_chosen_and_trained_with_several_seeds(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, results = tmp_path / "run", tmp_path / "results.json"
    # The high one ends with the same answer to all images.
    train(recipe, "--out", out, "--select-rate", "--rates", 3, 0.01, "--seeds", 4, 5, "--json", results, "--total-steps", 8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["learning", "rate", "held-out", "top-1"]
    assert [line.split()[0] for line in lines[1:3]] == ["3", "0.01"]
    assert [line.endswith("chosen") for line in lines[1:3]] == [False, True]
    assert [line.split()[0] for line in lines[4:6]] == ["4", "5"]
    written = json.loads(results.read_text())
    assert written["rates"]["0.01"] > written["rates"]["3"]
    assert [summary["seed"] for summary in written["runs"]] == [4, 5]
    for summary in written["runs"]:
        assert summary["learning_rate"] == 0.01
        assert summary["num_train_images"] == 75  # all of them, now that the choice is made
        assert summary["num_test_images"] == 21
    tests = [summary["test_top1"] for summary in written["runs"]]
    expected = f"test top-1 over 2 seeds: {100 * np.mean(tests):.2f} ± {100 * np.std(tests, ddof=1):.2f} %"
    assert lines[6:] == [
        expected,
        f"The model is in {out / 'chosen' / 'seed-*' / 'model'}, its curves in {out / 'chosen' / 'seed-*' / 'curves.png'}.",
    ]
    assert sorted(path.name for path in out.iterdir()) == ["chosen", "rate-0.01", "rate-3"]
    assert sorted(path.name for path in (out / "chosen").iterdir()) == ["seed-4", "seed-5"]


def test_a_single_seed_is_a_run_like_any_other(recipe: Path, tmp_path: Path) -> None:
    train(recipe, "--out", tmp_path / "run", "--seeds", 6, "--total-steps", 3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 6
    assert (tmp_path / "run" / "model").is_dir()


def test_other_processes_than_the_first_are_silent(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    train(recipe, "--out", tmp_path / "run", "--total-steps", 3, "--json", tmp_path / "results.json")
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "results.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--rates", "0.1", "0.2"),  # without --select-rate
        ("--seeds", "0", "1", "--seed", "5"),
        ("--select-rate", "--optim.learning-rate", "0.5"),
    ],
    ids=" ".join,
)
def test_no_option_is_ignored_in_silence(
    words: tuple[str, ...], recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(capsys, recipe, "--out", tmp_path / "run", "--total-steps", 3, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "0", "0"), "--seeds 0 0 has one of them twice"),
        (("--seeds", "0", "0", "--select-rate"), "--seeds 0 0 has one of them twice"),
        (("--seeds", "0", "x"), "Error parsing --seeds"),
        (("--select-rate", "--rates", "0.1"), "one rate to choose from: leave --select-rate out"),
        (("--select-rate", "--rates"), "no rates to choose from: leave --select-rate out"),
        (("--select-rate", "--rates", "0.1", "fast"), "Error parsing --rates"),
        (("--select-rate", "--rates", "0.01", "-1"), "learning_rate=-1.0 must be above 0"),
        (("--json", "{}/nowhere/results.json"), "nowhere does not exist. Create it first."),
        (("--json", "{}"), "it is a folder. Give the name of a file in it."),
        (("--out",), "--out"),
        (("--total-steps", "0"), "total_steps=0 must be at least 1"),
        (("--loader.batch-size", "16.5"), "Error parsing --loader.batch-size"),
        (("--loader.size", "16"), "Unrecognized options: --loader.size"),
        (("--optim.warmup-steps", "99"), "warmup_steps=99 and cooldown_steps=0 leave nothing of total_steps=12"),
        (("--device", "abacus"), "abacus is not on this machine"),
        (("--evaluation.patience", "-1"), "patience=-1 must be at least 0"),
        (("--model.num-heads", "3"), "width=16 must be divisible by num_heads=3"),
        (("extra",), "Unrecognized options: extra"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_cost_a_sentence_before_anything_is_trained(
    words: tuple[str, ...], message: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(tmp_path) for word in words]
    assert message in fail(capsys, recipe, *(["--out", tmp_path / "run"] if words != ("--out",) else []), *given)
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("words", [(), ("--seeds", "0", "1"), ("--select-rate",)], ids=["one", "seeds", "rates"])
@pytest.mark.parametrize("place", ["below", "file", "strangers"])
def test_a_place_that_cannot_be_written_costs_a_sentence(
    place: str, words: tuple[str, ...], recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "strangers" / "seed-0").mkdir(parents=True)
    (tmp_path / "strangers" / "rate-0.001").mkdir()
    for name in ("", "seed-0", "rate-0.001"):
        (tmp_path / "strangers" / name / "thesis.txt").write_text("precious")
    out = tmp_path / "file" / "run" if place == "below" else tmp_path / place
    sentence = fail(capsys, recipe, "--out", out, *words)
    assert str(out) in sentence
    assert "Errno" not in sentence
    assert (tmp_path / "file").read_text() == "precious"
    assert (tmp_path / "strangers" / "seed-0" / "thesis.txt").read_text() == "precious"
    assert not list(tmp_path.rglob("recipe.json"))


def test_a_line_for_each_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = Summary(**{**asdict(SUMMARY), "seed": 1, "best": None, "best_step": None, "test_top1": None, "test_top5": None})
    print_summaries([SUMMARY, other], tmp_path)
    first, second, last = capsys.readouterr().out.splitlines()[1:]
    assert first.split("  ")[0] == "0"
    columns = [cell.strip() for cell in first.split("  ") if cell.strip()]
    assert columns == ["0", "12,000", "81.50 % at step 9000", "80.49 %", "95.10 %", "6,144,000", "0.6481", "3.25 cuda"]
    assert [cell.strip() for cell in second.split("  ") if cell.strip()] == ["1", "12,000", "6,144,000", "0.6481", "3.25 cuda"]
    assert last.startswith("The model is in ")  # and no mean of a single figure


@pytest.mark.parametrize(("share", "text"), [(None, ""), (0.0, "0.00 %"), (1.0, "100.00 %"), (0.12345, "12.35 %")])
def test_shares_are_percentages(share: float | None, text: str) -> None:
    assert format_share(share) == text

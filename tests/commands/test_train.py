"""`vitrine train`: recipes by name and by file, options, interruptions, printed results and mistakes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.run.test_run import TOTAL_STEPS, are_equal, interrupt_at, make_recipe, measure, read_weights, write_data
from tests.test_package import BLOCK_TORCH
from vitrine.cli import main
from vitrine.commands.options import format_percent
from vitrine.commands.train import SHORT_FORMS, Options, print_summaries
from vitrine.core.arguments import list_options
from vitrine.core.files import write_json
from vitrine.formats.load import load_checkpoint
from vitrine.recipe import list_differences, parse_recipe, with_changes
from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES
from vitrine.run import run
from vitrine.run.folder import RunSummary

SUMMARY = RunSummary(
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


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe.json of a run of a dozen steps."""
    folder = tmp_path_factory.mktemp("recipe")
    path = folder / "shades" / "recipe.json"
    path.parent.mkdir()
    write_json(path, make_recipe(write_data(folder / "shades.npz")).to_json())
    return path


def train(*arguments: object) -> None:
    main(["train", *map(str, arguments)])


def end(*arguments: object) -> object:
    """Return the exit status of a command that fails or is interrupted."""
    with pytest.raises(SystemExit) as stop:
        train(*arguments)
    return stop.value.code


def fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one-line error of a command."""
    capsys.readouterr()
    assert end(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("vitrine: ").strip()


@pytest.fixture(scope="module")
def whole(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of that run, finished."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(recipe, "--out", out)
    return out


def test_the_result_of_a_run_is_printed_and_written(
    recipe: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(recipe, "--out", whole, "--json", tmp_path / "results.json")  # finished, and so only read
    output = capsys.readouterr()
    top1, _, _ = measure(whole / "model", json.loads(recipe.read_text())["data"]["source"], "test")
    lines = output.out.splitlines()
    columns = [column.strip() for column in lines[0].split("  ") if column]
    assert columns == [
        "seed",
        "steps",
        "best validation accuracy",
        "test top-1",  # of four classes, whose top-5 would be 100 %
        "images",
        "exaFLOPs",
        "device-hours",
    ]
    assert lines[1].split()[:2] == ["0", str(TOTAL_STEPS)]
    assert f"{100 * top1:.2f} %" in lines[1]
    assert lines[2:] == [f"The model is in {whole / 'model'}, its report in {whole / 'report.html'}."]
    assert output.err == ""
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == {"runs": [json.loads((whole / "summary.json").read_text())]}
    assert results["runs"][0]["test_top1"] == top1


def test_an_interrupted_run_says_how_to_resume_and_resumes(
    recipe: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(recipe), "--out", str(tmp_path / "a run"), "--json", str(tmp_path / "results.json")]
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/vitrine", "train", *words])
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(7, signal.SIGINT, patch)
        assert end(*words) == 130
    output = capsys.readouterr()
    assert output.out == ""
    assert f"step 7 of {TOTAL_STEPS}" in output.err.splitlines()[-1]
    assert output.err.endswith(f"{shlex.join(['vitrine', 'train', *words])}\n")
    assert not (tmp_path / "results.json").exists()
    assert not (tmp_path / "a run" / "model").exists()

    train(*words)
    assert "Resuming from step 7" in capsys.readouterr().err
    assert are_equal(read_weights(tmp_path / "a run" / "model"), read_weights(whole / "model"))
    assert json.loads((tmp_path / "results.json").read_text())["runs"][0]["steps"] == TOTAL_STEPS


def test_an_interrupted_learning_rate_search_exits_with_the_signal(recipe: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        assert end(recipe, "--out", tmp_path / "run", "--select-rate", "--rates", 0.01, 0.02) == 128 + signal.SIGTERM
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["rate-0.01"]


def test_a_signal_at_the_last_step_of_a_seed_ends_the_others(recipe: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(TOTAL_STEPS, signal.SIGTERM, patch)
        assert end(recipe, "--out", tmp_path / "run", "--seeds", 0, 1) == 128 + signal.SIGTERM
    assert not (tmp_path / "run" / "seed-1").exists()


def test_a_learning_rate_is_chosen_and_trained_with_several_seeds(
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
        f"The model is in {out / 'chosen' / 'seed-*' / 'model'}, its report in {out / 'chosen' / 'seed-*' / 'report.html'}.",
    ]
    assert sorted(path.name for path in out.iterdir()) == ["chosen", "rate-0.01", "rate-3"]
    assert sorted(path.name for path in (out / "chosen").iterdir()) == ["seed-4", "seed-5"]


def test_a_single_seed_is_an_ordinary_run(recipe: Path, tmp_path: Path) -> None:
    train(recipe, "--out", tmp_path / "run", "--seeds", 6, "--total-steps", 3)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["seed"] == 6
    assert (tmp_path / "run" / "model").is_dir()


def test_other_ranks_print_nothing(
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
def test_options_without_effect_are_rejected(
    words: tuple[str, ...], recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(capsys, recipe, "--out", tmp_path / "run", "--total-steps", 3, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--seeds", "0", "0"), "--seeds 0 0"),
        (("--seeds", "0", "0", "--select-rate"), "--seeds 0 0"),
        (("--seeds", "0", "x"), "--seeds"),
        (("--select-rate", "--rates", "0.1"), "--select-rate"),
        (("--select-rate", "--rates"), "--select-rate"),
        (("--select-rate", "--rates", "0.1", "fast"), "--rates"),
        (("--select-rate", "--rates", "0.01", "-1"), "learning_rate=-1.0"),
        (("--json", "{}/nowhere/results.json"), "nowhere"),
        (("--json", "{}"), "folder"),
        (("--out",), "--out"),
        (("--total-steps", "0"), "total_steps=0"),
        (("--loader.batch-size", "16.5"), "--loader.batch-size"),
        (("--loader.size", "16"), "--loader.size"),
        (("--optim.warmup-steps", "99"), "warmup_steps=99"),
        (("--device", "abacus"), "abacus"),
        (("--evaluation.patience", "-1"), "patience=-1"),
        (("--model.num-heads", "3"), "num_heads=3"),
        (("extra",), "extra"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_reported_before_anything_is_trained(
    words: tuple[str, ...], message: str, recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.format(tmp_path) for word in words]
    assert message in fail(capsys, recipe, *(["--out", tmp_path / "run"] if words != ("--out",) else []), *given)
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("words", [(), ("--seeds", "0", "1"), ("--select-rate",)], ids=["one", "seeds", "rates"])
@pytest.mark.parametrize("place", ["below", "file", "strangers"])
def test_an_output_folder_that_cannot_be_used_is_named(
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


def test_each_run_is_printed_as_a_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    other = RunSummary(**{**asdict(SUMMARY), "seed": 1, "best": None, "best_step": None, "test_top1": None, "test_top5": None})
    print_summaries([SUMMARY, other], [tmp_path / "seed-0", tmp_path / "seed-1"])
    first, second, last = capsys.readouterr().out.splitlines()[1:]
    assert first.split("  ")[0] == "0"
    columns = [cell.strip() for cell in first.split("  ") if cell.strip()]
    assert columns == ["0", "12,000", "81.50 % at step 9000", "80.49 %", "95.10 %", "6,144,000", "0.6481", "3.25 cuda"]
    assert [cell.strip() for cell in second.split("  ") if cell.strip()] == ["1", "12,000", "6,144,000", "0.6481", "3.25 cuda"]
    assert str(tmp_path / "seed-*" / "model") in last  # and no mean of a single accuracy


@pytest.mark.parametrize(("share", "text"), [(None, ""), (0.0, "0.00 %"), (1.0, "100.00 %"), (0.12345, "12.35 %")])
def test_percentages(share: float | None, text: str) -> None:
    assert format_percent(share) == text


# A few steps of the smallest recipe, by words that a user would add.
SHORT = ("--total-steps", 3, "--optim.warmup-steps", 0, "--model.depth", 1, "--loader.batch-size", 16)

DROPPED = ("digits", "--total-steps", "3", "--optim.warmup-steps", "0", "--loader.batch-size", "2000")


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run of `vitrine train digits` in its default place."""
    folder = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        train("digits", *SHORT)
    return folder / "runs" / "digits"


def read_recipe(folder: Path) -> dict[str, object]:
    return json.loads((folder / "recipe.json").read_text())


def test_a_recipe_runs_by_its_name(digits: Path) -> None:
    checkpoint = load_checkpoint(digits / "model")
    assert checkpoint.class_names == tuple("0123456789")
    assert checkpoint.model.config.image_size == (8, 8)
    assert len(checkpoint.model.blocks) == 1
    summary = json.loads((digits / "summary.json").read_text())
    assert (summary["steps"], summary["images"], summary["num_test_images"]) == (3, 48, 360)


def test_only_the_given_options_change_the_recipe(digits: Path) -> None:
    changes = {"optim": {"warmup_steps": 0}, "model": {"depth": 1}, "loader": {"batch_size": 16}, "total_steps": 3}
    assert parse_recipe(read_recipe(digits), "recipe.json") == with_changes(RECIPES["digits"](), **changes)
    assert read_recipe(digits / "model") == read_recipe(digits)


def test_the_recipe_file_of_a_run_gives_the_same_weights(digits: Path, tmp_path: Path) -> None:
    train(digits / "recipe.json", "--out", tmp_path / "again")
    assert are_equal(read_weights(digits / "model"), read_weights(tmp_path / "again" / "model"))
    assert read_recipe(tmp_path / "again") == read_recipe(digits)


def test_a_finished_run_is_only_read(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {path: path.stat().st_mtime_ns for path in digits.rglob("*")}
    # What changes no number may be other.
    train("digits", *SHORT, "--out", digits, "--device", "cpu", "--loader.num-workers", 1, "--saving.every-steps", 1)
    output = capsys.readouterr()
    assert output.out.splitlines()[1].split()[:2] == ["0", "3"]
    assert output.err == ""
    assert {path: path.stat().st_mtime_ns for path in digits.rglob("*")} == times


def test_another_recipe_in_the_same_folder_is_rejected(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = fail(capsys, "digits", *SHORT, "--out", digits, "--seed", 1, "--optim.learning-rate", 0.5, "--augment.flip")
    assert sentence.startswith(str(digits))
    assert "(augment.flip was False and is True, optim.learning_rate was 0.003 and is 0.5, seed was 0 and is 1)" in sentence


def test_missing_data_can_be_given_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed start does not claim the recipe's default folder."""
    for name in ("dark", "light"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(4):
            pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        words = ("--total-steps", 1, "--optim.warmup-steps", 0, "--loader.batch-size", 2)
        assert fail(capsys, "cifar10-vit", *words).count("cifar10") > 0
        train("cifar10-vit", *words, "--data.source", "images")
    assert (tmp_path / "runs" / "cifar10-vit" / "model").is_dir()


def test_epochs_replace_the_steps_of_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They must not be ignored silently."""
    lengths: list[object] = []

    def stop_at_once(*arguments: object, **options: object) -> None:
        lengths.append(options["total_steps"])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", stop_at_once)
    words = ("--data.source", "digits", "--model.image-size", 8, "--model.num-channels", 1, "--optim.warmup-steps", 0)
    code = end("cifar10-vit", *words, "--epochs", 2, "--out", tmp_path / "run")
    is_refused = code == 2 and "epochs" in capsys.readouterr().err
    assert is_refused or lengths == [90]  # 2 x 1437 images in batches of 32


def test_every_recipe_is_listed_with_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    train("--list")
    output = capsys.readouterr()
    assert output.err == ""
    words = output.out.split()
    assert all(words.count(name) >= 1 for name in (*RECIPES, *FINETUNE_RECIPES))
    assert "vitrine finetune MODEL DATA --recipe" in output.out
    assert "84.15 % top-1 on ImageNet, fine-tuned at 384 px (table 6)." in output.out  # jft-vit-b16
    assert max(map(len, output.out.splitlines())) <= 200


def test_help_shows_the_recipe_s_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("jft-vit-b16", "--help-all") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.startswith("usage: vitrine train jft-vit-b16")
    assert re.search(r"--optim.learning-rate FLOAT .{0,120}?\(default: 0.0008\)", text)
    assert "(default: ViT-B/16)" in text
    assert "(default: runs/jft-vit-b16)" in text
    assert "(default: 8e-05 0.00024 0.0008 0.0024)" in text
    for group in ("data", "loader", "augment", "mixing", "supervised", "evaluation", "machine", "saving", "report"):
        assert f" --{group}." in text


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert end() == 2
    assert "usage: vitrine train RECIPE" in capsys.readouterr().out
    for word in ("--help", "-h"):
        assert end(word) == 0
        assert "usage: vitrine train RECIPE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("digist",), "digits"),
        (("",), "Unknown recipe"),
        (("jft-vit-b",), "Nearest: jft-vit-b"),
        (("pets",), "vitrine finetune"),
        (("--out", "run", "digits"), "vitrine train RECIPE --out"),
        (("--seed=3",), "vitrine train RECIPE"),
        (("nowhere/recipe.json",), "nowhere/recipe.json"),
        (("digits", "--learnin-rate", "3"), "--optim.learning-rate"),
        (("digits", "--optim.kind", "adam"), "--optim.kind"),
        (("digits", "--model.name", "ViT-Q/16"), "ViT-Q/16"),
        (("digits", "--model.checkpoint", "weights"), "model.checkpoint='weights'"),
        (("digits", "--head-init", "ridge"), "head_init='ridge'"),
        (("digits", "--data.source", "nowhere"), "nowhere"),
        (("digits", "--data.split", "extra"), "extra"),
        (("digits", "--data.subset", "0"), "subset='0'"),
        (("digits", "--data.exclude", "nowhere.txt"), "exclude=nowhere.txt"),
        ((*DROPPED, "--loader.last", "drop"), "1437"),
        (("digits", "--epochs", "1", "--optim.warmup-steps", "60"), "total_steps=22"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_reported_in_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fail(capsys, *words)
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON"),
        ('{"epochs": 1', "JSON"),
        ("[1]", "list"),
        ("{}", "epochs and total_steps"),
        ('{"epochs": 1, "learning_rate": 3}', "learning_rate"),
        ('{"epochs": 1, "model": "ViT-B/16"}', "ModelSettings"),
        ('{"epochs": NaN}', ""),
        ("\x00\xff", ""),
    ],
)
def test_a_file_that_is_not_a_recipe(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(text.encode("latin-1"))
    sentence = fail(capsys, path)
    assert sentence.startswith(str(path))
    assert message in sentence


def test_a_model_s_config_is_not_a_recipe(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "config.json" in fail(capsys, digits / "model" / "config.json")


def test_lists_help_and_mistakes_need_no_torch() -> None:
    commands = [["--list"], ["digits", "--help"], ["digits", "--seed", "x"], ["digist"]]
    code = f"""{BLOCK_TORCH}
from vitrine.cli import main
for words in {commands!r}:
    try:
        main(["train", *words])
    except SystemExit as stop:
        print("ended with", stop.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("ended")] == [f"ended with {n}" for n in (0, 2, 2)]
    assert len(result.stderr.splitlines()) == 2


def test_help_of_a_recipe_in_a_file_needs_no_torch(digits: Path) -> None:
    words = ["train", str(digits / "recipe.json"), "--help"]
    code = f"{BLOCK_TORCH}\nfrom vitrine.cli import main; main({words!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.full
def test_a_run_as_a_separate_program(digits: Path, tmp_path: Path) -> None:
    """Results go to standard output, progress to standard error."""
    words = ["train", str(digits / "recipe.json"), "--out", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "vitrine", *words], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "The model is in run/model, its report in run/report.html."
    assert "step 3/3  loss" in result.stderr
    assert (tmp_path / "run" / "curves.png").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == (
        digits / "model" / "model.safetensors"
    ).read_bytes()
    assert list_differences(parse_recipe(read_recipe(tmp_path / "run"), "new"), parse_recipe(read_recipe(digits), "old")) == []


def test_short_forms_stand_for_options_that_exist_and_are_in_the_help() -> None:
    assert set(SHORT_FORMS.values()) <= set(list_options(Options))
    assert all(short in (Options.__doc__ or "") for short in SHORT_FORMS)
    assert not set(SHORT_FORMS) & set(list_options(Options))  # an option of that name would be hidden

"""`vitrine train` as a user runs it: recipes by name and by file, fields by name, its mistakes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.commands.test_training import end, fail, train
from tests.run.test_run import are_equal, read_weights
from tests.test_package import BLOCKS
from vitrine.formats.load import load_checkpoint
from vitrine.recipe import list_differences, parse_recipe, with_changes
from vitrine.recipes.table import RECIPES, TRANSFERS
from vitrine.run import run

# A few steps of the smallest recipe, by words that a user would add.
SHORT = ("--total-steps", 3, "--optim.warmup-steps", 0, "--model.depth", 1, "--loader.batch-size", 16)

DROPPED = ("digits", "--total-steps", "3", "--optim.warmup-steps", "0", "--loader.batch-size", "2000")


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `vitrine train digits` leaves in the working folder."""
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


def test_fields_that_were_given_are_set_and_no_others(digits: Path) -> None:
    changes = {"optim": {"warmup_steps": 0}, "model": {"depth": 1}, "loader": {"batch_size": 16}, "total_steps": 3}
    assert parse_recipe(read_recipe(digits), "recipe.json") == with_changes(RECIPES["digits"](), **changes)
    assert read_recipe(digits / "model") == read_recipe(digits)


def test_the_file_of_a_run_runs_again_to_the_same_weights(digits: Path, tmp_path: Path) -> None:
    train(digits / "recipe.json", "--out", tmp_path / "again")
    assert are_equal(read_weights(digits / "model"), read_weights(tmp_path / "again" / "model"))
    assert read_recipe(tmp_path / "again") == read_recipe(digits)


def test_the_same_command_again_reads_what_is_finished(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = {path: path.stat().st_mtime_ns for path in digits.rglob("*")}
    # What changes no number may be other.
    train("digits", *SHORT, "--out", digits, "--device", "cpu", "--loader.num-workers", 1, "--saving.every-steps", 1)
    output = capsys.readouterr()
    assert output.out.splitlines()[1].split()[:2] == ["0", "3"]
    assert output.err == ""
    assert {path: path.stat().st_mtime_ns for path in digits.rglob("*")} == times


def test_another_recipe_in_the_same_folder_is_refused(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = fail(capsys, "digits", *SHORT, "--out", digits, "--seed", 1, "--optim.learning-rate", 0.5, "--augment.flip")
    assert sentence == (
        f"{digits} holds a run of another recipe (augment.flip was False and is True, optim.learning_rate was 0.003 and is "
        "0.5, seed was 0 and is 1): give the same to resume it, or another folder by --out."
    )


def test_data_that_was_forgotten_can_be_given_afterwards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that never began does not hold its folder, which is the recipe's usual one."""
    for name in ("dark", "light"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for index in range(4):
            pixels = np.random.default_rng(index).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{index}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        words = ("--total-steps", 1, "--optim.warmup-steps", 0, "--loader.batch-size", 2)
        assert fail(capsys, "cifar10-vit", *words).startswith("There is no data at cifar10: give a folder")
        train("cifar10-vit", *words, "--data.source", "images")
    assert (tmp_path / "runs" / "cifar10-vit" / "model").is_dir()


def test_epochs_are_not_ignored_where_the_recipe_has_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either they count, or it is said that they do not."""
    lengths: list[object] = []

    def stop_at_once(*arguments: object, **options: object) -> None:
        lengths.append(options["total_steps"])
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "fit", stop_at_once)
    words = ("--data.source", "digits", "--model.image-size", 8, "--model.num-channels", 1, "--optim.warmup-steps", 0)
    code = end("cifar10-vit", *words, "--epochs", 2, "--out", tmp_path / "run")
    is_refused = code == 2 and "epochs" in capsys.readouterr().err
    assert is_refused or lengths == [90]  # 2 x 1437 images in batches of 32


def test_every_recipe_is_listed_with_what_it_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    train("--list")
    output = capsys.readouterr()
    assert output.err == ""
    words = output.out.split()
    assert all(words.count(name) >= 1 for name in (*RECIPES, *TRANSFERS))
    assert "vitrine finetune MODEL DATA --recipe" in output.out
    assert "84.15 % top-1 on ImageNet, fine-tuned at 384 px (table 6)." in output.out  # jft-vit-b16
    assert max(map(len, output.out.splitlines())) <= 200


def test_help_shows_the_recipe_s_own_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("jft-vit-b16", "--help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.startswith("usage: vitrine train jft-vit-b16")
    assert "--optim.learning-rate FLOAT At its peak, the end of warm-up. (default: 0.0008)" in text
    assert (
        "--model.name {None}|STR Of a network with fresh weights, as ViT-B/16; `vitrine models` lists them. (default: ViT-B/16)"
        in text
    )
    assert "(default: runs/jft-vit-b16)" in text
    assert "--rates [FLOAT [FLOAT ...]] Learning rates to choose from. (default: 8e-05 0.00024 0.0008 0.0024)" in text
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
        (("digist",), "Unknown recipe 'digist'. Nearest: digits, "),
        (("",), "Unknown recipe ''."),
        (("jft-vit-b",), "Nearest: jft-vit-b"),
        (("pets",), "Recipe 'pets' fine-tunes a checkpoint: use `vitrine finetune MODEL DATA --recipe pets`."),
        (("--out", "run", "digits"), "vitrine train --out was given, and the recipe's name comes first"),
        (("--seed=3",), "the recipe's name comes first"),
        (("nowhere/recipe.json",), "There is no recipe at nowhere/recipe.json: give the recipe.json of a run"),
        (("digits", "--lr", "3"), "Unrecognized options: --lr, 3. All options: `vitrine train digits --help`."),
        (("digits", "--optim.kind", "adam"), "'adam' for argument '--optim.kind'"),
        (("digits", "--model.name", "ViT-Q/16"), "Unknown model 'ViT-Q/16'. Nearest: "),
        (
            ("digits", "--model.checkpoint", "weights"),
            "model.name='ViT-Ti/16' and model.checkpoint='weights': give one of them",
        ),
        (("digits", "--head-init", "ridge"), "head_init='ridge' is for a checkpoint's features"),
        (("digits", "--data.source", "nowhere"), "There is no data at nowhere"),
        (("digits", "--data.split", "extra"), "has the splits train, test, and 'extra' was asked for"),
        (("digits", "--data.subset", "0"), "subset='0' must be a share"),
        (("digits", "--data.exclude", "nowhere.txt"), "exclude=nowhere.txt must be a text file"),
        ((*DROPPED, "--loader.last", "drop"), "last='drop' leaves nothing of 1437 images"),
        (("digits", "--epochs", "1"), "warmup_steps=50 and cooldown_steps=0 leave nothing of total_steps=22"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_cost_a_sentence(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fail(capsys, *words)
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ('{"epochs": 1', "is not JSON"),
        ("[1]", "must be an object of JSON, not a list."),
        ("{}", "is no recipe of this version: epochs and total_steps are both None"),
        ('{"epochs": 1, "learning_rate": 3}', "is no recipe of this version: Recipe has no field 'learning_rate'."),
        (
            '{"epochs": 1, "model": "ViT-B/16"}',
            "is no recipe of this version: ModelSettings must be an object, not 'ViT-B/16'.",
        ),
        ('{"epochs": NaN}', ""),
        ("\x00\xff", ""),
    ],
)
def test_a_file_that_is_no_recipe(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recipe.json"
    path.write_bytes(text.encode("latin-1"))
    sentence = fail(capsys, path)
    assert sentence.startswith(str(path))
    assert message in sentence


def test_the_description_of_a_model_is_no_recipe(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no recipe of this version" in fail(capsys, digits / "model" / "config.json")


def test_lists_help_and_mistakes_need_no_torch() -> None:
    commands = [["--list"], ["digits", "--help"], ["digits", "--seed", "x"], ["digist"]]
    code = f"""{BLOCKS["finder"]}
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
    code = f"{BLOCKS['finder']}\nfrom vitrine.cli import main; main({words!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.full
def test_a_run_as_a_program_of_its_own(digits: Path, tmp_path: Path) -> None:
    """Results on standard output, which may go into a file; the course of the run on standard error."""
    words = ["train", str(digits / "recipe.json"), "--out", "run"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-m", "vitrine", *words], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "The model is in run/model, its curves in run/curves.png."
    assert "step 3/3  loss" in result.stderr
    assert (tmp_path / "run" / "curves.png").is_file()
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == (
        digits / "model" / "model.safetensors"
    ).read_bytes()
    assert list_differences(parse_recipe(read_recipe(tmp_path / "run"), "new"), parse_recipe(read_recipe(digits), "old")) == []

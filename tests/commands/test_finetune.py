"""`vitrine finetune` as a user runs it: a small checkpoint, a folder of images, one of the recipes; its mistakes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.run.test_run import are_equal, read_weights
from tests.test_package import BLOCK_TORCH
from vitrine.cli import main
from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.registry import build_model
from vitrine.recipe import parse_recipe, with_changes
from vitrine.recipes.finetune import FinetuneTask
from vitrine.recipes.registry import FINETUNE_RECIPES

SIDE = 16
CLASSES = ("dark", "light", "striped")
COUNTS = {"train": 6, "test": 4}  # of each class
# Less of what the paper's recipes ask for.
SMALL = ("--total-steps", 2, "--optim.warmup-steps", 0, "--loader.batch-size", 8, "--loader.num-workers", 0)
SMALLER = (*SMALL, "--model.image-size", SIDE)


pytestmark = pytest.mark.usefixtures("short_runs")


def draw(label: int, drawn: np.random.Generator) -> np.ndarray:
    pixels = drawn.integers(0, 90, (SIDE, SIDE, 3)) + (0, 150, 0)[label]
    pixels[::2] += 150 if label == 2 else 0
    return pixels.astype(np.uint8)


def make_images(folder: Path, splits: tuple[str, ...] = ("train", "test"), classes: tuple[str, ...] = CLASSES) -> Path:
    """Write images of the checkpoint's size, so that evaluation does not resize them."""
    drawn = np.random.default_rng(0)
    for split in splits:
        for label, name in enumerate(classes):
            (folder / split / name).mkdir(parents=True)
            for index in range(COUNTS.get(split, COUNTS["train"])):
                Image.fromarray(draw(label, drawn)).save(folder / split / name / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with `tiny`, a checkpoint of five other classes, and `images`."""
    folder = tmp_path_factory.mktemp("work")
    torch.manual_seed(0)
    model = build_model("ViT-Ti/16", image_size=SIDE, patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=5)
    preprocessing = build_inception_preprocessing((SIDE, SIDE))
    save_checkpoint(Checkpoint(model, preprocessing, tuple("abcde"), {}), folder / "tiny")
    make_images(folder / "images")
    return folder


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def finetune(*words: object) -> None:
    main(["finetune", *map(str, words)])


@pytest.fixture(scope="module")
def finished(place: Path) -> dict[str, Path]:
    """Folders of short runs by recipe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        finetune("tiny", "images", *SMALL)
        finetune("tiny", "images", *SMALLER, "--recipe", "pets")
        finetune("tiny", "images", "--recipe=hyperrule", *SMALLER)
    return {name: place / "runs" / f"tiny-images-{name}" for name in ("folder", "pets", "hyperrule")}


def fail(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one-line error of a command."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        finetune(*words)
    output = capsys.readouterr()
    assert stop.value.code == 2
    assert output.out == ""
    assert output.err.startswith("vitrine: ")
    assert output.err.count("\n") == 1
    return output.err.removeprefix("vitrine: ").strip()


def test_the_result_is_a_checkpoint_for_the_new_classes(finished: dict[str, Path], place: Path) -> None:
    before = read_weights(place / "tiny")
    for folder in finished.values():
        checkpoint = load_checkpoint(folder / "model")
        after = checkpoint.model.state_dict()
        assert checkpoint.class_names == CLASSES
        assert checkpoint.model.config.image_size == (SIDE, SIDE)
        assert after["head.weight"].shape == (3, 16)
        assert checkpoint.provenance["from"] == load_checkpoint(place / "tiny").provenance
        others = {name for name in before if not name.startswith("head")}
        assert set(after) - {"head.weight", "head.bias"} == others
        # Two small steps from where the checkpoint was, not from anywhere else.
        assert all(torch.allclose(after[name], before[name], atol=0.01) for name in others)


def test_the_reported_accuracy_is_that_of_the_model(finished: dict[str, Path], place: Path) -> None:
    """It is computed here from the files by torch alone."""
    paths = [(path, label) for label, name in enumerate(CLASSES) for path in sorted((place / "images/test" / name).iterdir())]
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path, _ in paths])
    labels = torch.tensor([label for _, label in paths])
    for folder in finished.values():
        with torch.no_grad():
            logits = load_checkpoint(folder / "model").model(pixels.float() / 255 * 2 - 1)
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["num_test_images"] == 12
        assert summary["test_top1"] == (logits.argmax(dim=1) == labels).double().mean().item()
        assert summary["test_loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), abs=1e-5)
        assert summary["model"] == "tiny"


@pytest.mark.parametrize("name", ["folder", "pets", "hyperrule"])
def test_the_recipe_is_the_named_one_with_the_given_options(name: str, finished: dict[str, Path]) -> None:
    """Its rule sees the number of images and classes of the data."""
    transfer = FinetuneTask("tiny", "images", num_images=18, num_classes=3, measure_area=lambda: SIDE * SIDE)
    changes = {
        "total_steps": 2,
        "optim": {"warmup_steps": 0},
        "loader": {"batch_size": 8, "num_workers": 0},
        "model": {} if name == "folder" else {"image_size": SIDE},
    }
    expected = with_changes(FINETUNE_RECIPES[name].build(transfer), **changes)
    assert parse_recipe(json.loads((finished[name] / "recipe.json").read_text()), "recipe.json") == expected


def test_the_file_of_a_run_trains_it_again(finished: dict[str, Path], tmp_path: Path) -> None:
    main(["train", str(finished["pets"] / "recipe.json"), "--out", str(tmp_path / "again")])
    assert are_equal(read_weights(finished["pets"] / "model"), read_weights(tmp_path / "again" / "model"))


def test_a_fine_tuned_model_can_be_fine_tuned_again(finished: dict[str, Path], tmp_path: Path) -> None:
    finetune(finished["folder"] / "model", "images", *SMALL, "--out", tmp_path / "again", "--head-init", "zero")
    assert load_checkpoint(tmp_path / "again" / "model").class_names == CLASSES


def test_a_finished_run_is_only_read(finished: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    times = {path: path.stat().st_mtime_ns for path in finished["folder"].rglob("*")}
    finetune("tiny", "images", *SMALL)
    assert capsys.readouterr().err == ""
    assert {path: path.stat().st_mtime_ns for path in finished["folder"].rglob("*")} == times


def test_another_recipe_in_the_same_folder_is_rejected(finished: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    sentence = fail(capsys, "tiny", "images", *SMALL, "--out", finished["folder"], "--optim.layer-decay", 0.5)
    assert "optim.layer_decay was 0.75 and is 0.5" in sentence


def test_a_learning_rate_is_chosen_and_seeds_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rates = (2e-4, 1e-3)
    words = ("--select-rate", "--rates", *rates, "--seeds", 0, 1, "--json", tmp_path / "results.json")
    finetune("tiny", "images", *SMALL, *words, "--out", tmp_path / "run")
    results = json.loads((tmp_path / "results.json").read_text())
    assert [float(rate) for rate in results["rates"]] == list(rates)
    # Of rates alike the lowest.
    best = min(rate for rate in rates if results["rates"][f"{rate:g}"] == max(results["rates"].values()))
    assert [(summary["seed"], summary["learning_rate"]) for summary in results["runs"]] == [(0, best), (1, best)]
    assert {summary["num_train_images"] for summary in results["runs"]} == {18}
    trial = json.loads((tmp_path / "run" / "rate-0.0002" / "summary.json").read_text())
    assert (trial["num_train_images"], trial["watched_on"], trial["test_top1"]) == (14, "held_out", None)  # a fifth is held out
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.endswith("chosen")]) == 1
    assert any(line.startswith("test top-1 over 2 seeds: ") for line in lines)


def test_a_recipe_with_one_learning_rate_has_nothing_to_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("tiny", "images", "--recipe", "hyperrule", *SMALLER, "--select-rate", "--out", tmp_path / "run")
    assert "--select-rate" in fail(capsys, *words)
    # Rates by hand do not help, as the rule holds no images out to choose on.
    assert "held_out" in fail(capsys, *words, "--rates", 0.1, 0.2)


def test_options_that_only_this_recipe_allows_can_be_given(tmp_path: Path) -> None:
    """Only BiT's rule has a random crop, whose size other recipes would reject."""
    words = ("--recipe", "hyperrule", *SMALLER, "--augment.resize", 20, "--out", tmp_path / "run")
    finetune("tiny", "images", *words)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["augment"]["resize"] == 20


def test_bad_images_are_skipped_if_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_images(tmp_path / "images", splits=("train",))
    (images / "train" / "dark" / "0.png").write_bytes(b"not a picture")  # the first that anybody looks at
    words = ("tiny", images, *SMALL, "--out", tmp_path / "run")
    assert "train/dark/0.png" in fail(capsys, *words, "--data.bad-images", "error")
    finetune(*words, "--data.bad-images", "skip")
    assert (tmp_path / "run" / "model").is_dir()


def test_a_part_of_the_images_can_be_held_out_or_left_out(tmp_path: Path) -> None:
    finetune("tiny", "images", *SMALL, "--out", tmp_path / "run", "--data.subset", "4/class", "--data.held-out", 0.25)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["num_train_images"], summary["watched_on"]) == (9, "held_out")
    recipe = parse_recipe(json.loads((tmp_path / "run" / "recipe.json").read_text()), "recipe.json")
    # The rule goes by the images that are left.
    expected = FINETUNE_RECIPES["folder"].build(
        FinetuneTask("tiny", "images", num_images=9, num_classes=3, measure_area=lambda: SIDE * SIDE)
    )
    assert recipe.epochs == expected.epochs


def test_a_small_folder_without_splits_has_no_test(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finetune("tiny", make_images(tmp_path / "images", splits=("",)), *SMALL, "--out", tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["num_train_images"], summary["test_top1"]) == (18, None)
    assert "%" not in capsys.readouterr().out


def test_a_mistyped_model_can_be_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failed start does not claim its folder."""
    assert "tinny" in fail(capsys, "tinny", "images", *SMALL, "--out", tmp_path / "run")
    finetune("tiny", "images", *SMALL, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "model").is_dir()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tiny",), "MODEL and DATA"),
        (("--recipe", "pets", "tiny", "images"), "MODEL and DATA"),
        (("tiny", "--recipe", "pets", "images"), "MODEL and DATA"),
        (("tiny", "nowhere"), "nowhere"),
        (("nowhere", "images"), "nowhere"),
        (("", "images"), "''"),
        (("images", "tiny"), "tiny"),
        (("images", "images"), "images"),
        (("tiny", "images", "--recipe", "pet"), "pets"),
        (("tiny", "images", "--recipe", ""), "Unknown recipe"),
        (("tiny", "images", "--recipe=pet"), "pets"),
        (("tiny", "images", "--recipe", "digits"), "vitrine train digits"),
        (("tiny", "images", "--recipe"), "--recipe"),
        (("tiny", "images", "--recipe", "pets", "--recipe", "flowers"), "--recipe"),
        (("tiny", "images", "more"), "more"),
        (("tiny", "images", "--learning-rate", "1"), "--learning-rate"),
        (("tiny", "images", "--optim.learning-rate", "fast"), "--optim.learning-rate"),
        (("tiny", "images", "--model.width", "32"), "model.width=32"),
        (("tiny", "images", "--model.name", "ViT-B/16"), "model.checkpoint"),
        (("tiny", "images", "--model.image-size", "4"), "patch"),
        (("tiny", "images", "--model.dropout-rate", "2"), "dropout_rate=2.0"),
        (("tiny", "images", "--optim.frozen-blocks", "7"), "frozen_blocks=7"),
        (("tiny", "images", "--data.held-out", "0.01"), "held_out=0.01"),
        (("tiny", "images", "--data.split", "val"), "val"),
        (("tiny", "images", "--evaluation.resize", "8"), "evaluation.resize=8"),
        (("tiny", "images", "--recipe", "pets", "--total-steps", "2", "--optim.warmup-steps", "7"), "warmup_steps=7"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_reported_in_one_line(
    words: tuple[str, ...], message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(place.rglob("*"))
    out = ("--out", tmp_path / "run") if len(words) > 1 and words[-1] != "--recipe" else ()
    assert message in fail(capsys, *words, *out)
    assert not list(tmp_path.rglob("metrics.jsonl"))
    assert sorted(place.rglob("*")) == before


def test_model_and_data_in_the_wrong_order_are_recognised(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "MODEL" in fail(capsys, "images", "tiny", "--out", tmp_path / "run")


def test_images_without_labels_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images").mkdir()
    for index in range(20):
        Image.fromarray(draw(0, np.random.default_rng(index))).save(tmp_path / "images" / f"{index}.png")
    for name in ("folder", "pets"):
        sentence = fail(capsys, "tiny", tmp_path / "images", "--recipe", name, *SMALL, "--out", tmp_path / name)
        assert f"{tmp_path / 'images'} has no labels" in sentence


@pytest.mark.parametrize("name", ["folder", "pets"])
def test_images_of_a_single_class_are_rejected(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This happens if the folder above the intended one is given."""
    images = make_images(tmp_path / "images", splits=("train",), classes=("dark",))
    sentence = fail(capsys, "tiny", images, "--recipe", name, *SMALLER, "--out", tmp_path / "run")
    assert "class" in sentence
    assert not (tmp_path / "run" / "model").exists()


def test_an_empty_folder_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "images" / "dark").mkdir(parents=True)
    assert str(tmp_path / "images") in fail(capsys, "tiny", tmp_path / "images", "--out", tmp_path / "run")


def test_a_damaged_checkpoint_is_rejected(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "tiny").mkdir(exist_ok=True)
        (tmp_path / "tiny" / name).write_bytes((place / "tiny" / name).read_bytes())
    weights = bytearray((tmp_path / "tiny" / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (tmp_path / "tiny" / "model.safetensors").write_bytes(weights)
    assert "tiny" in fail(capsys, tmp_path / "tiny", "images", *SMALL, "--out", tmp_path / "run")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in (((), 2), (("--help",), 0), (("-h",), 0)):
        with pytest.raises(SystemExit) as stop:
            finetune(*words)
        assert stop.value.code == code
        assert "usage: vitrine finetune MODEL DATA" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [(), ("--data.subset", "2/class"), ("--seed", "x"), ("--data.source", "nowhere")], ids=" ".join
)
def test_help_shows_the_recipe_s_own_values(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Other options before --help do not matter."""
    with pytest.raises(SystemExit) as stop:
        finetune("tiny", "images", "--recipe", "pets", *words, "--help")
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert text.startswith("usage: vitrine finetune tiny images")
    assert re.search(r"--optim.learning-rate FLOAT .{0,120}?\(default: 0.003\)", text)
    assert "(default: runs/tiny-images-pets)" in text
    assert "(default: 0.001 0.003 0.01 0.03)" in text


def test_help_and_mistakes_need_no_torch(place: Path) -> None:
    commands = [["tiny", "images", "--help"], ["tiny", "images", "--seed", "x"], ["tiny", "nowhere"], ["tiny"]]
    code = f"""{BLOCK_TORCH}
from vitrine.cli import main
for words in {commands!r}:
    try:
        main(["finetune", *words])
    except SystemExit as stop:
        print("ended with", stop.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=place)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.startswith("ended")] == [
        f"ended with {n}" for n in (0, 2, 2, 2)
    ]
    assert len(result.stderr.splitlines()) == 3

"""Learning-rate search on held-out images, several seeds, and `train` and `finetune` as functions."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.run.test_run import COUNTS, are_equal, interrupt_at, make_recipe, measure, read_weights, write_data
from vitrine.core.console import VitrineWarning
from vitrine.core.files import write_json
from vitrine.data import open_data
from vitrine.data.open_data import DatasetHandle
from vitrine.formats.load import load_checkpoint
from vitrine.recipe import Recipe, with_changes
from vitrine.run.folder import RunFolder, RunSummary
from vitrine.run.run import run_recipe
from vitrine.studies.sweeps import LearningRateSearch, finetune, run_seeds, search_learning_rate, train
from vitrine.training.metrics_log import read_records

RATES = (3.0, 0.01, 10.0)  # with the high ones all images end up in one class


pytestmark = pytest.mark.usefixtures("short_runs")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    source = write_data(tmp_path_factory.mktemp("data") / "shades.npz")
    return make_recipe(source, evaluation={"num_times": 3, "patience": 1, "batch_size": 10})


@pytest.fixture(scope="module")
def chosen(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LearningRateSearch]:
    out = tmp_path_factory.mktemp("runs") / "new" / "rates"
    return out, search_learning_rate(recipe, RATES, 0.2, out, "shades")


def test_the_learning_rate_with_the_best_accuracy_is_chosen(chosen: tuple[Path, LearningRateSearch]) -> None:
    out, choice = chosen
    assert choice.interrupted_by is None
    assert choice.best == 0.01
    assert list(choice.summaries) == list(RATES)
    assert [summary.learning_rate for summary in choice.summaries.values()] == list(RATES)
    assert sorted(path.name for path in out.iterdir()) == ["rate-0.01", "rate-10", "rate-3"]


def test_a_search_measures_on_held_out_training_images(chosen: tuple[Path, LearningRateSearch]) -> None:
    """The validation split is not used either: the paper chooses on a part of train."""
    for summary in chosen[1].summaries.values():
        assert summary.num_train_images == round(0.8 * COUNTS["train"])
        assert summary.watched_on == "held_out"
        assert summary.best is not None


def test_a_search_evaluates_once_at_the_end(chosen: tuple[Path, LearningRateSearch]) -> None:
    out, choice = chosen
    for summary in choice.summaries.values():
        records = read_records(out / f"rate-{summary.learning_rate:g}" / "metrics.jsonl")
        (found,) = [record for record in records if "held_out_top1" in record]
        assert (found["step"], found["held_out_top1"]) == (summary.total_steps, summary.best)
        assert summary.stopped_early is False


def test_a_search_does_not_use_test_images(chosen: tuple[Path, LearningRateSearch]) -> None:
    out, choice = chosen
    for summary in choice.summaries.values():
        assert (summary.test_top1, summary.test_loss, summary.num_test_images) == (None, None, None)
    assert not [record for record in read_records(out / "rate-0.01" / "metrics.jsonl") if "test_top1" in record]


def test_held_out_images_of_the_recipe_take_precedence(recipe: Recipe, tmp_path: Path) -> None:
    held_out = with_changes(recipe, data={"held_out": 0.4}, total_steps=3)
    choice = search_learning_rate(held_out, (0.01, 0.02), 0.2, tmp_path / "rates", "shades")
    assert {summary.num_train_images for summary in choice.summaries.values()} == {round(0.6 * COUNTS["train"])}
    assert RunFolder(tmp_path / "rates" / "rate-0.01").read_recipe().data.held_out == 0.4


def test_of_equal_learning_rates_the_lowest_is_chosen(chosen: tuple[Path, LearningRateSearch]) -> None:
    some = chosen[1].summaries[RATES[0]]

    def choose(accuracies: dict[float, float]) -> float:
        return LearningRateSearch({rate: replace(some, best=accuracy) for rate, accuracy in accuracies.items()}, True).best

    assert choose({0.1: 0.5, 0.01: 0.5, 0.03: 0.5}) == 0.01
    assert choose({0.1: 0.6, 0.01: 0.5, 0.03: 0.6}) == 0.03
    assert choose({0.1: 0.0, 0.01: 0.0}) == 0.01


def test_finished_trials_are_only_read(chosen: tuple[Path, LearningRateSearch], recipe: Recipe) -> None:
    out, choice = chosen
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert search_learning_rate(recipe, RATES, 0.2, out, "shades") == choice
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_an_interruption_ends_a_search(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(2, signal.SIGTERM, patch)
        choice = search_learning_rate(recipe, RATES, 0.2, tmp_path / "rates", "shades")
    assert (choice.interrupted_by, choice.summaries) == (signal.SIGTERM, {})
    assert [path.name for path in (tmp_path / "rates").iterdir()] == ["rate-3"]


@pytest.mark.parametrize("rates", [(), (0.1,)])
def test_a_search_needs_at_least_two_learning_rates(rates: tuple[float, ...], recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two"):
        search_learning_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert list(tmp_path.iterdir()) == []


def test_a_search_needs_held_out_images(recipe: Recipe, tmp_path: Path) -> None:
    """Some recipes hold nothing out by default."""
    arrays = np.load(recipe.data.source)
    np.savez(tmp_path / "train.npz", allow_pickle=False, **{name: arrays[name] for name in ("x_train", "y_train")})
    undivided = with_changes(recipe, data={"source": str(tmp_path / "train.npz")}, total_steps=3)
    with pytest.raises(ValueError, match="held_out"):
        search_learning_rate(undivided, (0.01, 0.02), 0.0, tmp_path / "rates", "shades")


@pytest.mark.parametrize("rates", [(0.01, -0.5), (0.01, float("nan")), (0.01, 0.01)])
def test_wrong_learning_rates_are_rejected_before_anything_is_trained(
    rates: tuple[float, ...], recipe: Recipe, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="rate"):
        search_learning_rate(recipe, rates, 0.2, tmp_path / "rates", "shades")
    assert not (tmp_path / "rates" / "rate-0.01" / "summary.json").exists()


def test_a_search_skips_learning_rates_that_diverge(recipe: Recipe, tmp_path: Path) -> None:
    """The other learning rates are still tried, and one of them is chosen."""
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with pytest.warns(VitrineWarning, match=r"1e\+30 .*step 2"):
        choice = search_learning_rate(wild, (1e30, 1e-3, 2e-3), 0.2, tmp_path / "rates", "shades")
    assert choice.best in (1e-3, 2e-3)


def test_a_search_fails_if_all_learning_rates_diverge(recipe: Recipe, tmp_path: Path) -> None:
    wild = with_changes(recipe, optim={"max_grad_norm": None, "warmup_steps": 0}, total_steps=4)
    with (
        pytest.warns(VitrineWarning, match=r"1e\+3"),
        pytest.raises(ValueError, match=r"1e\+30, 1e\+31"),
    ):
        search_learning_rate(wild, (1e30, 1e31), 0.2, tmp_path / "rates", "shades")


SEEDS = (3, 0)


@pytest.fixture(scope="module")
def recipe_seeds(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return make_recipe(write_data(tmp_path_factory.mktemp("data") / "shades.npz"))


@pytest.fixture(scope="module")
def finished(recipe_seeds: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunSummary]]:
    out = tmp_path_factory.mktemp("runs") / "new" / "seeds"
    return out, run_seeds(recipe_seeds, SEEDS, out, "shades")


def test_each_seed_has_its_run(finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe) -> None:
    out, summaries = finished
    assert sorted(path.name for path in out.iterdir()) == ["seed-0", "seed-3"]
    assert [summary.seed for summary in summaries] == list(SEEDS)
    for summary in summaries:
        top1, _, _ = measure(out / f"seed-{summary.seed}" / "model", recipe_seeds.data.source, "test")
        assert summary.is_finished
        assert summary.test_top1 == top1


def test_a_seed_gives_the_same_run_as_alone(
    finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe, tmp_path: Path
) -> None:
    alone = run_recipe(replace(recipe_seeds, seed=3), tmp_path / "alone", "alone")
    out, summaries = finished
    assert are_equal(read_weights(out / "seed-3" / "model"), read_weights(tmp_path / "alone" / "model"))
    assert replace(summaries[0], device_hours=alone.device_hours) == alone
    assert not are_equal(read_weights(out / "seed-3" / "model"), read_weights(out / "seed-0" / "model"))


def test_finished_seeds_are_only_read(finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe) -> None:
    out, summaries = finished
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert run_seeds(recipe_seeds, tuple(reversed(SEEDS)), out, "shades") == list(reversed(summaries))
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times


def test_interrupted_seeds_can_be_resumed(
    finished: tuple[Path, list[RunSummary]], recipe_seeds: Recipe, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(5, signal.SIGTERM, patch)
        (summary,) = run_seeds(recipe_seeds, SEEDS, tmp_path / "seeds", "shades")
    assert (summary.is_finished, summary.steps, summary.interrupted_by) == (False, 5, signal.SIGTERM)
    assert not (tmp_path / "seeds" / "seed-0").exists()
    (resumed,) = run_seeds(recipe_seeds, SEEDS[:1], tmp_path / "seeds", "shades")
    out, summaries = finished
    assert replace(resumed, device_hours=0) == replace(summaries[0], device_hours=0)
    assert are_equal(read_weights(tmp_path / "seeds" / "seed-3" / "model"), read_weights(out / "seed-3" / "model"))


def test_repeated_seeds_are_rejected_before_anything_is_trained(recipe_seeds: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 1\)"):
        train(recipe_seeds, tmp_path / "seeds", seeds=(1, 2, 1))
    assert list(tmp_path.iterdir()) == []


def test_train_returns_the_runs_and_their_folders(recipe_seeds: Recipe, tmp_path: Path) -> None:
    result = train(recipe_seeds, tmp_path / "run", total_steps=3, optim={"learning_rate": 0.02})
    assert result.is_finished
    assert result.folders == [tmp_path / "run"]
    assert (result.runs[0].learning_rate, result.runs[0].total_steps) == (0.02, 3)
    assert (result.folders[0] / "model" / "model.safetensors").is_file()
    seeds = train(recipe_seeds, tmp_path / "seeds", seeds=(4, 5), total_steps=3)
    assert [run.seed for run in seeds.runs] == [4, 5]
    assert all((folder / "model").is_dir() for folder in seeds.folders)
    assert seeds.folders == [tmp_path / "seeds" / "seed-4", tmp_path / "seeds" / "seed-5"]


def test_train_chooses_a_learning_rate_first(recipe_seeds: Recipe, tmp_path: Path) -> None:
    result = train(recipe_seeds, tmp_path / "run", learning_rates=(3.0, 0.01), total_steps=8)
    assert result.search is not None
    assert result.recipe.optim.learning_rate == result.search.best == result.runs[0].learning_rate == 0.01
    assert result.recipe.data.held_out == 0
    assert result.folders == [tmp_path / "run" / "chosen"]


def test_the_chosen_learning_rate_is_used_on_all_training_images(recipe_seeds: Recipe, tmp_path: Path) -> None:
    part = with_changes(recipe_seeds, data={"held_out": 0.2})
    result = train(part, tmp_path / "run", learning_rates=(3.0, 0.01), total_steps=4)
    assert result.search is not None
    assert {run.num_train_images for run in result.search.summaries.values()} == {round(0.8 * COUNTS["train"])}
    assert result.runs[0].num_train_images == COUNTS["train"]


def test_train_returns_an_interrupted_run(recipe_seeds: Recipe, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(5, signal.SIGTERM, patch)
        result = train(recipe_seeds, tmp_path / "run")
    assert (result.is_finished, result.interrupted_by, result.runs[0].steps) == (False, signal.SIGTERM, 5)
    assert train(recipe_seeds, tmp_path / "run").is_finished


@pytest.fixture
def model(recipe_seeds: Recipe, tmp_path: Path) -> Path:
    return train(recipe_seeds, tmp_path / "first", total_steps=3).folders[0] / "model"


SMALL: dict[str, Any] = {"total_steps": 2, "optim": {"warmup_steps": 0}, "loader": {"batch_size": 8, "num_workers": 0}}


def test_finetune_finds_and_opens_the_data_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time a folder of a million files would be listed again."""
    drawn = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("dark", "light"):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for index in range(6):
                pixels = drawn.integers(0, 120, (8, 8), dtype=np.uint8) + (0 if name == "dark" else 120)
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / split / name / f"{index}.png")
    found: list[str] = []
    opened: list[str | None] = []
    find_on_disk = open_data.find_on_disk

    def find_counted(path: Path) -> DatasetHandle:
        found.append(str(path))
        handle = find_on_disk(path)
        return replace(handle, open_split=lambda split: opened.append(split) or handle.open_split(split))

    monkeypatch.setattr(open_data, "find_on_disk", find_counted)
    result = finetune(model, tmp_path / "images", tmp_path / "run", **SMALL)
    assert result.is_finished
    assert found == [str(tmp_path / "images")]
    assert sorted(opened) == ["test", "train"]


def test_finetune_takes_changes_and_names_its_folder(
    model: Path, recipe_seeds: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = finetune(model, recipe_seeds.data.source, seed=7, **SMALL)
    assert result.folders == [Path("runs/first-shades.npz-folder")]
    assert (result.runs[0].seed, result.runs[0].steps, result.runs[0].model) == (7, 2, str(model))
    assert load_checkpoint(result.folders[0] / "model").class_names == ("0", "1", "2", "3")


def test_finetune_takes_changes_of_the_model_and_the_data(model: Path, recipe_seeds: Recipe, tmp_path: Path) -> None:
    changes: dict[str, Any] = {**SMALL, "model": {"dropout_rate": 0.25}, "data": {"subset": "2/class"}}
    result = finetune(model, recipe_seeds.data.source, tmp_path / "run", **changes)
    assert result.runs[0].num_train_images == 8
    assert load_checkpoint(tmp_path / "run" / "model").model.config.dropout_rate == 0.25
    assert result.recipe.model.checkpoint == str(model)


def test_finetune_takes_a_loaded_checkpoint_and_leaves_it_unchanged(model: Path, recipe_seeds: Recipe, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(model)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    finetune(checkpoint, recipe_seeds.data.source, tmp_path / "loaded", **SMALL)
    finetune(model, recipe_seeds.data.source, tmp_path / "path", **SMALL)
    assert are_equal(read_weights(tmp_path / "loaded" / "model"), read_weights(tmp_path / "path" / "model"))
    assert are_equal(dict(checkpoint.model.state_dict()), before)


def test_finetune_takes_a_dataset_of_pil_images(model: Path, tmp_path: Path) -> None:
    class Shades:
        """A map-style dataset, as torch's Dataset is."""

        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            return Image.new("L", (8, 8), 100 * (index % 3) + index), index % 3

    result = finetune(model, Shades(), tmp_path / "run", **SMALL)
    assert result.runs[0].num_train_images == 22  # a tenth is held out
    assert load_checkpoint(tmp_path / "run" / "model").model.config.num_classes == 3


def test_two_processes_run_all_seeds(recipe_seeds: Recipe, tmp_path: Path) -> None:
    """The process group is initialised once for all runs."""
    write_json(tmp_path / "recipe.json", replace(recipe_seeds, total_steps=3).to_json())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "vitrine", "train", "recipe.json", "--out", "runs", "--seeds", "0", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "over 2 seeds" in done.stdout
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-0", "seed-1"}


def test_the_run_after_a_search_on_undivided_data_has_an_accuracy(tmp_path: Path) -> None:
    divided = np.load(write_data(tmp_path / "divided.npz"))
    np.savez(tmp_path / "whole.npz", allow_pickle=False, images=divided["x_train"], labels=divided["y_train"])
    undivided = make_recipe(str(tmp_path / "whole.npz"), data={"held_out": 0.25}, evaluation={"num_times": 1, "batch_size": 10})
    with pytest.warns(VitrineWarning, match="no test images"):
        result = train(undivided, tmp_path / "runs", learning_rates=(0.01, 0.02))
    (run,) = result.runs
    assert (result.recipe.data.held_out, run.watched_on) == (0.25, "held_out")
    assert run.best is not None


def test_a_shorter_run_shortens_the_warm_up_of_its_recipe(recipe: Recipe, tmp_path: Path) -> None:
    base = replace(recipe, total_steps=None, epochs=4.0, optim=replace(recipe.optim, warmup_steps=25))
    with pytest.warns(VitrineWarning, match=r"warmup_steps=25 to 1, .*total_steps=10"):
        result = train(base, tmp_path / "run", epochs=10 * base.loader.batch_size / COUNTS["train"])
    assert result.is_finished
    saved = RunFolder(tmp_path / "run").read_recipe()
    assert (saved.optim.warmup_steps, result.runs[0].total_steps) == (1, 10)
    given = {"warmup_steps": 26}
    with pytest.raises(ValueError, match="warmup_steps=26"):
        train(base, tmp_path / "other", epochs=10 * base.loader.batch_size / COUNTS["train"], optim=given)

"""Tests of run/run.py.

Whole runs of a second each: against a loop written out here, and what their folders say against what is in them.
What is measured in the course of a run, against the same measured by hand on the model that was saved.
"""

import json
import math
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from tests.formats import cases
from vitrine.core.console import VitrineWarning
from vitrine.core.runtime import Runtime
from vitrine.data.augment.transforms import TrainTransform
from vitrine.data.config import AugmentConfig, DataConfig, LoaderConfig, MixupConfig
from vitrine.data.loader import Loader
from vitrine.evaluation.config import EvaluationConfig
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.config import ViTConfig
from vitrine.models.settings import ModelSettings
from vitrine.objectives.supervised import Supervised
from vitrine.recipe import Recipe, with_changes
from vitrine.run import run as module
from vitrine.run.build import build_initial_model, open_run_data
from vitrine.run.callbacks import Callbacks
from vitrine.run.folder import RunFolder
from vitrine.run.run import Diverged, Run, check_batch_size, run_recipe
from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig
from vitrine.training.metrics_log import read_records

COUNTS = {"train": 75, "val": 23, "test": 21}
TOTAL_STEPS, BATCH_SIZE, WARMUP_STEPS, RATE = 12, 16, 2, 1e-2
CONFIG = ViTConfig(
    width=16, depth=2, num_heads=2, mlp_dim=32, patch_size=4, image_size=(8, 8), num_channels=1, num_classes=5, gelu="erf"
)


def write_data(path: Path) -> str:
    """Write noise whose brightness depends on its class; a dozen steps learn some of it."""
    arrays: dict[str, np.ndarray] = {}
    for place, (split, count) in enumerate(COUNTS.items()):
        drawn = np.random.default_rng(place)
        labels = np.arange(count) % 4
        images = drawn.integers(0, 90, (count, 8, 8)) + 55 * labels[:, None, None]
        arrays[f"x_{split}"], arrays[f"y_{split}"] = images.astype(np.uint8), labels
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)


def make_recipe(source: str, **changes: Any) -> Recipe:
    """Build a recipe with everything that a resumed run could get wrong: batches across epochs, dropout, augmentation."""
    recipe = Recipe(
        model=ModelSettings(
            name="ViT-Ti/16",
            image_size=8,
            patch_size=4,
            width=16,
            depth=2,
            num_heads=2,
            mlp_dim=32,
            num_channels=1,
            gelu="erf",
            dropout_rate=0.1,
        ),
        data=DataConfig(source=source),
        loader=LoaderConfig(batch_size=BATCH_SIZE, num_workers=0),
        augment=AugmentConfig(crop="pad", padding=1, flip=False),
        optim=OptimConfig(learning_rate=RATE, warmup_steps=WARMUP_STEPS),
        total_steps=TOTAL_STEPS,
        evaluation=EvaluationConfig(num_times=3, batch_size=10),
        report=ReportConfig(every_steps=1),
        device="cpu",
    )
    return with_changes(recipe, **changes)


def read_weights(folder: Path) -> dict[str, Tensor]:
    return load_checkpoint(folder).model.state_dict()


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def interrupt_at(step: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a signal to this process during a step."""
    find_due = Callbacks.find_due

    def find_due_signalled(callbacks: Callbacks, now: int) -> set[Any]:
        if now == step:
            signal.raise_signal(number)
        return find_due(callbacks, now)

    monkeypatch.setattr(Callbacks, "find_due", find_due_signalled)


@pytest.fixture(scope="module", autouse=True)
def generator() -> Iterator[None]:
    """Restore torch's generator, which runs seed."""
    with torch.random.fork_rng():
        yield


@pytest.fixture
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the figure, which takes as long as the rest of such a run."""
    monkeypatch.setattr(module, "write_run_report", lambda *arguments: None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


@pytest.fixture(scope="module")
def finished(source: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, RunFolder, Any]:
    """Recipe, folder and summary of a finished run with averaged weights."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    recipe = make_recipe(source, polyak_factor=0.7, saving=SavingConfig(every_steps=5))
    return recipe, RunFolder(out), run_recipe(recipe, out, "shades")


def read_split(source: str, split: str) -> tuple[Tensor, Tensor]:
    """Return images normalised to -1..1, as in the paper's code, and their labels."""
    arrays = np.load(source)
    pixels = torch.from_numpy(arrays[f"x_{split}"]).float()[:, None]
    return pixels / 255 * 2 - 1, torch.from_numpy(arrays[f"y_{split}"])


def measure(folder: Path, source: str, split: str) -> tuple[float, float, float]:
    """Return top-1, top-5 and loss, computed by torch alone."""
    images, labels = read_split(source, split)
    with torch.no_grad():
        logits = load_checkpoint(folder).model(images)
    order = logits.argsort(dim=1, descending=True)
    hits = order == labels[:, None]
    loss = nn.functional.cross_entropy(logits, labels).item()
    return hits[:, 0].double().mean().item(), hits[:, :5].any(dim=1).double().mean().item(), loss


def test_everything_is_in_the_folder(finished: tuple[Recipe, RunFolder, Any]) -> None:
    recipe, folder, summary = finished
    names = {
        "recipe.json",
        "data.json",
        "metrics.jsonl",
        "checkpoints",
        "best",
        "model",
        "curves.png",
        "report.html",
        "summary.json",
    }
    assert set(os.listdir(folder.path)) == names
    assert [path.name for path in folder.list_checkpoints()] == ["step-00000012", "step-00000010"]
    assert folder.read_recipe() == recipe
    assert json.loads((folder.model / "recipe.json").read_text()) == recipe.to_json()
    assert json.loads(folder.summary.read_text()) == asdict(summary)
    with Image.open(folder.curves) as curves:
        assert min(curves.size) > 200


def test_top5_of_four_classes_is_logged_and_not_printed(
    source: str, tmp_path: Path, no_curves: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(make_recipe(source), tmp_path / "run")
    printed = capsys.readouterr().err
    assert "val_top1" in printed
    assert "val_top5" not in printed
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["val_top5"] for record in records if "val_top1" in record] == [1.0] * 3


def test_the_summary_is_correct(finished: tuple[Recipe, RunFolder, Any], source: str) -> None:
    _, folder, summary = finished
    assert (summary.steps, summary.total_steps, summary.is_finished) == (12, 12, True)
    assert (summary.stopped_early, summary.interrupted_by) == (False, None)
    assert (summary.num_train_images, summary.num_test_images, summary.images) == (75, 21, 12 * 16)
    assert (summary.model, summary.seed, summary.device, summary.watched_on) == ("ViT-Ti/16", 0, "cpu", "val")
    assert summary.num_parameters == sum(tensor.numel() for tensor in read_weights(folder.model).values())
    top1, top5, loss = measure(folder.model, source, "test")
    assert (summary.test_top1, summary.test_top5) == (top1, top5)
    assert summary.test_loss == pytest.approx(loss, rel=1e-5)
    assert summary.test_top1 > 0.3  # it has learned something; chance is a quarter
    assert 0 < summary.device_hours < 0.1


def test_metrics_have_every_step_and_evaluation_once(finished: tuple[Recipe, RunFolder, Any], source: str) -> None:
    _, folder, summary = finished
    records = read_records(folder.metrics)
    steps = [record for record in records if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 13))
    assert [record["rate"] for record in steps] == pytest.approx([compute_rate(step) for step in range(12)])
    evaluations = {record["step"]: record["val_top1"] for record in records if "val_top1" in record}
    assert list(evaluations) == [4, 8, 12]
    assert summary.best == max(evaluations.values())
    assert summary.best_step == next(step for step, value in evaluations.items() if value == summary.best)
    assert measure(folder.best, source, "val")[0] == summary.best  # the folder holds what was the best
    assert measure(folder.model, source, "val")[0] == evaluations[12]
    assert load_checkpoint(folder.best).provenance["step"] == summary.best_step


def test_the_model_has_averaged_weights_and_the_training_state_the_raw_ones(finished: tuple[Recipe, RunFolder, Any]) -> None:
    _, folder, _ = finished
    saved = folder.find_last()
    assert saved is not None
    averaged = read_weights(folder.model)
    assert are_equal(averaged, saved.checkpoint.model.state_dict())
    raw = {name.removeprefix("weights.encoder."): tensor for name, tensor in saved.training.items() if "weights." in name}
    assert not torch.equal(averaged["head.weight"], raw["head.weight"])


def test_a_finished_run_is_not_run_again(finished: tuple[Recipe, RunFolder, Any]) -> None:
    recipe, folder, summary = finished
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    assert run_recipe(recipe, str(folder.path)) == summary
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before
    with pytest.raises(ValueError, match=r"seed was 0 and is 1"):
        run_recipe(replace(recipe, seed=1), folder.path)


def compute_rate(step: int) -> float:
    """Linear warm-up, then half a cosine."""
    if step < WARMUP_STEPS:
        return RATE * step / WARMUP_STEPS
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / (TOTAL_STEPS - WARMUP_STEPS)))


@pytest.mark.usefixtures("no_curves")
def test_a_run_equals_a_plain_training_loop(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, model={"dropout_rate": 0.0}, optim={"weight_decay": 0.0})
    run_recipe(recipe, tmp_path / "run")

    start = build_initial_model(recipe, ("0", "1", "2", "3"))
    model = start.model.train()
    train = open_run_data(recipe).train
    batches = Loader(train, TrainTransform(recipe.augment, start.preprocessing), recipe.loader, seed=recipe.seed).read()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    losses = []
    for step in range(TOTAL_STEPS):
        batch = next(batches)
        optimizer.param_groups[0]["lr"] = compute_rate(step)
        loss = nn.functional.cross_entropy(model(batch.image.float() / 255 * 2 - 1), batch.target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    records = read_records(tmp_path / "run" / "metrics.jsonl")
    assert [record["loss"] for record in records if "loss" in record] == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(read_weights(tmp_path / "run" / "model"), dict(model.eval().state_dict()))


@pytest.mark.usefixtures("no_curves")
def test_weights_depend_on_the_recipe_and_its_seed_only(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, total_steps=3, evaluation=EvaluationConfig(num_times=0))
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        torch.rand(len(name))  # whatever was drawn before
        run_recipe(replace(recipe, seed=seed), tmp_path / name)
    first, again, other = (read_weights(tmp_path / name / "model") for name in ("first", "again", "other"))
    assert are_equal(first, again)
    assert not are_equal(first, other)


@pytest.mark.usefixtures("no_curves")
def test_patience_keeps_the_best_weights(source: str, tmp_path: Path) -> None:
    """The learning rate is so high that the last weights are not the best."""
    recipe = make_recipe(
        source,
        optim=OptimConfig(learning_rate=0.5, warmup_steps=4, decay="constant", max_grad_norm=None),
        total_steps=20,
        polyak_factor=0.5,
        evaluation=EvaluationConfig(num_times=10, patience=2),
    )
    summary = run_recipe(recipe, tmp_path)
    folder = RunFolder(tmp_path)
    values = {record["step"]: record["val_top1"] for record in read_records(folder.metrics) if "val_top1" in record}
    assert summary.stopped_early
    assert summary.is_finished
    assert summary.steps == max(values) < 20
    assert summary.best == max(values.values()) == values[summary.best_step]
    assert summary.best_step == summary.steps - 4  # two evaluations before
    assert are_equal(read_weights(folder.model), read_weights(folder.best))
    assert summary.test_top1 == measure(folder.best, source, "test")[0]
    assert load_checkpoint(folder.model).provenance["step"] == summary.best_step  # of these weights, not of the run


@pytest.mark.usefixtures("no_curves")
def test_without_evaluations_there_is_no_best(source: str, tmp_path: Path) -> None:
    summary = run_recipe(make_recipe(source, evaluation=EvaluationConfig(num_times=0, test=False), total_steps=3), tmp_path)
    assert (summary.best, summary.best_step, summary.test_top1) == (None, None, None)
    assert not (tmp_path / "best").exists()
    assert all("loss" in record for record in read_records(tmp_path / "metrics.jsonl"))


@pytest.mark.usefixtures("no_curves")
def test_epochs_are_turned_into_steps(source: str, tmp_path: Path) -> None:
    recipe = replace(make_recipe(source), total_steps=None, epochs=1.0, evaluation=EvaluationConfig(num_times=0))
    assert run_recipe(recipe, tmp_path).steps == round(75 / 16)


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": EvaluationConfig(num_times=1, few_shot=2), "report": ReportConfig(tensorboard=True)},
        {"mixing": MixupConfig(mixup=0.5), "machine": MachineConfig(accumulation_steps=4, gradient_checkpointing=True)},
        {"machine": MachineConfig(precision="bfloat16"), "polyak_factor": 0.9},
        {"loader": LoaderConfig(batch_size=50, last="keep", num_workers=0), "optim": OptimConfig(kind="sgd", frozen_blocks=1)},
        {"supervised": {"loss": "sigmoid"}, "model": {"head_bias": -3.0, "hidden_head": True}, "data": {"held_out": 0.2}},
    ],
    ids=["few-shot", "mixed in parts", "bfloat16", "kept last batch", "sigmoid"],
)
def test_runs_of_every_kind_finish(changes: dict[str, Any], source: str, tmp_path: Path) -> None:
    summary = run_recipe(make_recipe(source, total_steps=3, **changes), tmp_path)
    assert summary.is_finished
    assert all(tensor.isfinite().all() for tensor in read_weights(tmp_path / "model").values())
    records = read_records(tmp_path / "metrics.jsonl")
    if "report" in changes:
        assert 0 <= next(record["few_shot_2"] for record in records if "few_shot_2" in record) <= 1
        assert list((tmp_path / "tensorboard").iterdir())
    if "data" in changes:
        assert summary.watched_on == "held_out"
        assert summary.num_train_images == 60
    assert not load_checkpoint(tmp_path / "model").model.config.gradient_checkpointing  # the machine's, not the model's


@pytest.mark.usefixtures("no_curves")
def test_frozen_weights_do_not_change(source: str, tmp_path: Path) -> None:
    save_checkpoint(cases.make_checkpoint(CONFIG), tmp_path / "saved")
    recipe = make_recipe(source, model=ModelSettings(checkpoint=str(tmp_path / "saved")), optim={"frozen_blocks": -1})
    run_recipe(replace(recipe, polyak_factor=0.5), tmp_path / "run")
    before, after = read_weights(tmp_path / "saved"), read_weights(tmp_path / "run" / "model")
    assert {
        name for name in before if before[name].shape != after[name].shape or not torch.equal(before[name], after[name])
    } == {
        "head.weight",
        "head.bias",
    }


@pytest.mark.usefixtures("no_curves")
def test_a_ridge_head_starts_as_a_linear_probe(source: str, tmp_path: Path) -> None:
    """With a tiny learning rate the result is the initial model, which is better than chance already."""
    save_checkpoint(cases.make_checkpoint(CONFIG), tmp_path / "saved")
    recipe = make_recipe(source, model=ModelSettings(checkpoint=str(tmp_path / "saved")), optim={"learning_rate": 1e-9})
    recipe = with_changes(recipe, head_init="ridge", total_steps=3)
    ridge, zero = (run_recipe(replace(recipe, head_init=kind), tmp_path / kind).test_top1 for kind in ("ridge", "zero"))
    assert ridge is not None
    assert zero is not None
    assert zero < 0.4 < ridge


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("report_every", [1, 5, 100])
def test_a_loss_that_is_not_finite_ends_the_run_with_its_step(report_every: int, source: str, tmp_path: Path) -> None:
    """The step is the one at which it happened, however late it is noticed."""
    recipe = make_recipe(
        source,
        saving=SavingConfig(every_steps=2),
        report=ReportConfig(every_steps=report_every),
        evaluation=EvaluationConfig(num_times=0),
    )
    with pytest.raises(Diverged, match=r"step 5; .*step-00000004"):
        run_poisoned(recipe, tmp_path)
    saved = RunFolder(tmp_path).find_last()
    assert saved is not None
    assert saved.progress.step == 4
    assert all(tensor.isfinite().all() for tensor in saved.checkpoint.model.state_dict().values())
    assert not (tmp_path / "summary.json").exists()
    reported = [record for record in read_records(tmp_path / "metrics.jsonl") if "loss" in record]
    assert all(record["step"] < 5 and record["loss"] is not None for record in reported)
    with pytest.raises(Diverged, match=r"step 5;"):
        run_poisoned(recipe, tmp_path)  # the same again, from the checkpoint


def run_poisoned(recipe: Recipe, out: Path) -> None:
    """Run a recipe with a loss that is not a number at the fifth step."""
    forward = Supervised.forward

    def poisoned(objective: Any, batch: Any) -> Any:
        output = forward(objective, batch)
        return replace(output, loss=output.loss * math.nan) if batch.step == 4 else output

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Supervised, "forward", poisoned)
        run_recipe(recipe, out)


@pytest.mark.usefixtures("no_curves")
def test_divergence_before_the_first_checkpoint(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, optim=OptimConfig(learning_rate=1e30, max_grad_norm=None))
    with pytest.raises(ValueError, match=r"step [23]; no checkpoint"):
        run_recipe(recipe, tmp_path)


@pytest.mark.usefixtures("no_curves")
def test_a_run_resumes_after_a_full_disk(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resumed run gives the same weights as an undisturbed one."""
    recipe = make_recipe(source, saving=SavingConfig(every_steps=4), evaluation=EvaluationConfig(num_times=0))
    run_recipe(recipe, tmp_path / "whole")
    synced = os.fsync
    is_full = threading.Event()

    def fill(descriptor: int) -> None:
        if is_full.is_set():
            raise OSError(28, "No space left on device")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    find_due = Callbacks.find_due
    monkeypatch.setattr(Callbacks, "find_due", lambda run, step: (step == 8 and is_full.set()) or find_due(run, step))
    with pytest.raises(OSError, match=r"^(?!\[Errno).*step-00000008.*full"):
        run_recipe(recipe, tmp_path / "run")
    is_full.clear()
    monkeypatch.setattr(Callbacks, "find_due", find_due)
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-00000004"]
    assert run_recipe(recipe, tmp_path / "run").is_finished
    assert are_equal(read_weights(tmp_path / "run" / "model"), read_weights(tmp_path / "whole" / "model"))


@pytest.mark.usefixtures("no_curves")
def test_a_failed_start_does_not_claim_its_folder(source: str, tmp_path: Path) -> None:
    """After a mistake in the data, the corrected command can use the same folder."""
    wrong = make_recipe(str(tmp_path / "shade.npz"), total_steps=3)
    with pytest.raises(FileNotFoundError, match=r"shade\.npz"):
        run_recipe(wrong, tmp_path / "run")
    assert run_recipe(make_recipe(source, total_steps=3), tmp_path / "run").is_finished
    assert RunFolder(tmp_path / "run").read_recipe().data.source == source


def test_an_unknown_device_is_named(source: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"abacus.* is not available"):
        run_recipe(replace(make_recipe(source), device="abacus"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_curves")
def test_a_run_in_another_thread(source: str, tmp_path: Path) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(run_recipe(make_recipe(source, total_steps=3), tmp_path)))
    thread.start()
    thread.join()
    assert found[0].is_finished


@pytest.mark.usefixtures("no_curves")
def test_bad_images_are_an_error_or_skipped(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for index in range(10):
            pixels = drawn.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{index}.png")
    (tmp_path / "data" / "b" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing")
    recipe = make_recipe(str(tmp_path / "data"), total_steps=3)
    with pytest.raises(ValueError, match=r"b/3\.png"):
        run_recipe(with_changes(recipe, data={"bad_images": "error"}), tmp_path / "run")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", VitrineWarning)
        assert run_recipe(with_changes(recipe, data={"bad_images": "skip"}), tmp_path / "other").is_finished
    assert any("b/3.png" in str(each.message) for each in said)


@pytest.mark.usefixtures("no_curves")
def test_a_few_bad_images_are_skipped_and_many_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(0)
    for index in range(40):
        path = tmp_path / "data" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    recipe = make_recipe(str(tmp_path / "data"), total_steps=20)
    bad = [tmp_path / "data" / "a" / f"{index}.png" for index in (0, 2, 4, 6)]
    for path in bad[:3]:  # more than 1 %, but not more than three files
        path.write_bytes(b"not an image")
    with pytest.warns(VitrineWarning, match="so far"):
        assert run_recipe(recipe, tmp_path / "run").is_finished
    assert "replaced by others: 3 (a/0.png, a/2.png, a/4.png)" in capsys.readouterr().err
    bad[3].write_bytes(b"not an image")
    with pytest.warns(VitrineWarning), pytest.raises(ValueError, match=r"4 of 40 .*a/0\.png, a/2\.png, a/4\.png, a/6\.png"):
        run_recipe(recipe, tmp_path / "more")
    with pytest.warns(VitrineWarning):  # the way to continue that the message names; the run resumes
        assert run_recipe(with_changes(recipe, data={"bad_images": "skip"}), tmp_path / "more").is_finished


@pytest.mark.parametrize(
    ("world_size", "parts", "mixed", "unit"), [(3, 1, False, 3), (2, 16, False, 32), (2, 8, True, 32), (5, 2, False, 10)]
)
def test_a_batch_has_to_be_divisible_by_ranks_and_parts(
    world_size: int, parts: int, mixed: bool, unit: int, source: str
) -> None:
    recipe = make_recipe(
        source, machine=MachineConfig(accumulation_steps=parts), mixing=MixupConfig(mixup=0.5) if mixed else MixupConfig()
    )
    with pytest.raises(ValueError, match=rf"multiple of {unit}\b"):
        check_batch_size(recipe, Runtime(torch.device("cpu"), 0, world_size))
    check_batch_size(with_changes(recipe, loader={"batch_size": 2 * unit}), Runtime(torch.device("cpu"), 0, world_size))


def test_small_last_batches_are_for_one_process(source: str) -> None:
    recipe = make_recipe(source, loader={"last": "keep"})
    with pytest.raises(ValueError, match="keep"):
        check_batch_size(recipe, Runtime(torch.device("cpu"), 0, 2))
    check_batch_size(recipe, Runtime(torch.device("cpu")))


ALONE = Runtime(torch.device("cpu"))


@pytest.fixture(scope="module")
def source_measuring(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def build_run(source_measuring: str, tmp_path: Path, **changes: object) -> Run:
    with torch.random.fork_rng():
        run = Run(make_recipe(source_measuring, **changes), RunFolder(tmp_path / "run"), ALONE)
        torch.manual_seed(0)
        torch.nn.init.normal_(run.state.objective.encoder.head.weight)
    return run


def test_validation_metrics_equal_plain_torch_without_dropout(source_measuring: str, tmp_path: Path) -> None:
    run = build_run(source_measuring, tmp_path)
    score, record = run.evaluator.evaluate(run.state)
    images, labels = read_split(source_measuring, "val")
    encoder = run.state.objective.encoder.eval()
    with torch.no_grad():
        logits = encoder(images)
    assert score == pytest.approx((logits.argmax(dim=1) == labels).double().mean().item())
    loss = pytest.approx(torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert record == {"val_top1": score, "val_top5": 1.0, "val_loss": loss}


def test_averaged_weights_are_evaluated_and_then_swapped_back(source_measuring: str, tmp_path: Path) -> None:
    run = build_run(source_measuring, tmp_path, polyak_factor=0.5)
    assert run.state.average is not None
    head = run.state.objective.encoder.head
    with torch.no_grad():
        run.state.average.values["encoder.head.weight"].zero_()
        run.state.average.values["encoder.head.bias"].copy_(torch.tensor([9.0, 0.0, 0.0, 0.0]))
    before = head.weight.clone()
    score, _ = run.evaluator.evaluate(run.state)
    _, labels = read_split(source_measuring, "val")
    assert score == pytest.approx((labels == 0).double().mean().item())
    assert torch.equal(head.weight, before)
    assert run.state.objective.training


def test_few_shot_accuracy_is_measured_if_requested(source_measuring: str, tmp_path: Path) -> None:
    run = build_run(source_measuring, tmp_path, evaluation={"few_shot": 3})
    _, record = run.evaluator.evaluate(run.state)
    assert 0.5 < record["few_shot_3"] <= 1  # brightness tells the classes apart, and random features keep it


@pytest.mark.parametrize("changes", [{"learning_rate": 1e38}, {"learning_rate": 1e300}, {"weight_decay": 1e300}])
def test_a_step_beyond_float32_is_explained(changes: dict[str, float], tmp_path: Path) -> None:
    recipe = with_changes(make_recipe(write_data(tmp_path / "data.npz")), optim={"kind": "adamw", **changes})
    with pytest.raises(Diverged, match="learning_rate"):
        run_recipe(recipe, tmp_path / "run")

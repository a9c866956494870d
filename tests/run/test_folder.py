"""The folder of a run after crashes, damage, full disks and changes by users; its summary."""

import errno
import json
import os
import random
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.formats import cases
from vitrine.core.console import VitrineWarning
from vitrine.data.config import DataConfig, LoaderConfig
from vitrine.data.fingerprint import DataFingerprint
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.load import load_checkpoint
from vitrine.models.config import ViTConfig
from vitrine.recipe import Recipe
from vitrine.run import folder as module
from vitrine.run.folder import TRAINING_FILE, ResumePoint, RunFolder, RunProgress, RunSummary
from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig
from vitrine.training.state import Tensors

RECIPE = Recipe(data=DataConfig(source="digits"), total_steps=100)
DATA = DataFingerprint({}, total_steps=100)
CONFIG = ViTConfig(width=4, depth=1, num_heads=1, mlp_dim=4, patch_size=4, image_size=(8, 8), num_classes=2)
FILES = ("model.safetensors", "config.json", TRAINING_FILE)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.open(RECIPE, DATA)
    return folder


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return cases.make_checkpoint(CONFIG)


def make_training(step: int) -> Tensors:
    generator = torch.Generator().manual_seed(step)
    return {
        "optimizer.encoder.head.weight/exp_avg": torch.randn(2, 4, generator=generator),
        "optimizer.encoder.head.weight/step": torch.tensor(float(step)),
    }


def make_progress(step: int) -> RunProgress:
    return RunProgress(step=step, best=0.625, best_step=step - 1, num_worse=1, seconds=12.5)


def save(folder: RunFolder, checkpoint: Checkpoint, *steps: int, keep_last: int = 2) -> None:
    for step in steps:
        at_step = replace(checkpoint, provenance={"step": step})
        folder.save_training(at_step, make_training(step), make_progress(step), keep_last)


def list_steps(folder: RunFolder) -> list[str]:
    return [path.name for path in folder.list_checkpoints()]


def require_saved(saved: ResumePoint | None, checkpoint: Checkpoint, step: int) -> None:
    """Check that a loaded checkpoint is the one saved at the step."""
    assert saved is not None
    assert saved.progress == make_progress(step)
    training = make_training(step)
    assert saved.training.keys() == training.keys()
    assert all(torch.equal(saved.training[name], tensor) for name, tensor in training.items())
    weights = checkpoint.model.state_dict()
    found = saved.checkpoint.model.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert saved.checkpoint.model.config == checkpoint.model.config
    assert saved.checkpoint.preprocessing == checkpoint.preprocessing
    assert saved.checkpoint.class_names == checkpoint.class_names


def test_a_new_folder_holds_the_recipe(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "first")
    folder.open(RECIPE, DATA)
    assert folder.read_recipe() == RECIPE
    assert json.loads((tmp_path / "runs" / "first" / "recipe.json").read_text()) == RECIPE.to_json()
    assert folder.find_last() is None
    folder.open(RECIPE, DATA)


def test_an_empty_folder_can_be_used(tmp_path: Path) -> None:
    RunFolder(tmp_path).open(RECIPE, DATA)
    assert RunFolder(tmp_path).read_recipe() == RECIPE


@pytest.mark.parametrize(
    "left", [["checkpoints"], [".recipe.json.vitrine-partial"], ["checkpoints", ".recipe.json.vitrine-partial"]]
)
def test_a_run_killed_at_its_start_can_start_again(left: list[str], tmp_path: Path) -> None:
    """These are the files of a process that was killed before recipe.json was complete."""
    for name in left:
        if name == "checkpoints":
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text('{"model": ')
    folder = RunFolder(tmp_path)
    folder.open(RECIPE, DATA)
    assert folder.read_recipe() == RECIPE


def test_what_changes_no_number_may_be_other(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    other = replace(
        RECIPE,
        device="cpu",
        machine=MachineConfig(accumulation_steps=4, gradient_checkpointing=True),
        saving=SavingConfig(every_steps=3),
        report=ReportConfig(every_steps=1),
        loader=replace(RECIPE.loader, num_workers=3, prefetch=7),
    )
    before = folder.recipe.read_bytes()
    folder.open(other, DATA)
    assert folder.recipe.read_bytes() == before


def test_another_recipe_is_rejected_with_every_differing_field(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    other = replace(
        RECIPE,
        seed=3,
        optim=OptimConfig(learning_rate=0.5),
        loader=LoaderConfig(batch_size=8),
        polyak_factor=0.99,
        total_steps=7,
    )
    before = folder.recipe.read_bytes()
    with pytest.raises(ValueError, match="another recipe") as caught:
        folder.open(other, DATA)
    for difference in (
        "seed was 0 and is 3",
        "optim.learning_rate was 0.001 and is 0.5",
        "loader.batch_size was 256 and is 8",
        "polyak_factor was None and is 0.99",
        "total_steps was 100 and is 7",
    ):
        assert difference in str(caught.value)
    assert "optim.beta1" not in str(caught.value)
    assert folder.recipe.read_bytes() == before


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', '{"unknown": 1}', "\0\0\0"])
def test_a_damaged_recipe_is_named(content: str, folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    folder.recipe.write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.json"):
        folder.open(RECIPE, DATA)
    assert folder.recipe.read_text() == content


def test_a_folder_with_other_files_is_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with pytest.raises(FileExistsError, match="not the folder of a run"):
        RunFolder(tmp_path).open(RECIPE, DATA)
    with pytest.raises(FileExistsError, match=r"thesis\.txt"):
        RunFolder(tmp_path / "thesis.txt").open(RECIPE, DATA)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_with_another_recipe_json_is_left_unchanged(folder: RunFolder, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Neither a foreign recipe.json nor the folder of a trained model is a run that has saved nothing yet."""
    cake = tmp_path / "cake"
    cake.mkdir()
    (cake / "recipe.json").write_text('{"flour": 500}')
    (cake / "photo.txt").write_text("brown")
    folder.save_model(checkpoint, RECIPE, folder.model)
    for path in (cake, folder.model):
        before = {each.name: each.read_bytes() for each in path.iterdir()}
        with pytest.raises(FileExistsError, match="not the folder of a run"):
            RunFolder(path).open(replace(RECIPE, seed=1), DATA)
        assert {each.name: each.read_bytes() for each in path.iterdir()} == before


@pytest.mark.parametrize("kind", ["below a file", "in /proc"])
def test_a_folder_that_cannot_be_created_is_named(kind: str, tmp_path: Path) -> None:
    """The message names the folder, instead of the system's error number."""
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "run" if kind == "below a file" else Path("/proc/run")
    with pytest.raises(OSError, match=r"^(?!\[Errno).*run.*(choose|give|--out)"):
        RunFolder(path).open(RECIPE, DATA)


def test_a_saved_checkpoint_is_restored(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    require_saved(folder.find_last(), checkpoint, 5)
    again = load_checkpoint(folder.checkpoints / "step-00000005")  # each of them is a model to use, too
    assert again.provenance["step"] == 5


def test_default_progress_is_restored(folder: RunFolder, checkpoint: Checkpoint) -> None:
    folder.save_training(checkpoint, {}, RunProgress(step=1), 1)
    saved = folder.find_last()
    assert saved is not None
    assert saved.progress == RunProgress(step=1)
    assert saved.training == {}


@pytest.mark.parametrize(("keep_last", "kept"), [(1, [12]), (2, [12, 9]), (3, [12, 9, 2]), (9, [12, 9, 2, 1])])
def test_the_last_few_are_kept(keep_last: int, kept: list[int], folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 1, 2, 9, 12, keep_last=keep_last)
    assert list_steps(folder) == [f"step-{step:08d}" for step in kept]
    assert sorted(os.listdir(folder.checkpoints)) == sorted(list_steps(folder))


def test_the_old_checkpoint_is_kept_until_the_new_one_is_written(
    folder: RunFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, checkpoint, 1, keep_last=1)
    seen: list[bool] = []
    replace_file = os.replace

    def watch(source: Any, target: Any) -> None:
        seen.append((folder.checkpoints / "step-00000001" / "model.safetensors").is_file())
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", watch)
    save(folder, checkpoint, 2, keep_last=1)
    assert seen
    assert all(seen)
    assert list_steps(folder) == ["step-00000002"]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    """Overwrite a file with zeros, as some file systems do with data that never reached the disk."""
    path.write_bytes(bytes(path.stat().st_size))


def flip_last(path: Path) -> None:
    flip(path, path.stat().st_size - 1, 0x10)


def flip(path: Path, position: int, mask: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= mask
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [truncate, empty, zero, Path.unlink, flip_last])
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    name: str, damage: Callable[[Path], None], folder: RunFolder, checkpoint: Checkpoint
) -> None:
    save(folder, checkpoint, 5, 10)
    damage(folder.checkpoints / "step-00000010" / name)
    with pytest.warns(VitrineWarning, match=r"Damaged: .*step-00000010 .*step-00000005"):
        saved = folder.find_last()
    require_saved(saved, checkpoint, 5)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_byte_is_noticed_or_has_no_effect(name: str, folder: RunFolder, checkpoint: Checkpoint) -> None:
    """If the damage is noticed, the checkpoint before is loaded."""
    save(folder, checkpoint, 5, 10)
    path = folder.checkpoints / "step-00000010" / name
    whole, drawn = path.read_bytes(), random.Random(name)
    positions = {drawn.randrange(len(whole)) for _ in range(10)}
    for word in (
        b"standing",
        b'step\\":',
        b'best\\":',
        b"num_worse",
        b"checksum",
        b"mean",
        b"std",
        b"resize",
        b"norm_eps",
        b"gelu",
    ):
        if word in whole:  # where a number or a name begins that a flip makes another one
            start = whole.index(word)
            positions.update(range(start + len(word) - 1, min(start + len(word) + 4, len(whole))))
    for position in sorted(positions):
        path.write_bytes(whole)
        flip(path, position, 1 << drawn.randrange(3))
        saved, is_noticed = find_quietly(folder)
        require_saved(saved, checkpoint, 5 if is_noticed else 10)


def find_quietly(folder: RunFolder) -> tuple[ResumePoint | None, bool]:
    """Return the last checkpoint, and whether a warning named a damaged one."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        saved = folder.find_last()
    return saved, any("Damaged" in str(each.message) for each in said)


def test_only_damaged_checkpoints_are_an_error(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5, 10)
    truncate(folder.checkpoints / "step-00000005" / "model.safetensors")
    empty(folder.checkpoints / "step-00000010" / TRAINING_FILE)
    with pytest.raises(ValueError, match=r"00000010.*00000005.*checkpoints"):
        folder.find_last()
    assert list_steps(folder) == ["step-00000010", "step-00000005"]


def test_a_training_state_of_another_format_is_rejected(folder: RunFolder, checkpoint: Checkpoint) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "FORMAT", 2)
        save(folder, checkpoint, 5)
    with pytest.raises(ValueError, match="format 2"):
        folder.find_last()


def test_a_damaged_checkpoint_is_overwritten(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """A run resumes from the checkpoint before it and reaches the same step."""
    save(folder, checkpoint, 5, 10)
    truncate(folder.checkpoints / "step-00000010" / "model.safetensors")
    save(folder, checkpoint, 10)
    require_saved(folder.find_last(), checkpoint, 10)
    assert list_steps(folder) == ["step-00000010", "step-00000005"]


@pytest.mark.parametrize("keep_last", [1, 2])
def test_a_damaged_checkpoint_does_not_displace_an_intact_one(
    keep_last: int, folder: RunFolder, checkpoint: Checkpoint
) -> None:
    """A run that resumes from the one before and saves by the clock saves at other steps, before the damaged one."""
    save(folder, checkpoint, 5, 10)
    truncate(folder.checkpoints / "step-00000010" / "model.safetensors")
    save(folder, checkpoint, 7, 8, keep_last=keep_last)
    saved, _ = find_quietly(folder)
    require_saved(saved, checkpoint, 8)
    assert len([name for name in list_steps(folder) if name in ("step-00000007", "step-00000008")]) == keep_last


@pytest.mark.parametrize("name", ["step-00000005.bak", "step-best", "step-00000005 copy"])
def test_a_user_s_copy_is_neither_loaded_nor_removed(name: str, folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    shutil.copytree(folder.checkpoints / "step-00000005", folder.checkpoints / name)
    save(folder, checkpoint, 6, 7, 8)
    require_saved(folder.find_last(), checkpoint, 8)
    assert (folder.checkpoints / name / "model.safetensors").is_file()
    assert {"step-00000007", "step-00000008"} <= set(os.listdir(folder.checkpoints))


def test_partial_checkpoints_are_removed_by_the_next_save(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Otherwise every kill would leave gigabytes of a large model on disk."""
    save(folder, checkpoint, 5)
    for name in (".step-00000006.vitrine-partial", ".step-00000004.vitrine-old"):
        shutil.copytree(folder.checkpoints / "step-00000005", folder.checkpoints / name)
    require_saved(folder.find_last(), checkpoint, 5)  # which does not take them for checkpoints
    save(folder, checkpoint, 9)
    assert sorted(os.listdir(folder.checkpoints)) == ["step-00000005", "step-00000009"]


def test_a_killed_removal_is_finished(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 1, 2, 3, keep_last=9)
    (folder.checkpoints / "step-00000001" / TRAINING_FILE).unlink()
    save(folder, checkpoint, 4)
    assert list_steps(folder) == ["step-00000004", "step-00000003"]


def test_a_full_disk_loses_nothing_that_was_saved(
    folder: RunFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, checkpoint, 5)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)  # where a disk tells that it is full, if not before
        with pytest.raises(OSError, match=r"step-00000010.* disk is full"):
            save(folder, checkpoint, 10)
    assert os.listdir(folder.checkpoints) == ["step-00000005"]
    require_saved(folder.find_last(), checkpoint, 5)
    save(folder, checkpoint, 10)
    require_saved(folder.find_last(), checkpoint, 10)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small disk can be made by root on Linux only")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_really_full_disk(small_disk: Path, checkpoint: Checkpoint) -> None:
    folder = RunFolder(small_disk / "run")
    folder.open(RECIPE, DATA)
    save(folder, checkpoint, 5)
    full = small_disk / "something"
    with pytest.raises(OSError, match="No space left"):
        full.write_bytes(bytes(2**20))
    with pytest.raises(OSError, match=r"^(?!\[Errno).*step-00000010.*(space|full)"):
        save(folder, checkpoint, 10)
    require_saved(folder.find_last(), checkpoint, 5)
    with pytest.raises(OSError, match=r"^(?!\[Errno).*other.*(space|full)"):
        RunFolder(small_disk / "other").open(RECIPE, DATA)
    full.unlink()
    save(folder, checkpoint, 10)
    require_saved(folder.find_last(), checkpoint, 10)
    RunFolder(small_disk / "other").open(RECIPE, DATA)  # which the full disk left neither made nor in the way


def test_a_saved_model_has_its_recipe_beside_it(folder: RunFolder, checkpoint: Checkpoint) -> None:
    folder.save_model(checkpoint, RECIPE, folder.model)
    assert sorted(os.listdir(folder.model)) == ["config.json", "model.safetensors", "recipe.json"]
    assert json.loads((folder.model / "recipe.json").read_text()) == RECIPE.to_json()
    again = load_checkpoint(folder.model)
    assert all(torch.equal(tensor, checkpoint.model.state_dict()[name]) for name, tensor in again.model.state_dict().items())
    folder.save_model(checkpoint, RECIPE, folder.model)  # again in its place


SUMMARY = RunSummary(
    model="ViT-Ti/16",
    num_parameters=1,
    num_train_images=2,
    seed=0,
    learning_rate=0.1,
    total_steps=3,
    steps=3,
    is_finished=True,
    stopped_early=False,
    interrupted_by=None,
    watched_on=None,
    best=None,
    best_step=None,
    test_top1=0.5,
    test_top5=1.0,
    test_loss=0.7,
    num_test_images=4,
    images=6,
    exaflops=1e-9,
    device="cpu",
    device_hours=0.1,
)


def test_the_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text(json.dumps(asdict(SUMMARY)))
    assert folder.read_summary() == SUMMARY


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"unknown": 1}'])
def test_a_damaged_summary_is_named(content: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.summary.write_text(content)
    with pytest.raises(ValueError, match=r"summary\.json"):
        folder.read_summary()


def test_former_names_of_keys_are_read(folder: RunFolder, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder, checkpoint, 5)
    content = asdict(SUMMARY)
    content["top1_of_test"] = content.pop("test_top1")
    folder.summary.write_text(json.dumps(content))
    monkeypatch.setitem(module.RENAMED_KEYS, "top1_of_test", "test_top1")
    assert folder.read_summary() == SUMMARY
    require_saved(folder.find_last(), checkpoint, 5)


def test_a_run_of_a_version_that_rounds_differently_resumes_with_one_notice(folder: RunFolder, checkpoint: Checkpoint) -> None:
    save(folder, checkpoint, 5)
    found = folder.find_last()
    assert found is not None
    before = replace(found, progress=replace(found.progress, rounding=1))
    with pytest.warns(VitrineWarning, match="rounds differently"):
        assert before.take_up_progress() == replace(before.progress, rounding=module.ROUNDING)
    now = replace(found, progress=replace(found.progress, rounding=module.ROUNDING))
    assert now.take_up_progress() == now.progress  # without a warning, which would be an error here

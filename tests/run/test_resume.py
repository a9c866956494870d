"""Runs that are killed, interrupted, damaged and moved, compared bit by bit with the same run undisturbed.

Children are forked from a server that has imported everything, so that a run in a process of its own begins at once.
"""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.formats import cases
from tests.ranks import open_rendezvous
from tests.run.test_run import CONFIG, interrupt_at, make_recipe, measure, write_data
from vitrine.core.console import VitrineWarning
from vitrine.core.files import write_json
from vitrine.data.config import MixupConfig
from vitrine.evaluation.config import EvaluationConfig
from vitrine.formats.save import save_checkpoint
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.run import run as module
from vitrine.run.callbacks import SIGNALS, Callbacks
from vitrine.run.folder import RunFolder
from vitrine.run.run import run_recipe
from vitrine.training import loop
from vitrine.training.config import MachineConfig, OptimConfig, SavingConfig
from vitrine.training.metrics_log import read_records

ROOT = Path(__file__).parent.parent.parent
SERVER = multiprocessing.get_context("forkserver")
PATIENCE_S = 600.0  # until what hangs is killed; no limit on speed
HELD_STEP = 5
# With what runs import on their way: torch._dynamo for the optimizer.
PRELOADED = ("vitrine.cli", "vitrine.commands.train", "vitrine.data.sources.npz", "torch._dynamo", "tests.run.test_resume")
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
Moment = int | str | float
"""To kill a run: the number of an operation on its files, the name of one of them, or seconds."""
MEASURED_BY_CLOCK = ("images_per_s", "waited", "seconds")


@pytest.fixture(scope="module", autouse=True)
def prepared() -> Iterator[None]:
    SERVER.set_forkserver_preload([*PRELOADED])
    with torch.random.fork_rng():
        yield


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the figure, which takes as long as the rest of such a run."""
    monkeypatch.setattr(module, "write_run_report", lambda *arguments: None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_data(tmp_path_factory.mktemp("data") / "shades.npz")


def train(recipe: Recipe, out: Path, kill_at: int | str | None = None, environment: dict[str, str] | None = None) -> None:
    """In a child process: run a recipe, and kill the process at an operation on its files or count them."""
    os.environ.update(environment or {})
    setattr(module, "write_run_report", lambda *arguments: None)  # noqa: B010  (imported there, and not its own)
    count = count_operations(out, kill_at)
    if isinstance(kill_at, str):
        kill_before_step(kill_at)
    summary = run_recipe(recipe, out)
    if os.environ.get("RANK", "0") == "0":
        out.with_suffix(".count").write_text(str(count[0]))
        out.with_suffix(".summary").write_text(json.dumps(asdict(summary)))


def count_operations(out: Path, kill_at: int | str | None) -> list[int]:
    """Count operations on files below `out` by an audit hook, which Python calls just before each."""
    count = [0]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        path = str(arguments[0]) if event in OPERATIONS else ""
        if path.startswith(str(out)):
            count[0] += 1
            if count[0] == kill_at or (isinstance(kill_at, str) and re.search(kill_at, path)):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return count


def kill_before_step(pattern: str) -> None:
    """In a child process: kill it when it has a batch and is about to take the step that the pattern names."""
    accumulate = loop.accumulate_gradients

    def accumulate_or_die(parts: Any, parallel: Any, state: Any, metrics: Any, keys: tuple[int, int, int]) -> None:
        if re.fullmatch(pattern, f"step {keys[1]}"):
            os.kill(os.getpid(), signal.SIGKILL)
        accumulate(parts, parallel, state, metrics, keys)

    loop.accumulate_gradients = accumulate_or_die


def hold_for_signal() -> None:
    """In a child process: let the run wait in a step until the signal has come."""
    find_due = Callbacks.find_due

    def find_due_signalled(callbacks: Callbacks, step: int) -> set[Any]:
        while step == HELD_STEP and not callbacks.stop.is_requested:
            time.sleep(0.002)
        return find_due(callbacks, step)

    Callbacks.find_due = find_due_signalled


def command(arguments: Sequence[str], errors: Path, environment: dict[str, str] | None = None, is_held: bool = False) -> None:
    """In a child process: run the command in a process group of its own, as a shell does."""
    if is_held:
        hold_for_signal()
    os.environ.update(environment or {})
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = ["vitrine", *arguments]
    setattr(module, "write_run_report", lambda *arguments: None)  # noqa: B010  (imported there, and not its own)
    from vitrine.cli import main

    main(list(arguments))


def begin(method: str, target: Callable[..., None], *arguments: Any) -> None:
    """In a child process: start further processes by Python's default method."""
    multiprocessing.set_start_method(method, force=True)
    target(*arguments)


def start(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    process = SERVER.Process(target=begin, args=(multiprocessing.get_start_method(), target, *arguments))
    process.start()
    return process


def finish(process: ForkServerProcess) -> int:
    process.join(PATIENCE_S)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
        pytest.fail("the run did not come to an end")
    return code


def wait_for(is_there: Callable[[], bool], process: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_there():
        if time.monotonic() > until:
            pytest.fail("what was waited for did not happen")
        is_over = process.exitcode is not None if isinstance(process, ForkServerProcess) else process.poll() is not None
        assert not is_over, "the run ended before it could be interrupted"
        time.sleep(0.002)


def has_lines(path: Path, number: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= number


def strip(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in MEASURED_BY_CLOCK} for record in records]


def require_same_run(one: Path, other: Path) -> None:
    """Check that two runs have equal weights, metrics and summaries, apart from times."""
    for name in ("model", "best"):
        assert (one / name).is_dir() == (other / name).is_dir()
        if (one / name).is_dir():
            for file in ("model.safetensors", "config.json"):
                assert (one / name / file).read_bytes() == (other / name / file).read_bytes(), f"{name}/{file}"
    assert strip(read_records(one / "metrics.jsonl")) == strip(read_records(other / "metrics.jsonl"))
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    assert {**summaries[0], "device_hours": 0} == {**summaries[1], "device_hours": 0}
    last = [sorted((folder / "checkpoints").glob("step-*"))[-1] for folder in (one, other)]
    assert last[0].name == last[1].name
    # The header of training.safetensors has the seconds; its numbers, and all of the other file, are the same.
    assert (last[0] / "model.safetensors").read_bytes() == (last[1] / "model.safetensors").read_bytes()
    trained = [RunFolder(folder).find_last() for folder in (one, other)]
    assert trained[0] is not None
    assert trained[1] is not None
    assert trained[0].training.keys() == trained[1].training.keys()
    assert all(torch.equal(tensor, trained[1].training[name]) for name, tensor in trained[0].training.items())
    standings = [replace(saved.progress, seconds=0, device_seconds=0) for saved in trained]
    assert standings[0] == standings[1]


def list_leftovers(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


# Killed


@pytest.fixture(scope="module")
def steadily_saved(source: str) -> Recipe:
    """A recipe that saves at every step, so that most kills come while it saves."""
    return make_recipe(source, total_steps=6, polyak_factor=0.7, saving=SavingConfig(every_steps=1))


@pytest.fixture(scope="module")
def undisturbed(steadily_saved: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, float]:
    """Folder of an undisturbed run, its number of file operations and its seconds."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert finish(start(time.sleep, 0.0)) == 0  # the server is there from now on
    process, start_s = start(train, steadily_saved, out), time.monotonic()
    assert finish(process) == 0
    return out, int(out.with_suffix(".count").read_text()), time.monotonic() - start_s


def kill_and_resume(recipe: Recipe, out: Path, moments: Sequence[Moment]) -> int:
    """Kill an attempt at each moment, let the last one finish, and return how many kills came in time."""
    num_killed = 0
    for moment in moments:
        process = start(train, recipe, out, None if isinstance(moment, float) else moment)
        if isinstance(moment, float):
            process.join(moment)
            process.kill()
        code = finish(process)
        assert code in (-signal.SIGKILL, 0)
        num_killed += code != 0
    assert finish(start(train, recipe, out)) == 0
    return num_killed


def test_a_run_killed_several_times_gives_the_same_result(
    steadily_saved: Recipe, undisturbed: tuple[Path, int, float], tmp_path: Path
) -> None:
    """Killed within a checkpoint, at two random moments, and before a complete checkpoint gets its name."""
    whole, num_operations, seconds = undisturbed
    drawn = random.Random(20)
    moments = (
        r"step-00000002.*config\.json",
        drawn.randrange(20, num_operations // 3),
        r"step-00000005.*model\.safetensors",
        drawn.uniform(0.1, 0.4) * seconds,  # the last, because nobody knows how far it will be, or whether it will be over
    )
    assert kill_and_resume(steadily_saved, tmp_path / "run", moments) >= 3
    require_same_run(tmp_path / "run", whole)
    assert list_leftovers(tmp_path / "run") == []


def test_a_run_killed_at_its_start_starts_again(
    steadily_saved: Recipe, undisturbed: tuple[Path, int, float], tmp_path: Path
) -> None:
    """The first operations create the folder, recipe.json and metrics.jsonl."""
    assert kill_and_resume(steadily_saved, tmp_path / "run", range(1, 7)) == 6
    require_same_run(tmp_path / "run", undisturbed[0])


def test_a_run_killed_at_its_end_finishes(steadily_saved: Recipe, undisturbed: tuple[Path, int, float], tmp_path: Path) -> None:
    """All steps are done, but the model or the summary is missing or incomplete."""
    whole, num_operations, _ = undisturbed
    assert kill_and_resume(steadily_saved, tmp_path / "run", (num_operations - 12, 9, 5)) == 3
    require_same_run(tmp_path / "run", whole)


KILLED_RUNS: dict[str, dict[str, Any]] = {
    "supervised": {"polyak_factor": 0.7},
    "masked patches": {"objective": "masked-patches", "polyak_factor": 0.5, "model": {"patch_size": 2}},
    "mixup in parts": {"mixing": MixupConfig(mixup=0.4), "machine": MachineConfig(accumulation_steps=2)},
    "early stopping": {
        "optim": OptimConfig(learning_rate=0.5, warmup_steps=2, decay="constant", max_grad_norm=None),
        "evaluation": EvaluationConfig(num_times=6, patience=2),
    },
    "fine-tuning with workers": {"head_init": "ridge", "augment": {"erase_rate": 0.5}, "loader": {"num_workers": 1}},
}
KILLS, KILLS_PER_RUN = 200, 5  # of each kind


@pytest.mark.full
@pytest.mark.parametrize("kind", KILLED_RUNS)
def test_runs_killed_two_hundred_times_give_the_same_result(kind: str, source: str, tmp_path: Path) -> None:
    """Kill at random operations on files and at random steps; kills that come after the end do not count."""
    recipe = make_recipe(source, total_steps=6, saving=SavingConfig(every_steps=1))
    if kind == "fine-tuning with workers":
        save_checkpoint(cases.make_checkpoint(CONFIG), tmp_path / "saved")
        recipe = with_changes(recipe, model=ModelSettings(checkpoint=str(tmp_path / "saved"), dropout_rate=0.2))
    recipe = with_changes(recipe, **KILLED_RUNS[kind])
    assert finish(start(train, recipe, tmp_path / "whole")) == 0
    num_operations = int((tmp_path / "whole.count").read_text())
    drawn, num_killed = random.Random(kind), 0
    while num_killed < KILLS:
        moments = [draw_moment(drawn, num_operations) for _ in range(KILLS_PER_RUN)]
        num_killed += kill_and_resume(recipe, tmp_path / "run", moments)
        require_same_run(tmp_path / "run", tmp_path / "whole")
        # Killed after its last file and before the release of its locks, a run is finished, and nobody writes to it again.
        assert all(name.endswith(".vitrine-lock") for name in list_leftovers(tmp_path / "run"))
        shutil.rmtree(tmp_path / "run")


def draw_moment(drawn: random.Random, num_operations: int) -> Moment:
    """Draw an operation on the files of a run, or a step whose batch it is given."""
    return drawn.randrange(1, num_operations // 2) if drawn.random() < 0.6 else f"step {drawn.randrange(6)}$"


# Interrupted, in this process


def run_interrupted(recipe: Recipe, out: Path, step: int, number: int = signal.SIGTERM) -> Any:
    with pytest.MonkeyPatch.context() as patched:
        interrupt_at(step, number, patched)
        return run_recipe(recipe, out)


VARIANTS: dict[str, tuple[dict[str, Any], int]] = {
    "in mid-epoch": ({}, 7),
    "layers at their rates": ({"optim": {"kind": "sgd", "layer_decay": 0.5, "frozen_blocks": 1}, "polyak_factor": 0.5}, 5),
    "mixed, in parts": ({"mixing": MixupConfig(mixup=0.4), "machine": MachineConfig(accumulation_steps=2)}, 5),
    "masked patches": ({"objective": "masked-patches", "polyak_factor": 0.5, "model": {"patch_size": 2}}, 5),
    "dropped last batches": ({"loader": {"last": "drop"}, "optim": {"decay": "rsqrt", "cooldown_steps": 4}}, 6),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_resumes_bit_for_bit(variant: str, source: str, tmp_path: Path) -> None:
    changes, step = VARIANTS[variant]
    recipe = make_recipe(source, **changes)
    run_recipe(recipe, tmp_path / "whole")
    summary = run_interrupted(recipe, tmp_path / "run", step)
    assert (summary.steps, summary.is_finished, summary.interrupted_by) == (step, False, signal.SIGTERM)
    assert not (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "summary.json").exists()
    assert run_recipe(recipe, tmp_path / "run").is_finished
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_interrupted_at_every_step_gives_the_same_result(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, total_steps=5, polyak_factor=0.9)
    run_recipe(recipe, tmp_path / "whole")
    for step in range(1, 5):
        assert run_interrupted(recipe, tmp_path / "run", step, signal.SIGINT).steps == step
    assert run_interrupted(recipe, tmp_path / "run", 5, signal.SIGINT).is_finished  # nothing is left to interrupt
    require_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("interrupted_at", [3, 7])
def test_early_stopping_with_averaged_weights_resumes(interrupted_at: int, source: str, tmp_path: Path) -> None:
    """The run is interrupted before its best evaluation, and between worse ones."""
    recipe = make_recipe(
        source,
        optim=OptimConfig(learning_rate=0.5, warmup_steps=4, decay="constant", max_grad_norm=None),
        total_steps=20,
        polyak_factor=0.5,
        evaluation=EvaluationConfig(num_times=10, patience=3),
    )
    whole = run_recipe(recipe, tmp_path / "whole")
    assert whole.stopped_early
    assert whole.steps > interrupted_at
    run_interrupted(recipe, tmp_path / "run", interrupted_at)
    assert run_recipe(recipe, tmp_path / "run").best_step == whole.best_step
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_that_stopped_early_and_was_killed_trains_no_further(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(
        source,
        optim=OptimConfig(learning_rate=0.5, warmup_steps=4, decay="constant", max_grad_norm=None),
        total_steps=20,
        evaluation=EvaluationConfig(num_times=10, patience=2),
    )
    run_recipe(recipe, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "run" / "model")
    assert run_recipe(recipe, tmp_path / "run").stopped_early
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_resuming_does_not_need_the_initial_checkpoint(source: str, tmp_path: Path) -> None:
    save_checkpoint(cases.make_checkpoint(CONFIG), tmp_path / "saved")
    recipe = make_recipe(source, model=ModelSettings(checkpoint=str(tmp_path / "saved"), dropout_rate=0.2), head_init="ridge")
    run_recipe(recipe, tmp_path / "whole")
    run_interrupted(recipe, tmp_path / "run", 5)
    shutil.rmtree(tmp_path / "saved")
    run_recipe(recipe, tmp_path / "run")
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_another_number_of_workers_changes_nothing(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, augment={"erase_rate": 0.5}, total_steps=8)
    run_recipe(recipe, tmp_path / "whole")
    run_interrupted(with_changes(recipe, loader={"num_workers": 2}), tmp_path / "run", 3)
    run_interrupted(with_changes(recipe, loader={"num_workers": 0}), tmp_path / "run", 5)
    run_recipe(with_changes(recipe, loader={"num_workers": 1, "prefetch": 5}), tmp_path / "run")
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_other_settings_of_saving_and_machine_change_nothing(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, polyak_factor=0.9)
    run_recipe(recipe, tmp_path / "whole")
    other = with_changes(
        recipe, machine={"gradient_checkpointing": True}, saving=SavingConfig(every_steps=2, keep_last=1), device=None
    )
    run_interrupted(recipe, tmp_path / "run", 5)
    run_recipe(other if not torch.cuda.is_available() else replace(other, device="cpu"), tmp_path / "run")
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_an_older_run_with_settings_without_an_effect_is_resumed(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source, total_steps=8)
    run_recipe(recipe, tmp_path / "whole")
    run_interrupted(recipe, tmp_path / "run", 3)
    older = replace(recipe, optim=replace(recipe.optim, momentum=0.5), augment=replace(recipe.augment, crop_area=(0.5, 1.0)))
    write_json(tmp_path / "run" / "recipe.json", older.to_json())
    run_interrupted(older, tmp_path / "run", 5)  # as the older version would call it
    run_recipe(recipe, tmp_path / "run")
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_resuming_with_another_recipe_is_an_error(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(source)
    run_interrupted(recipe, tmp_path, 5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"learning_rate was 0\.01 and is 0\.5"):
        run_recipe(with_changes(recipe, optim={"learning_rate": 0.5}), tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# Damaged


@pytest.fixture(scope="module")
def interrupted(source: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path, Path]:
    """An undisturbed run, and the same one interrupted with checkpoints of steps 6 and 7."""
    folder = tmp_path_factory.mktemp("damaged")
    recipe = make_recipe(source, polyak_factor=0.7, saving=SavingConfig(every_steps=3))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "write_run_report", lambda *arguments: None)
        run_recipe(recipe, folder / "whole")
        run_interrupted(recipe, folder / "run", 7)
    assert [path.name for path in RunFolder(folder / "run").list_checkpoints()] == ["step-00000007", "step-00000006"]
    return recipe, folder / "run", folder / "whole"


@pytest.mark.parametrize(
    ("name", "is_flipped"), [("model.safetensors", True), ("training.safetensors", True), ("config.json", False)]
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(
    name: str, is_flipped: bool, interrupted: tuple[Recipe, Path, Path], tmp_path: Path
) -> None:
    recipe, run, whole = interrupted
    shutil.copytree(run, tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-00000007" / name
    content = bytearray(damaged.read_bytes())
    content[-3] ^= 0x40
    damaged.write_bytes(content if is_flipped else content[: len(content) // 2])
    with pytest.warns(VitrineWarning, match=r"step-00000007 .*step-00000006"):
        assert run_recipe(recipe, tmp_path / "run").is_finished
    require_same_run(tmp_path / "run", whole)


def test_a_run_with_only_damaged_checkpoints_is_an_error(interrupted: tuple[Recipe, Path, Path], tmp_path: Path) -> None:
    recipe, run, _ = interrupted
    shutil.copytree(run, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/training.safetensors"):
        path.write_bytes(b"")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="damaged"):
        run_recipe(recipe, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # as it says
    assert run_recipe(recipe, tmp_path / "run").is_finished
    require_same_run(tmp_path / "run", interrupted[2])


# Changed data


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of two classes, divided into train and test."""
    folder = tmp_path_factory.mktemp("photos") / "data"
    for place, name in enumerate(("cat", "dog")):
        for split, count in (("train", 8), ("test", 3)):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                write_photo(folder / split / name / f"{index}.png", 60 * place + 9 * index)
    return folder


def write_photo(path: Path, value: int) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(path)


def rename_class(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / split / "cat").rename(folder / split / "aaa")


def add_class(folder: Path) -> None:
    for split in ("train", "test"):
        for number in range(2):
            write_photo(folder / split / "eel" / f"{number}.png", 7 + number)


def add_image(folder: Path) -> None:
    write_photo(folder / "train" / "cat" / "new.png", 7)


def remove_test_image(folder: Path) -> None:
    (folder / "test" / "dog" / "1.png").unlink()


def stop_on_copy(photos: Path, folder: Path) -> Recipe:
    """Stop a run on a copy of the photos at its fifth step."""
    shutil.copytree(photos, folder / "data")
    recipe = make_recipe(
        str(folder / "data"), total_steps=None, epochs=6.0, loader={"batch_size": 8}, model={"num_channels": 3}
    )
    run_interrupted(recipe, folder / "run", 5)
    return recipe


@pytest.mark.parametrize(
    ("change", "found"),
    [(rename_class, "cat.*aaa"), (add_class, "eel"), (add_image, r"cat/new\.png"), (remove_test_image, r"dog/1\.png")],
)
def test_changed_data_is_noticed_and_named(change: Callable[[Path], None], found: str, photos: Path, tmp_path: Path) -> None:
    recipe = stop_on_copy(photos, tmp_path)
    change(tmp_path / "data")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=found):
        run_recipe(recipe, tmp_path / "run")
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    accepting = with_changes(recipe, data={"changed": "accept"})
    if change in (rename_class, add_class):
        with pytest.raises(ValueError, match=found):
            run_recipe(accepting, tmp_path / "run")
        return
    with pytest.warns(VitrineWarning, match=found):
        run_interrupted(accepting, tmp_path / "run", 7)
    summary = run_recipe(recipe, tmp_path / "run")  # what was accepted is the run's data from then on
    assert (summary.steps, summary.is_finished) == (12, True)  # as many as it was begun with


def test_restored_data_resumes_bit_for_bit(photos: Path, tmp_path: Path) -> None:
    recipe = stop_on_copy(photos, tmp_path)
    run_recipe(recipe, tmp_path / "whole")
    add_image(tmp_path / "data")
    with pytest.raises(ValueError, match="new images"):
        run_recipe(recipe, tmp_path / "run")
    (tmp_path / "data" / "train" / "cat" / "new.png").unlink()
    run_recipe(recipe, tmp_path / "run")
    require_same_run(tmp_path / "run", tmp_path / "whole")


def test_a_run_without_a_fingerprint_gets_one_with_a_notice(photos: Path, tmp_path: Path) -> None:
    recipe = stop_on_copy(photos, tmp_path)
    (tmp_path / "run" / "data.json").unlink()
    with pytest.warns(VitrineWarning, match="record"):
        run_interrupted(recipe, tmp_path / "run", 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_interrupted(recipe, tmp_path / "run", 7)
    (tmp_path / "run" / "data.json").unlink()
    rename_class(tmp_path / "data")
    with pytest.warns(VitrineWarning, match="record"), pytest.raises(ValueError, match=r"aaa.*cat"):
        run_recipe(recipe, tmp_path / "run")  # the checkpoint has class names of its own


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"splits": {"train": {}}, "total_steps": 1}'])
def test_a_damaged_fingerprint_is_named(content: str, photos: Path, tmp_path: Path) -> None:
    recipe = stop_on_copy(photos, tmp_path)
    (tmp_path / "run" / "data.json").write_text(content)
    with pytest.raises(ValueError, match=r"data\.json"):
        run_recipe(recipe, tmp_path / "run")


# Two at once


def start_twice(recipe: Recipe, out: Path, folder: Path) -> None:
    """Start a run in two processes at once; exactly one trains, and the other names it or finds its result."""
    file = folder / "recipe.json"
    file.write_text(json.dumps(recipe.to_json()))
    words, errors = ["train", str(file), "--out", str(out)], [folder / "errors-0", folder / "errors-1"]
    processes = [start(command, words, file) for file in errors]
    codes = finish_all(processes)
    said = [file.read_text() for file in errors]
    assert sorted(codes) in ([0, 0], [0, 2]), said
    if 2 in codes:
        refused = codes.index(2)
        [sentence] = said[refused].splitlines()
        assert f"process {processes[1 - refused].pid} " in sentence


def test_of_two_processes_in_one_folder_one_trains(
    steadily_saved: Recipe, undisturbed: tuple[Path, int, float], tmp_path: Path
) -> None:
    start_twice(steadily_saved, tmp_path / "run", tmp_path)
    require_same_run(tmp_path / "run", undisturbed[0])
    assert list_leftovers(tmp_path / "run") == []


def test_a_run_refuses_a_folder_in_use(steadily_saved: Recipe, tmp_path: Path) -> None:
    run_interrupted(steadily_saved, tmp_path, 3)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with RunFolder(tmp_path).lock(), pytest.raises(BlockingIOError, match=str(os.getpid())):
        run_recipe(steadily_saved, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert run_recipe(steadily_saved, tmp_path).is_finished
    with RunFolder(tmp_path).lock():
        assert run_recipe(steadily_saved, tmp_path).is_finished  # a finished run is only read


@pytest.mark.full
@pytest.mark.parametrize("pair", range(50))
def test_fifty_pairs_of_processes_in_one_folder(
    pair: int, steadily_saved: Recipe, undisturbed: tuple[Path, int, float], tmp_path: Path
) -> None:
    start_twice(steadily_saved, tmp_path / "run", tmp_path)
    require_same_run(tmp_path / "run", undisturbed[0])
    assert list_leftovers(tmp_path / "run") == []


# As a command


@pytest.fixture(scope="module")
def long_run(source: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path, Path]:
    """A recipe of many steps, its file, and the folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("long")
    recipe = make_recipe(source, total_steps=80, loader={"num_workers": 1}, evaluation=EvaluationConfig(num_times=0))
    (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
    assert finish(start(train, recipe, folder / "whole")) == 0
    return recipe, folder / "recipe.json", folder / "whole"


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_the_process_group_saves_and_says_how_to_resume(
    number: int, long_run: tuple[Recipe, Path, Path], tmp_path: Path
) -> None:
    """Ctrl-C in a terminal, `timeout` and schedulers signal the whole group, including loader processes."""
    _, recipe_file, whole = long_run
    words = ["train", str(recipe_file), "--out", str(tmp_path / "run")]
    process = start(command, words, tmp_path / "errors", None, True)
    wait_for(lambda: has_lines(tmp_path / "run" / "metrics.jsonl", 3), process)
    os.killpg(process.pid, number)
    code, errors = finish(process), (tmp_path / "errors").read_text()
    assert code == 128 + number, errors
    saved = RunFolder(tmp_path / "run").find_last()
    assert saved is not None
    assert 3 <= saved.progress.step < 80
    assert f"step {saved.progress.step} of 80" in errors.splitlines()[-1]
    assert errors.endswith(f": vitrine {' '.join(words)}\n")
    assert "Traceback" not in errors
    assert read_records(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == saved.progress.step

    assert finish(start(command, words, tmp_path / "errors")) == 0
    assert f"step {saved.progress.step} ({tmp_path / 'run'})" in (tmp_path / "errors").read_text()
    require_same_run(tmp_path / "run", whole)


def test_a_stopped_worker_does_not_keep_a_run_from_stopping(photos: Path, tmp_path: Path) -> None:
    recipe = make_recipe(str(photos), total_steps=400, loader={"num_workers": 1, "batch_size": 8}, model={"num_channels": 3})
    recipe = with_changes(recipe, evaluation=EvaluationConfig(num_times=0))
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_json()))
    words = ["train", str(tmp_path / "recipe.json"), "--out", str(tmp_path / "run"), "--loader.stuck-after-s", "0.1"]
    process = start(command, words, tmp_path / "errors")
    wait_for(lambda: has_lines(tmp_path / "run" / "metrics.jsonl", 3), process)
    [worker] = list_children(process.pid)
    os.kill(worker, signal.SIGSTOP)
    wait_for(lambda: f"{worker} (stopped)" in (tmp_path / "errors").read_text(), process)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == 128 + signal.SIGTERM, (tmp_path / "errors").read_text()
    saved = RunFolder(tmp_path / "run").find_last()
    assert saved is not None
    assert read_records(tmp_path / "run" / "metrics.jsonl")[-1]["step"] == saved.progress.step
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def list_children(pid: int | None) -> list[int]:
    """Return the child processes of a process."""
    stats = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # just ended
            stats[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    return [child for child, (_, parent, *_) in stats.items() if int(parent) == pid]


def test_the_command_rejects_another_recipe(long_run: tuple[Recipe, Path, Path], tmp_path: Path) -> None:
    _, recipe_file, whole = long_run
    words = ["train", str(recipe_file), "--out", str(whole), "--seed", "1", "--optim.learning-rate", "0.5"]
    assert finish(start(command, words, tmp_path / "errors")) == 2
    [sentence] = (tmp_path / "errors").read_text().splitlines()
    assert "(optim.learning_rate was 0.01 and is 0.5, seed was 0 and is 1)" in sentence


# Several processes


def run_two(recipe: Recipe, out: Path, target: Callable[..., None] = train) -> list[int]:
    """Run a recipe with two processes and return their exit codes."""
    with open_rendezvous(2) as environments:
        return finish_all([start(target, recipe, out, None, each) for each in environments])


def finish_all(processes: list[ForkServerProcess]) -> list[int]:
    return [finish(process) for process in processes]


@pytest.mark.parametrize("sharding", ["ddp", pytest.param("fsdp", marks=pytest.mark.full)])
def test_two_killed_processes_resume_as_two_or_as_one(sharding: Any, source: str, tmp_path: Path) -> None:
    recipe = make_recipe(
        source,
        model={"dropout_rate": 0.0},  # which every process draws for itself
        total_steps=6,
        polyak_factor=0.7,
        machine=MachineConfig(sharding=sharding),
        saving=SavingConfig(every_steps=2),
    )
    alone, whole, run, moved = (tmp_path / name for name in ("alone", "whole", "run", "moved"))
    run_recipe(recipe, alone)
    assert run_two(recipe, whole) == [0, 0]
    kill_at = int(whole.with_suffix(".count").read_text()) * 2 // 3
    with open_rendezvous(2) as environments:
        main, other = (start(train, recipe, run, at, each) for at, each in zip((kill_at, None), environments, strict=True))
        assert finish(main) == -signal.SIGKILL
        other.kill()  # or it finds out by itself that it is alone
        assert finish(other) != 0
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*"))[-1] < "step-00000006"
    shutil.copytree(run, moved)

    assert run_two(recipe, run) == [0, 0]
    require_same_run(run, whole)
    run_recipe(recipe, moved)
    for folder in (whole, moved):  # other orders of the same sums
        losses = [
            [record["loss"] for record in read_records(each / "metrics.jsonl") if "loss" in record] for each in (folder, alone)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("killed", [0, 1])
def test_a_process_whose_partner_was_killed_ends_with_one_sentence(
    killed: int, long_run: tuple[Recipe, Path, Path], tmp_path: Path
) -> None:
    _, recipe_file, _ = long_run
    words = ["train", str(recipe_file), "--out", str(tmp_path / "run"), "--total-steps", "100000"]
    files = [tmp_path / "errors-0", tmp_path / "errors-1"]
    with open_rendezvous(2) as environments:
        processes = [start(command, words, file, each) for file, each in zip(files, environments, strict=True)]
        wait_for(lambda: has_lines(tmp_path / "run" / "metrics.jsonl", 3), processes[0])
        processes[killed].kill()
        assert finish(processes[killed]) == -signal.SIGKILL
        said = files[1 - killed].read_text() if (code := finish(processes[1 - killed])) == 2 else f"status {code}"
    [sentence] = [line for line in said.splitlines() if line.startswith("vitrine: ")]
    assert f"Process {1 - killed} of 2" in sentence
    assert "Traceback" not in said


def train_on_a_slow_disk(recipe: Recipe, out: Path, kill_at: int | str | None, environment: dict[str, str]) -> None:
    """In a child process: run a recipe on a slow disk, so that other ranks could get ahead of rank 0."""
    synced = os.fsync

    def sync_slowly(descriptor: int) -> None:
        time.sleep(0.05)
        synced(descriptor)

    os.fsync = sync_slowly
    train(recipe, out, kill_at, environment)


def test_all_ranks_test_the_best_weights_and_not_the_second_best(source: str, tmp_path: Path) -> None:
    recipe = make_recipe(
        source, total_steps=40, model={"dropout_rate": 0.0}, evaluation=EvaluationConfig(num_times=2, patience=0)
    )
    assert run_two(recipe, tmp_path / "run", train_on_a_slow_disk) == [0, 0]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["best_step"] == 40  # as it should be for this test to say something
    top1, _, loss = measure(tmp_path / "run" / "model", source, "test")
    assert summary["test_top1"] == top1
    assert summary["test_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize("by_torchrun", [False, pytest.param(True, marks=pytest.mark.full)], ids=["as torchrun", "torchrun"])
def test_two_processes_stopped_by_sigterm_resume_as_one(
    by_torchrun: bool, long_run: tuple[Recipe, Path, Path], tmp_path: Path
) -> None:
    """torchrun passes the signal on to the process group of each rank."""
    recipe, recipe_file, _ = long_run
    words = ["train", str(recipe_file), "--out", str(tmp_path / "run")]
    stop = stop_torchrun if by_torchrun else stop_ranks
    said = stop(words, tmp_path / "run" / "metrics.jsonl", tmp_path)
    saved = RunFolder(tmp_path / "run").find_last()
    assert saved is not None, said
    assert said.count(f"step {saved.progress.step} of 80") == 1
    summary = run_recipe(recipe, tmp_path / "run")
    assert summary.is_finished
    assert summary.steps == 80
    assert [record["step"] for record in read_records(tmp_path / "run" / "metrics.jsonl")] == list(range(1, 81))


def stop_ranks(words: list[str], metrics: Path, folder: Path) -> str:
    files = [folder / "errors-0", folder / "errors-1"]
    with open_rendezvous(2) as environments:
        processes = [start(command, words, file, each, True) for file, each in zip(files, environments, strict=True)]
        wait_for(lambda: has_lines(metrics, 3), processes[0])
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        codes, said = finish_all(processes), "".join(file.read_text() for file in files)
    assert codes == [128 + signal.SIGTERM] * 2, said
    return said


HELD = """
import sys
from tests.run.test_resume import hold_for_signal
from vitrine.cli import main
hold_for_signal()
main(sys.argv[1:])
"""


def stop_torchrun(words: list[str], metrics: Path, folder: Path) -> str:
    """Start torchrun, terminate it, and return everything that was printed; each process has its own log."""
    (folder / "held.py").write_text(HELD)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch = [*launcher, "--redirects", "3", "--log-dir", str(folder / "logs"), str(folder / "held.py"), *words]
    with (folder / "errors").open("w") as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(launch, env=environment, stdout=errors, stderr=errors, start_new_session=True)
        try:
            wait_for(lambda: has_lines(metrics, 3), process)
            process.terminate()
            assert process.wait(PATIENCE_S) != 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return "\n".join(path.read_text() for path in (folder / "errors", *sorted((folder / "logs").rglob("std*.log"))))

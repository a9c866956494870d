"""Run folder, resume point, RunSummary.

What a run came to: the figures, and what they cost.
The folder of a run: its recipe, its checkpoints, its metrics, and the model that comes out of it.

recipe.json                 what was run
metrics.jsonl               a line for each report and evaluation
checkpoints/step-00000120/  model.safetensors, config.json, training.safetensors: the last few, to resume from
best/                       the best of all evaluations
model/                      the result, with the recipe beside it
curves.png, summary.json    at the end
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vitrine.core.console import join_names, summarise, warn_user
from vitrine.core.files import make_folder, read_json, write_json
from vitrine.formats.checkpoint import Checkpoint, CheckpointMetadata, compute_checksum
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.recipe import Recipe, list_differences, parse_recipe
from vitrine.training.state import Tensors


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    model: str
    num_parameters: int
    num_train_images: int
    seed: int
    learning_rate: float
    total_steps: int
    steps: int
    """Done; fewer than there were to be, if it was stopped."""
    is_finished: bool
    stopped_early: bool
    """Because the watched accuracy rose no more."""
    interrupted_by: int | None
    """The signal, which may have come with the last step."""
    watched_on: str | None
    """held_out or val: where the best was chosen."""
    best: float | None
    """Best accuracy of the evaluations in the course of the run."""
    best_step: int | None
    test_top1: float | None
    test_top5: float | None
    test_loss: float | None
    num_test_images: int | None
    images: int
    """Seen in training."""
    exaflops: float
    """Counted as table 6 of arXiv:2010.11929 does: as if all weights were trained."""
    device: str
    device_hours: float
    """Of training with its evaluations and checkpoints, all attempts and all devices together."""


TRAINING_FILE = "training.safetensors"
FORMAT = 1  # of the training file; raise it when a reader of the old one would misread the new one
KEY, SEAL = "vitrine_training", "vitrine_training_checksum"  # in its metadata
STEP = re.compile(r"step-\d{8,}")


@dataclass
class RunProgress:
    """How far a run has come, and how it did so far. It is saved with each checkpoint."""

    step: int = 0
    best: float | None = None
    """Accuracy of the best evaluation so far."""
    best_step: int | None = None
    num_worse: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0
    """Spent, all attempts together."""
    device_seconds: float = 0.0
    """The same, times the processes of each attempt."""
    stopped_early: bool = False


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from."""

    checkpoint: Checkpoint
    training: Tensors = field(repr=False)
    standing: RunProgress
    path: Path


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.model = path / "model"
        self.curves = path / "curves.png"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"

    def check(self, recipe: Recipe) -> None:
        """Make sure, before anything is loaded, that the folder can be had, and is new or this recipe's."""
        if self.recipe.is_file() and not self.is_empty():
            self.require_same(recipe)
        elif self.path.exists() and (not self.path.is_dir() or self.list_strangers()):
            raise FileExistsError(f"{self.path} exists and is no folder of a run: choose another by --out.")
        make_folder(self.path)

    def open(self, recipe: Recipe) -> None:
        """Begin or go on, with the recipe written down."""
        self.check(recipe)
        if not self.recipe.is_file() or self.is_empty():
            write_json(self.recipe, recipe.to_json())
        make_folder(self.checkpoints)

    def list_strangers(self) -> list[Path]:
        """What lies there, apart from what a run leaves that was stopped before its first checkpoint."""
        own = {self.checkpoints, self.metrics, self.best, self.tensorboard}
        if self.recipe.is_file() and self.is_readable():
            own.add(self.recipe)
        half = set(self.path.glob(".*.vitrine-*"))  # written by a job that was killed
        return [path for path in self.path.iterdir() if path not in own | half]

    def is_readable(self) -> bool:
        """Whether its recipe is one, and no file of somebody else's."""
        try:
            self.read_recipe()
        except ValueError:
            return False
        return True

    def is_empty(self) -> bool:
        """Whether nothing was saved yet that another recipe would lose."""
        return not self.summary.is_file() and next(self.list_checkpoints(), None) is None

    def require_same(self, recipe: Recipe) -> None:
        differences = list_differences(self.read_recipe(), recipe)
        if differences:
            raise ValueError(
                f"{self.path} holds a run of another recipe ({join_names(differences)}): give the same to resume it, or "
                "another folder by --out."
            )

    def read_recipe(self) -> Recipe:
        try:
            content = json.loads(self.recipe.read_text())
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{self.recipe} cannot be read ({summarise(error)}): restore it, or choose another folder."
            ) from None
        return parse_recipe(content, str(self.recipe))

    def read_summary(self) -> RunSummary:
        """Of a run that is finished."""
        try:
            return RunSummary(**read_json(self.summary))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{self.summary} cannot be read ({summarise(error)}): remove it, and the run is summed up again."
            ) from None

    def save_training(self, checkpoint: Checkpoint, training: Tensors, standing: RunProgress, keep_last: int) -> Path:
        """Write a checkpoint to resume from, and remove what is older than the last few."""
        path = self.checkpoints / f"step-{standing.step:08d}"

        def write(folder: Path) -> None:
            content = {
                "format": FORMAT,
                "standing": vars(standing),
                "checksum": compute_checksum(training),
                "description": compute_fingerprint(checkpoint),
            }
            text = json.dumps(content)
            save_file(training, folder / TRAINING_FILE, metadata={"format": "pt", KEY: text, SEAL: compute_digest(text)})

        save_checkpoint(checkpoint, path, write_beside=write)
        self.remove_old(path, keep_last)
        return path

    def remove_old(self, newest: Path, keep_last: int) -> None:
        """All but the one that was just written and the few before it; what is later than that was damaged, or left half."""
        earlier = [path for path in self.list_checkpoints() if path <= newest]
        kept = earlier[:keep_last]
        for path in (*self.list_checkpoints(), *self.checkpoints.glob(".step-*.vitrine-*")):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def save_model(self, checkpoint: Checkpoint, recipe: Recipe, path: Path) -> None:
        """Write a model to use, with the recipe that it comes from."""
        save_checkpoint(checkpoint, path, write_beside=lambda folder: write_json(folder / "recipe.json", recipe.to_json()))

    def list_checkpoints(self) -> Iterator[Path]:
        """The newest first; copies that someone made under other names are theirs."""
        found = self.checkpoints.iterdir() if self.checkpoints.is_dir() else iter(())
        yield from sorted((path for path in found if STEP.fullmatch(path.name) and path.is_dir()), reverse=True)

    def find_last(self) -> ResumePoint | None:
        """The newest checkpoint that is whole; None where there is none yet."""
        damaged: list[str] = []
        for path in self.list_checkpoints():
            try:
                saved = load_resume_point(path)
            except (ValueError, OSError) as error:
                damaged.append(f"{path} ({summarise(error)})")
                continue
            if damaged:
                warn_user(f"Damaged: {join_names(damaged)}; the run goes on from {path}, the newest that is whole.")
            return saved
        if damaged:
            raise ValueError(
                f"Every checkpoint of the run is damaged: {join_names(damaged)}. Restore one, or remove {self.checkpoints} to "
                "begin again."
            )
        return None


def load_resume_point(path: Path) -> ResumePoint:
    content, training = read_training(path / TRAINING_FILE)
    checkpoint = load_checkpoint(path)
    if compute_fingerprint(checkpoint) != content.get("description"):
        raise ValueError(f"{path}: config.json is not the one that was written with the training state.")
    return ResumePoint(checkpoint, training, RunProgress(**content["standing"]), path)


def compute_fingerprint(checkpoint: Checkpoint) -> str:
    """Of all that is not weights, which have a checksum of their own."""
    said = CheckpointMetadata(checkpoint.model.config, checkpoint.preprocessing, checkpoint.class_names, {}, None)
    return compute_digest(json.dumps(said.to_json()))


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_training(path: Path) -> tuple[dict[str, Any], Tensors]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dictionary)
        if compute_digest(metadata[KEY]) != metadata[SEAL]:
            raise ValueError("what it says of itself does not fit its checksum")
        content = json.loads(metadata[KEY])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"{path} is no training state, or was damaged: {summarise(error)}.") from None
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} is of format {content.get('format')!r}; this version reads format {FORMAT}.")
    if compute_checksum(tensors) != content.get("checksum"):
        raise ValueError(f"{path} was damaged: its numbers do not fit its checksum.")
    return content, tensors

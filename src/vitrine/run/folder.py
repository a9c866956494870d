"""The folder of a run: its recipe, checkpoints, metrics, summary, and the model that comes out of it.

recipe.json                 the recipe of the run
data.json                   the fingerprint of its images
metrics.jsonl               a line for each logged step and each evaluation
checkpoints/step-00000120/  model.safetensors, config.json, training.safetensors: the last few, to resume from
best/                       the best model of all evaluations
model/                      the resulting model, with the recipe beside it
curves.png, summary.json    written at the end
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from vitrine.core.console import join_names, name_setting, summarise_error, warn_user
from vitrine.core.files import make_folder, read_json, temporary_path, write_json
from vitrine.core.locks import exclusive_lock
from vitrine.core.runtime import Runtime
from vitrine.data.config import ChangedData
from vitrine.data.fingerprint import DataFingerprint
from vitrine.formats.checkpoint import Checkpoint, CheckpointMetadata, compute_checksum
from vitrine.formats.load import load_checkpoint
from vitrine.formats.save import save_checkpoint
from vitrine.models.registry import build_meta_model
from vitrine.recipe import Recipe, list_differences, parse_recipe
from vitrine.training.state import Tensors, TrainState, gather_model, gather_training
from vitrine.version import __version__

TRAINING_FILE = "training.safetensors"
FORMAT = 1  # of the training file; raise it when a reader of the old one would misread the new one
CONTENT_KEY, DIGEST_KEY = "vitrine_training", "vitrine_training_checksum"  # in its metadata
ROUNDING = 2  # raise it when the same step gives other last digits; 2: fused optimizers
STEP = re.compile(r"step-\d{8,}")

RENAMED_KEYS: dict[str, str] = {}
"""Former names of keys in summary.json and in the saved progress, each with its present name."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Results of a run and what they cost: the content of summary.json."""

    model: str
    num_parameters: int
    num_train_images: int
    seed: int
    learning_rate: float
    total_steps: int
    steps: int
    """Finished steps; fewer than total_steps if the run was stopped."""
    is_finished: bool
    stopped_early: bool
    """Whether the validation accuracy stopped improving (evaluation.patience)."""
    interrupted_by: int | None
    """The signal, which may have come with the last step."""
    watched_on: str | None
    """Validation images: held_out or val."""
    best: float | None
    """Best validation accuracy during the run."""
    best_step: int | None
    test_top1: float | None
    test_top5: float | None
    test_loss: float | None
    num_test_images: int | None
    images: int
    """Number of images seen in training, repetitions included."""
    exaflops: float
    """Training compute, counted as in table 6 of arXiv:2010.11929: as if all weights were trained."""
    device: str
    device_hours: float
    """Hours of training, evaluating and saving, summed over attempts and devices."""


@dataclass
class RunProgress:
    """Progress of a run, saved with each checkpoint."""

    step: int = 0
    best: float | None = None
    """Score of the best evaluation so far."""
    best_step: int | None = None
    num_worse: int = 0
    """Number of evaluations since the best one."""
    seconds: float = 0.0
    """Time spent, summed over attempts."""
    device_seconds: float = 0.0
    """Time spent, summed over attempts and processes."""
    stopped_early: bool = False
    rounding: int = 1
    """ROUNDING of the version that began the run, or that took it up since; checkpoints of the first have none."""


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint to resume from."""

    checkpoint: Checkpoint
    training: Tensors = field(repr=False)
    progress: RunProgress
    path: Path

    def take_up_progress(self, is_main: bool = True) -> RunProgress:
        """Return the progress to continue from, with a notice if the run was begun by a version that rounds differently."""
        if self.progress.rounding != ROUNDING and is_main:
            warn_user(
                f"The run in {self.path} was begun by an earlier version, whose optimizer rounds differently: from here on it "
                "is not the run that it would have been, as on another machine."
            )
        return replace(self.progress, rounding=ROUNDING)


class DataFolder:
    """A folder that one process at a time writes into, with a fingerprint of the images that its content was made from."""

    kind: str = "run"
    """What the folder holds, in messages."""
    changed_setting: str | None = "data.changed"
    """The setting that accepts changed images, in messages; None if nothing does."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.lock_file = path, path / "data.json", temporary_path(path / "run", "lock")

    def is_empty(self) -> bool:
        """Return whether nothing has been saved yet that starting anew would lose."""
        raise NotImplementedError

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing into the folder while the block runs."""
        return exclusive_lock(self.lock_file, str(self.path))

    def check_data(self, data: DataFingerprint, changed: ChangedData) -> DataFingerprint:
        """Return the fingerprint to go on with; raise ValueError if the images have changed and may not have."""
        if self.is_empty():
            return data
        if not self.data.is_file():
            warn_user(f"{self.path} was started without a record of its images: they are taken to be unchanged.")
            return data
        saved = self.read_data()
        changes = saved.list_changes(data)
        if not changes:
            return saved
        found = f"The images of the {self.kind} in {self.path} have changed: {join_names(changes)}"
        new = f"start a new {self.kind}"
        if not saved.has_classes_of(data):
            raise ValueError(f"{found}. Restore them, or {new} in another folder ({name_setting('out')}).")
        if changed == "refuse":
            setting = self.changed_setting
            accept = "" if setting is None else f", continue with {name_setting(setting, 'accept')},"
            raise ValueError(f"{found}. Restore them{accept} or {new} ({name_setting('out')}).")
        warn_user(f"{found}; continuing with them as they are.")
        return replace(data, total_steps=saved.total_steps)  # the learning-rate schedule stays as it was begun

    def read_data(self) -> DataFingerprint:
        """Read data.json; raise ValueError if it is damaged."""
        try:
            return DataFingerprint.from_json(read_json(self.data))
        except (KeyError, TypeError, AttributeError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.data} cannot be read ({summarise_error(error)}): restore it, or delete it if the images are unchanged."
            ) from None


class RunFolder(DataFolder):
    """Paths in a run's folder, and what reads and writes them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.recipe, self.summary = path / "recipe.json", path / "summary.json"
        self.metrics, self.curves, self.report = path / "metrics.jsonl", path / "curves.png", path / "report.html"
        self.checkpoints, self.best, self.model = path / "checkpoints", path / "best", path / "model"
        self.tensorboard = path / "tensorboard"

    def check(self, recipe: Recipe) -> None:
        """Check, before anything is loaded, that the folder is new or holds a run of this recipe, and can be written to."""
        if self.recipe.is_file() and not self.is_empty():
            differences = list_differences(self.read_recipe(), recipe)
            if differences:
                names = join_names(differences)
                raise ValueError(
                    f"{self.path} holds a run of another recipe ({names}): use its recipe, or another {name_setting('out')}."
                )
        elif self.path.exists() and (not self.path.is_dir() or self.list_foreign_files()):
            raise FileExistsError(
                f"{self.path} exists and is not the folder of a run: choose another one with {name_setting('out')}."
            )
        make_folder(self.path)

    def open(self, recipe: Recipe, data: DataFingerprint) -> None:
        """Create the folder, or continue in it, and write the recipe and the fingerprint of the images. It is locked."""
        self.check(recipe)
        for left in (*self.path.glob(".*.vitrine-lock"), *self.checkpoints.glob(".*.vitrine-lock")):
            if left != self.lock_file:
                left.unlink()  # by a killed process
        if not self.recipe.is_file() or self.is_empty():
            write_json(self.recipe, recipe.to_json())
        if not self.data.is_file() or self.is_empty() or self.read_data() != data:
            write_json(self.data, data.to_json())
        make_folder(self.checkpoints)

    def list_foreign_files(self) -> list[Path]:
        """Return what is there besides files of a run that was stopped before its first checkpoint."""
        own = {self.data, self.checkpoints, self.metrics, self.best, self.tensorboard}
        if self.recipe.is_file() and self.has_valid_recipe():
            own.add(self.recipe)
        partial = set(self.path.glob(".*.vitrine-*"))  # left by a process that was killed while writing
        return [path for path in self.path.iterdir() if path not in own | partial]

    def has_valid_recipe(self) -> bool:
        """Return whether recipe.json is one of ours, and not a file of somebody else."""
        try:
            self.read_recipe()
        except ValueError:
            return False
        return True

    def is_empty(self) -> bool:
        """Return whether nothing has been saved yet that starting with another recipe would lose."""
        return not self.summary.is_file() and next(self.list_checkpoints(), None) is None

    def read_recipe(self) -> Recipe:
        """Read recipe.json; raise ValueError if it is damaged or not a recipe."""
        try:
            content = json.loads(self.recipe.read_text())
        except (ValueError, OSError) as error:
            raise ValueError(
                f"{self.recipe} cannot be read ({summarise_error(error)}): restore it, or change {name_setting('out')}."
            ) from None
        return parse_recipe(content, str(self.recipe))

    def read_summary(self) -> RunSummary:
        """Read the summary of a finished run."""
        try:
            return RunSummary(**rename_keys(read_json(self.summary)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.summary} cannot be read ({summarise_error(error)}): delete it and run again.") from None

    def save_training(self, checkpoint: Checkpoint, training: Tensors, progress: RunProgress, keep_last: int) -> Path:
        """Write a checkpoint to resume from, and remove all but the last few."""
        path = self.checkpoints / f"step-{progress.step:08d}"

        def write(folder: Path) -> None:
            """Write model and training state into the new folder."""
            checksum, description = compute_checksum(training), compute_fingerprint(checkpoint)
            content = {"format": FORMAT, "standing": vars(progress), "checksum": checksum, "description": description}
            text = json.dumps(content)
            metadata = {"format": "pt", CONTENT_KEY: text, DIGEST_KEY: compute_digest(text)}
            save_file(training, folder / TRAINING_FILE, metadata=metadata)

        save_checkpoint(checkpoint, path, write_extra_files=write)
        self.remove_old(path, keep_last)
        return path

    def remove_old(self, newest: Path, keep_last: int) -> None:
        """Remove all checkpoints but the one just written and the few before it. Later ones are damaged or incomplete."""
        kept = [path for path in self.list_checkpoints() if path <= newest][:keep_last]
        for path in (*self.list_checkpoints(), *self.checkpoints.glob(".step-*.vitrine-*")):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def save_model(self, checkpoint: Checkpoint, recipe: Recipe, path: Path) -> None:
        """Write a model for use, with its recipe beside it."""
        save_checkpoint(checkpoint, path, write_extra_files=lambda folder: write_json(folder / "recipe.json", recipe.to_json()))

    def list_checkpoints(self) -> Iterator[Path]:
        """Yield the checkpoints, newest first; copies that the user made under other names are left alone."""
        paths = self.checkpoints.iterdir() if self.checkpoints.is_dir() else iter(())
        yield from sorted((path for path in paths if STEP.fullmatch(path.name) and path.is_dir()), reverse=True)

    def find_last(self) -> ResumePoint | None:
        """Load the newest intact checkpoint; None if there is no checkpoint yet."""
        damaged: list[str] = []
        for path in self.list_checkpoints():
            try:
                resume_point = load_resume_point(path)
            except (ValueError, OSError) as error:
                damaged.append(f"{path} ({summarise_error(error)})")
                continue
            if damaged:
                warn_user(f"Damaged: {join_names(damaged)}; resuming from {path}, the newest intact checkpoint.")
            return resume_point
        if damaged:
            raise ValueError(f"Every checkpoint is damaged: {join_names(damaged)}. Restore one, or remove {self.checkpoints}.")
        return None


class CheckpointWriter:
    """Gathers the state of a run from all ranks and writes it into the run's folder on rank 0."""

    def __init__(self, folder: RunFolder, recipe: Recipe, runtime: Runtime, start: Checkpoint) -> None:
        """`start` is the run's initial model: its config, preprocessing, class names and provenance are saved too."""
        self.folder, self.recipe, self.runtime, self.start = folder, recipe, runtime, start

    def save_training(self, state: TrainState, progress: RunProgress) -> None:
        """Write a checkpoint to resume from."""
        checkpoint, training = self.gather(state, state.step), gather_training(state)
        if checkpoint is not None:
            self.folder.save_training(checkpoint, training, progress, self.recipe.saving.keep_last)
        self.runtime.wait_for_all()

    def save_best(self, state: TrainState) -> None:
        """Write the best model so far."""
        self.save_model(state, state.step, self.folder.best)

    def save_model(self, state: TrainState, step: int, path: Path) -> None:
        """Write a model for use; `step` is the one its weights come from."""
        checkpoint = self.gather(state, step)
        if checkpoint is not None:
            self.folder.save_model(checkpoint, self.recipe, path)
        self.runtime.wait_for_all()

    def gather(self, state: TrainState, step: int) -> Checkpoint | None:
        """Return the model as it is evaluated; None on ranks other than 0."""
        weights = gather_model(state)
        if not self.runtime.is_main:
            return None
        model = build_meta_model(replace(self.start.model.config, gradient_checkpointing=False))
        model.load_state_dict(weights, assign=True)
        provenance = {**self.start.provenance, "trained_by": f"vitrine {__version__}", "step": step}
        return Checkpoint(model.eval(), self.start.preprocessing, self.start.class_names, provenance)


def rename_keys(content: dict[str, Any]) -> dict[str, Any]:
    """Give keys of files of former versions their present names."""
    return {RENAMED_KEYS.get(name, name): value for name, value in content.items()}


def load_resume_point(path: Path) -> ResumePoint:
    """Load a checkpoint folder; raise ValueError if one of its files is damaged or does not belong to the others."""
    content, training = read_training(path / TRAINING_FILE)
    checkpoint = load_checkpoint(path)
    if compute_fingerprint(checkpoint) != content.get("description"):
        raise ValueError(f"{path}: config.json is not the one written with {TRAINING_FILE}.")
    return ResumePoint(checkpoint, training, RunProgress(**rename_keys(content["standing"])), path)


def compute_fingerprint(checkpoint: Checkpoint) -> str:
    """Hash everything of a checkpoint but its weights, which have a checksum of their own."""
    metadata = CheckpointMetadata(checkpoint.model.config, checkpoint.preprocessing, checkpoint.class_names, {}, None)
    return compute_digest(json.dumps(metadata.to_json()))


def compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_training(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Read a training file: its metadata, verified, and its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
        if compute_digest(metadata[CONTENT_KEY]) != metadata[DIGEST_KEY]:
            raise ValueError("its metadata does not match its checksum")
        content = json.loads(metadata[CONTENT_KEY])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"{path} is damaged or not a training state: {summarise_error(error)}.") from None
    if content.get("format") != FORMAT:
        raise ValueError(f"{path} has format {content.get('format')!r}; this version reads format {FORMAT}.")
    if compute_checksum(tensors) != content.get("checksum"):
        raise ValueError(f"{path} is damaged: its tensors do not match its checksum.")
    return content, tensors

"""The protocol of VTAB-1k: the tasks found under ROOT, the paper's setting for all of them, departures from it, and sweeps.

Table 4 and appendix B.1.1 of arXiv:2010.11929. No torch here.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from vitrine.core.console import join_names, name_setting, warn_user
from vitrine.data.dataset_format import normalise_split
from vitrine.data.open_data import VTAB, find_data, find_format
from vitrine.data.sources.image_files import list_folder
from vitrine.data.sources.vtab import GENERATED, TASKS, WHOLE, Group, VtabTask, find_task, resolve_task_name
from vitrine.field_effects import drop_unused
from vitrine.recipe import RESUMABLE_FIELDS, Recipe, list_fields, with_changes
from vitrine.recipes.finetune import FinetuneTask, vtab
from vitrine.studies.vtab.config import VtabConfig

NUM_TRAIN_IMAGES = 1000
# The recipe's own values are the better of each pair in the paper (appendix B.1.1), which does not name the other.
LEARNING_RATE_FACTORS = (0.3, 1.0)
LENGTH_FACTORS = (0.4, 1.0)
# These fields do not change the protocol; the rest of `data` is set by each task.
FREE_FIELDS = (*RESUMABLE_FIELDS, "seed", "data")
TASK_FIELDS = ("source", "split", "subset", "subset_seed", "exclude", "held_out")


@dataclass(frozen=True)
class FoundTask:
    """A task whose data was found and opened."""

    task: VtabTask
    group: Group
    """The task's group, or other if its number of classes is not the benchmark's."""
    source: str
    """Its images, divided by the protocol, as DATA of any command."""
    num_classes: int
    num_train_images: int
    num_test_images: int


@dataclass(frozen=True)
class FoundTasks:
    """Result of `find_tasks`."""

    tasks: tuple[FoundTask, ...]
    """Tasks in the order of TASKS, then generated ones and others."""
    missing: tuple[str, ...]
    """Requested tasks of the benchmark that were not found."""


@dataclass(frozen=True)
class Setting:
    """Learning rate and length of all runs: what a sweep chooses."""

    learning_rate: float
    total_steps: int

    @property
    def folder(self) -> str:
        """Name of the folder of its runs."""
        return f"rate-{self.learning_rate:g}-steps-{self.total_steps}"


def find_tasks(root: Path, config: VtabConfig, out: Path) -> FoundTasks:
    """Open the data of every requested task in a folder, before anything is trained; the folder of results is left out."""
    paths = list_task_paths(root, out)
    if config.generated:
        paths |= {task.name: source for source, task in GENERATED.items()}
    known = {*paths, *TASKS}
    for name in config.tasks:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or sorted(known)
            raise ValueError(
                f"{name_setting('tasks', name)} is neither a task of VTAB nor in {root}. Nearest: {join_names(near)}."
            )
    requested = [name for name in paths if not config.tasks or name in config.tasks]
    if not requested:
        raise FileNotFoundError(
            f"{root} contains no task: name folders like tasks, e.g. pets or dtd, or add {name_setting('generated')}."
        )
    missing = tuple(name for name in TASKS if name not in paths and (not config.tasks or name in config.tasks))
    return FoundTasks(tuple(open_task(name, paths[name], config) for name in requested), missing)


def list_task_paths(root: Path, out: Path) -> dict[str, str]:
    """Return the path of each dataset in a folder by the name of its task; the benchmark's tasks come first."""
    if not root.is_dir():
        raise FileNotFoundError(f"{root} not found; expected a folder with a dataset for each task: check the path.")
    entries = list_folder(root)
    if any(normalise_split(entry) == "train" for entry in entries):
        raise ValueError(f"{root} is a single dataset; expected a folder with a dataset for each task: use its parent folder.")
    paths: dict[str, str] = {}
    for entry in entries:
        path = root / entry
        name = resolve_task_name(entry if path.is_dir() else path.stem)
        if path.resolve() in (out.resolve(), *out.resolve().parents) or find_format(path) is None:
            if name in TASKS:
                warn_user(f"{path} has the name of a task but is not a recognised dataset: it counts as missing.")
            continue
        if {":", "@"} & set(name):
            raise ValueError(f"{path} contains : or @, which the name of a task cannot: rename it.")
        if name in paths:
            raise ValueError(f"{paths[name]} and {path} are both the task {name}; expected one: rename the other.")
        paths[name] = str(path)
    return {name: paths[name] for name in (*TASKS, *(name for name in paths if name not in TASKS)) if name in paths}


def open_task(name: str, path: str, config: VtabConfig) -> FoundTask:
    """Open all splits that a task will need, check its labels, and count its images."""
    from vitrine.evaluation.predictor import require_single_labels  # which imports torch

    task, limit = find_task(name), "" if config.test_images is None else f"@{config.test_images}"
    source = f"{VTAB}{name}{limit}:{path}"
    dataset = find_data(source)
    train, test, *_ = (dataset.open(split) for split in (WHOLE, "test", *(("train", "val") if config.sweep else ())))
    require_single_labels(train, path)
    num_classes, group = len(train.class_names), task.group
    if len(train) < NUM_TRAIN_IMAGES:
        warn_user(f"{name} has {len(train)} training images instead of {NUM_TRAIN_IMAGES:,}: too few for 800 and 200.")
    if task.num_classes not in (None, num_classes):
        warn_user(f"{name} has {num_classes} classes instead of {task.num_classes}: it is run, but left out of the score.")
        group = "other"
    return FoundTask(task, group, source, num_classes, len(train), len(test))


def build_protocol(model: str, root: str) -> Recipe:
    """Build the paper's recipe for all tasks (table 4). Nothing is validated: all 1000 images are trained on."""
    task = FinetuneTask(checkpoint=model, source=root, num_images=NUM_TRAIN_IMAGES, num_classes=0)
    return with_changes(vtab(task), evaluation={"num_times": 0})


def check_recipe(recipe: Recipe, protocol: Recipe) -> None:
    """Raise ValueError if a changed recipe sets fields that every task sets itself, or that VTAB needs as they are."""
    for name in TASK_FIELDS:
        if getattr(recipe.data, name) != getattr(protocol.data, name):
            raise ValueError(f"data.{name} is set by each task of VTAB: leave it out.")
    if recipe.evaluation.num_times != 0 or not recipe.evaluation.test:
        raise ValueError("VTAB trains on all 1000 images and tests once, at the end: leave evaluation.* out.")
    if recipe.objective != "supervised" or recipe.total_steps is None or recipe.epochs is not None:
        raise ValueError("VTAB needs the supervised objective and total_steps, e.g. 2500, not epochs: leave others out.")


def list_departures(recipe: Recipe, protocol: Recipe, config: VtabConfig, tasks: Sequence[FoundTask] = ()) -> list[str]:
    """Describe every setting that is not the paper's, and every task that has too few training images."""
    defaults = dict(list_fields(protocol.to_json()))
    return [
        *([] if config.test_images is None else [f"at most {config.test_images} test images instead of all"]),
        *([describe_sweep(list_settings(recipe, config))] if config.sweep else []),
        *(
            f"{name} {value} instead of {defaults[name]}"
            for name, value in list_fields(recipe.to_json())
            if value != defaults[name] and not any(name == free or name.startswith(f"{free}.") for free in FREE_FIELDS)
        ),
        *(
            f"{each.task.name} with {each.num_train_images} training images instead of {NUM_TRAIN_IMAGES:,}"
            for each in tasks
            if each.num_train_images < NUM_TRAIN_IMAGES
        ),
    ]


def describe_sweep(settings: Sequence[Setting]) -> str:
    """Describe the choices of a sweep, which are a departure because the paper does not name its own."""
    learning_rates = dict.fromkeys(f"{each.learning_rate:g}" for each in settings)
    lengths = dict.fromkeys(f"{each.total_steps:,}" for each in settings)
    return f"chosen from learning rates {', '.join(learning_rates)} and {', '.join(lengths)} steps, not named in the paper"


def describe_protocol(recipe: Recipe, departures: Sequence[str], is_swept: bool) -> str:
    """Say in one sentence which settings the tasks were run with, and whether they are the paper's."""
    chosen = " (chosen by the sweep)" if is_swept else ""
    steps = f"{recipe.total_steps:,} steps{chosen} of {recipe.loader.batch_size} images"
    size = "the checkpoint's size" if recipe.model.image_size is None else f"{recipe.model.image_size} px"
    setting = f"learning rate {recipe.optim.learning_rate:g}, {steps}, {size}"
    if not departures:
        return f"The paper's protocol: {setting}."
    return f"Not the paper's protocol: {setting}; {'; '.join(departures)}."


def build_task_recipe(recipe: Recipe, task: FoundTask, split: str = WHOLE) -> Recipe:
    """Build the recipe of one task, without augmentation that would change its labels."""
    data = replace(recipe.data, source=task.source, split=split)
    augment = replace(recipe.augment, flip=recipe.augment.flip and task.task.flip)
    augment = augment if task.task.crop else replace(augment, crop="none")
    return drop_unused(replace(recipe, data=data, augment=augment))


def list_settings(recipe: Recipe, config: VtabConfig) -> list[Setting]:
    """List the learning rates and lengths that a sweep tries, in all combinations."""
    assert recipe.total_steps is not None
    peak = recipe.optim.learning_rate
    learning_rates = config.rates or tuple(float(f"{peak * factor:.6g}") for factor in LEARNING_RATE_FACTORS)
    lengths = config.lengths or tuple(max(1, round(recipe.total_steps * factor)) for factor in LENGTH_FACTORS)
    return [Setting(lr, length) for lr, length in product(learning_rates, lengths)]


def apply_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """Set learning rate and length of a recipe; warm-up keeps its fraction of the run."""
    assert recipe.total_steps is not None
    warmup_steps = round(recipe.optim.warmup_steps * setting.total_steps / recipe.total_steps)
    optim = replace(recipe.optim, learning_rate=setting.learning_rate, warmup_steps=warmup_steps)
    return replace(recipe, optim=optim, total_steps=setting.total_steps)

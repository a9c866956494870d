"""Tasks found under ROOT, the paper's setting, departures.

Which tasks of VTAB there are in a folder: each opened, counted and compared with the table before anything is trained.
What every task of VTAB is trained with: the paper's one setting, what departs from it, and what a sweep tries instead.

Table 4 and appendix B.1.1 of arXiv:2010.11929. No torch here.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from vitrine.core.console import join_names, warn_user
from vitrine.data.dataset_format import normalise_split
from vitrine.data.open_data import VTAB, find_data, find_format
from vitrine.data.sources.image_files import list_folder
from vitrine.data.sources.vtab import GENERATED, TASKS, WHOLE, Group, VtabTask, find_task, resolve_task_name
from vitrine.recipe import RESUMABLE_FIELDS, Recipe, list_fields, with_changes
from vitrine.recipes.finetune import FinetuneTask, vtab
from vitrine.studies.vtab.config import LENGTH_FACTORS, RATE_FACTORS, VtabConfig

NUM_IMAGES = 1000  # of a task, to learn from


@dataclass(frozen=True)
class FoundTask:
    task: VtabTask
    group: Group
    """The table's; other for what has its name and other classes."""
    source: str
    """Its images under the protocol, as any command takes them."""
    num_classes: int
    num_train_images: int
    num_test_images: int


@dataclass(frozen=True)
class TaskSurvey:
    found: tuple[FoundTask, ...]
    """In the order of the table; then generated ones and others."""
    missing: tuple[str, ...]
    """Those of the 19 that were asked for and are not there."""


def find_tasks(root: Path, config: VtabConfig, out: Path) -> TaskSurvey:
    """`out` is no task, should it lie in the same folder."""
    sources = list_sources(root, out)
    if config.generated:
        sources |= {task.name: source for source, task in GENERATED.items()}
    wanted = choose_wanted(sources, config.tasks)
    missing = tuple(name for name in TASKS if name not in sources and (not config.tasks or name in config.tasks))
    if not wanted:
        raise FileNotFoundError(
            f"{root} has no task: put folders in it that are called as tasks, as pets or dtd (`vitrine vtab --list`), or take "
            "--generated."
        )
    return TaskSurvey(tuple(open_task(name, sources[name], config) for name in wanted), missing)


def list_sources(root: Path, out: Path) -> dict[str, str]:
    """By the name of the task, whatever is data in the folder; the table's tasks come first."""
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}, and one with a folder for each task was needed: check the path.")
    inners = list_folder(root)
    if any(normalise_split(inner) == "train" for inner in inners):
        raise ValueError(f"{root} is one data set, and a folder with one for each task was needed: give the folder around it.")
    sources: dict[str, str] = {}
    for inner in inners:
        path = root / inner
        name = resolve_task_name(inner if path.is_dir() else path.stem)
        if path.resolve() in (out.resolve(), *out.resolve().parents) or find_format(path) is None:
            if name in TASKS:
                warn_user(f"{path} has the name of a task and is no data of a known kind: it is taken as missing.")
            continue
        if {":", "@"} & set(name):
            raise ValueError(f"{path} cannot be the name of a task, for the : or @ in it: rename it.")
        if name in sources:
            raise ValueError(f"{sources[name]} and {path} are both the task {name}, and one was needed: rename one.")
        sources[name] = str(path)
    return {name: sources[name] for name in (*TASKS, *(each for each in sources if each not in TASKS)) if name in sources}


def choose_wanted(sources: dict[str, str], tasks: tuple[str, ...]) -> list[str]:
    known = {*sources, *TASKS}
    for name in tasks:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or sorted(known)
            raise ValueError(f"--tasks {name} is no task of VTAB, and none of the data's. Nearest: {join_names(near)}.")
    return [name for name in sources if not tasks or name in tasks]


def open_task(name: str, where: str, config: VtabConfig) -> FoundTask:
    """Also what a sweep needs, before anything is trained."""
    task, limit = find_task(name), "" if config.test_images is None else f"@{config.test_images}"
    source = f"{VTAB}{name}{limit}:{where}"
    data = find_data(source)
    train, test, *_ = (data.open(split) for split in (WHOLE, "test", *(("train", "val") if config.sweep else ())))
    if train.labels.has_several or len(train.class_names) < 2:
        raise ValueError(f"The images of {where} do not have one label each, of two or more classes, as a task needs: move it.")
    if len(train) < NUM_IMAGES:
        warn_user(
            f"{name} has {len(train)} images to learn from instead of {NUM_IMAGES:,}: its data has too few for 800 and 200."
        )
    return FoundTask(task, choose_group(task, len(train.class_names)), source, len(train.class_names), len(train), len(test))


def choose_group(task: VtabTask, num_classes: int) -> Group:
    if task.num_classes in (None, num_classes):
        return task.group
    warn_user(
        f"{task.name} has {num_classes} classes, and VTAB's has {task.num_classes}: it is run, and does not count in the score."
    )
    return "other"


# Where a run's images are read from and how is no part of the protocol; the rest of `data` is set task by task.
NO_PROTOCOL = (*RESUMABLE_FIELDS, "seed", "data")
OF_TASKS = ("source", "split", "subset", "subset_seed", "exclude", "held_out")


@dataclass(frozen=True)
class Setting:
    learning_rate: float
    total_steps: int

    def __str__(self) -> str:
        return f"rate-{self.learning_rate:g}-steps-{self.total_steps}"


def build_protocol(model: str, root: str) -> Recipe:
    """The paper's setting (table 4), in which nothing is watched on the way: all 1000 images are trained on."""
    transfer = FinetuneTask(checkpoint=model, source=root, num_images=NUM_IMAGES, num_classes=0)
    return with_changes(vtab(transfer), evaluation={"num_times": 0})


def check_recipe(recipe: Recipe, protocol: Recipe) -> None:
    """No field was set in vain, or against what makes a task one of VTAB's."""
    for name in OF_TASKS:
        if getattr(recipe.data, name) != getattr(protocol.data, name):
            raise ValueError(f"data.{name} is set for each task by VTAB itself: leave it out.")
    if recipe.evaluation.num_times != 0 or not recipe.evaluation.test:
        raise ValueError("VTAB trains on all images that could be watched, and measures once on test: leave evaluation.* out.")
    if recipe.objective != "supervised" or recipe.total_steps is None or recipe.epochs is not None:
        raise ValueError("VTAB needs the supervised objective and a length in steps, as total_steps=2500: leave others out.")


def list_departures(recipe: Recipe, protocol: Recipe, config: VtabConfig, found: Sequence[FoundTask] = ()) -> list[str]:
    """In words, every setting that is not the paper's, and every task that has fewer images than it should."""
    usual = dict(list_fields(protocol.to_json()))
    return [
        *([] if config.test_images is None else [f"at most {config.test_images} test images instead of all"]),
        *([describe_sweep(list_settings(recipe, config))] if config.sweep else []),
        *(
            f"{name} {value} instead of {usual[name]}"
            for name, value in list_fields(recipe.to_json())
            if value != usual[name] and not any(name == free or name.startswith(f"{free}.") for free in NO_PROTOCOL)
        ),
        *(
            f"{each.task.name} with {each.num_train_images} images to learn from instead of {NUM_IMAGES:,}"
            for each in found
            if each.num_train_images < NUM_IMAGES
        ),
    ]


def describe_sweep(settings: Sequence[Setting]) -> str:
    """The paper does not name what it chose from."""
    rates = dict.fromkeys(f"{each.learning_rate:g}" for each in settings)
    lengths = dict.fromkeys(f"{each.total_steps:,}" for each in settings)
    return f"chosen from the rates {', '.join(rates)} and {', '.join(lengths)} steps, which the paper does not name"


def build_task_recipe(recipe: Recipe, found: FoundTask, split: str = WHOLE) -> Recipe:
    """The setting on the images of a task, without what would change its labels."""
    augment = {"flip": recipe.augment.flip and found.task.flip}
    if not found.task.crop:
        augment |= {"crop": "none", "resize": None}
    return with_changes(recipe, data={"source": found.source, "split": split}, augment=augment)


def list_settings(recipe: Recipe, config: VtabConfig) -> list[Setting]:
    """Two rates and two lengths, unless others were given."""
    assert recipe.total_steps is not None
    rate, total_steps = recipe.optim.learning_rate, recipe.total_steps
    rates = config.rates or tuple(float(f"{rate * factor:.6g}") for factor in RATE_FACTORS)
    lengths = config.lengths or tuple(max(1, round(total_steps * factor)) for factor in LENGTH_FACTORS)
    return [Setting(rate, length) for rate, length in product(rates, lengths)]


def apply_setting(recipe: Recipe, setting: Setting) -> Recipe:
    """Warm-up takes the same share of the run as it did."""
    assert recipe.total_steps is not None
    warmup_steps = round(recipe.optim.warmup_steps * setting.total_steps / recipe.total_steps)
    optim = replace(recipe.optim, learning_rate=setting.learning_rate, warmup_steps=warmup_steps)
    return replace(recipe, optim=optim, total_steps=setting.total_steps)

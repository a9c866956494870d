"""Which tasks of VTAB there are in a folder: each opened, counted and compared with the table before anything is trained."""

import difflib
from dataclasses import dataclass
from pathlib import Path

from vitrine.core.notices import notice
from vitrine.core.sentences import list_names
from vitrine.data.kind import normalise_split
from vitrine.data.opening import VTAB, find_data, find_kind
from vitrine.data.sources.factors import find_factors
from vitrine.data.sources.listing import list_folder
from vitrine.data.sources.vtab import WHOLE
from vitrine.data.vtab_tasks import GENERATED, TASKS, Group, VtabTask, find_task, name_task
from vitrine.studies.config import VtabConfig

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
class Survey:
    found: tuple[FoundTask, ...]
    """In the order of the table; then generated ones and others."""
    missing: tuple[str, ...]
    """Those of the 19 that were asked for and are not there."""


def survey_tasks(root: Path, config: VtabConfig, out: Path) -> Survey:
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
    return Survey(tuple(open_task(name, sources[name], config) for name in wanted), missing)


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
        name = name_task(inner if path.is_dir() else path.stem)
        if path.resolve() in (out.resolve(), *out.resolve().parents) or not is_data(path, find_task(name)):
            if name in TASKS:
                notice(f"{path} has the name of a task and is no data of a known kind: it is taken as missing.")
            continue
        if {":", "@"} & set(name):
            raise ValueError(f"{path} cannot be the name of a task, for the : or @ in it: rename it.")
        if name in sources:
            raise ValueError(f"{sources[name]} and {path} are both the task {name}, and one was needed: rename one.")
        sources[name] = str(path)
    return {name: sources[name] for name in (*TASKS, *(each for each in sources if each not in TASKS)) if name in sources}


def is_data(path: Path, task: VtabTask) -> bool:
    return (task.rule is not None and find_factors(path) is not None) or find_kind(path) is not None


def choose_wanted(sources: dict[str, str], tasks: tuple[str, ...]) -> list[str]:
    known = {*sources, *TASKS}
    for name in tasks:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or sorted(known)
            raise ValueError(f"--tasks {name} is no task of VTAB, and none of the data's. Nearest: {list_names(near)}.")
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
        notice(f"{name} has {len(train)} images to learn from instead of {NUM_IMAGES:,}: its data has too few for 800 and 200.")
    return FoundTask(task, choose_group(task, len(train.class_names)), source, len(train.class_names), len(train), len(test))


def choose_group(task: VtabTask, num_classes: int) -> Group:
    if task.num_classes in (None, num_classes):
        return task.group
    notice(
        f"{task.name} has {num_classes} classes, and VTAB's has {task.num_classes}: it is run, and does not count in the score."
    )
    return "other"

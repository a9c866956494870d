"""The images of a run: what it learns from, what it is watched on, and what it is tested on once."""

from dataclasses import dataclass

import numpy as np

from vitrine.data.config import DataConfig
from vitrine.data.kind import normalise_split
from vitrine.data.loader import Loader, build_plain_loader
from vitrine.data.memory import hold_in_memory
from vitrine.data.opening import find_data, open_configured
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.data.sources.vtab import WHOLE
from vitrine.recipe import Recipe


@dataclass(frozen=True)
class RunData:
    train: Source
    watched: Source | None
    """What is evaluated in the course of the run, and what the best is chosen by."""
    watched_name: str
    """held_out or val."""
    test: Source | None
    """The split test; where there is none, as on ImageNet, val, unless the weights were chosen by it."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.train.class_names


def open_run_data(recipe: Recipe) -> RunData:
    config, evaluation = recipe.data, recipe.evaluation
    train, held_out = open_configured(config)
    if recipe.objective == "supervised":
        require_labels(train, recipe)
    splits = find_data(config.source).splits
    watched, watched_name = held_out, "held_out"
    if watched is None:
        watched, watched_name = open_other(config, "val", splits), "val"
    require_watched(watched, train, recipe)
    test_split = "test" if "test" in splits else "val"
    chosen_on = watched_name if evaluation.patience is not None else None  # what was chosen on some images says nothing on them
    is_tested = evaluation.test and test_split != chosen_on and recipe.objective == "supervised"
    test = open_other(config, test_split, splits) if is_tested else None
    for source, split in ((watched, watched_name), (test, test_split)):
        if source is not None and source.class_names != train.class_names:
            raise ValueError(
                f"The classes of {config.source} are not the same in {split} as in training "
                f"({len(source.class_names)} and {len(train.class_names)}, or in another order): give both the same."
            )
    return RunData(train, watched, watched_name, test)


def require_watched(watched: Source | None, train: Source, recipe: Recipe) -> None:
    """Before anything is trained: whatever is to be measured on the way can be."""
    shots = recipe.evaluation.few_shot
    if watched is None and (recipe.evaluation.patience is not None or shots > 0):
        raise ValueError(
            f"{recipe.data.source} has no images to watch, and evaluation.patience and evaluation.few_shot need some: give a "
            "share, as data.held_out=0.1, or a split val."
        )
    if shots == 0:
        return
    if len(train.class_names) < 2:
        raise ValueError(f"evaluation.few_shot={shots} needs labels of two or more classes: leave it out.")
    if train.labels.has_several:
        raise ValueError("evaluation.few_shot needs images with one label each: leave it out.")
    counts = np.bincount(train.labels.values, minlength=len(train.class_names))
    if counts.min() < shots:
        name = train.class_names[int(counts.argmin())]
        raise ValueError(f"evaluation.few_shot={shots} is more than the {counts.min()} images of the class {name}: lower it.")


def open_other(config: DataConfig, split: str, splits: tuple[str, ...]) -> Source | None:
    """A split that is not trained on, if there is one."""
    trained_on = None if config.split is None else normalise_split(config.split)
    is_within = split == "val" and config.split == WHOLE  # of VTAB-1k, where both are one split too
    if split not in splits or split in (config.split, trained_on) or is_within:
        return None
    source = find_data(config.source).open(split)
    return hold_in_memory(source, config.bad_images) if config.in_memory else source


def require_labels(train: Source, recipe: Recipe) -> None:
    name = recipe.data.source
    if len(train.class_names) < 1:
        raise ValueError(f"{name} has no labels, and learning from labels needs them: give images in folders by class.")
    if len(train.class_names) < 2 and recipe.supervised.loss == "softmax":
        raise ValueError(f"{name} has one class only, {train.class_names[0]}, and nothing to tell it from: give two or more.")
    if train.labels.has_several and recipe.supervised.loss == "softmax":
        raise ValueError(f"{name} has several labels per image, of which supervised.loss=softmax knows one: take sigmoid.")


def build_evaluation_loader(
    source: Source, preprocessing: Preprocessing, recipe: Recipe, *, rank: int = 0, num_ranks: int = 1
) -> Loader:
    return build_plain_loader(
        source,
        preprocessing,
        batch_size=recipe.evaluation.batch_size,
        num_workers=recipe.loader.num_workers,
        bad_images=recipe.data.bad_images,
        rank=rank,
        num_ranks=num_ranks,
    )

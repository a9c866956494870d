"""All recipes by name: those of `vitrine train NAME`, and those of `vitrine finetune MODEL DATA --recipe NAME`.

No torch here: what opens data is imported when it is called.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from inspect import cleandoc
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from vitrine.core.console import warn_user
from vitrine.data.config import DataConfig, TrainBadImages
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.demo import DEMO_FINETUNE_RECIPES, DEMO_RECIPES
from vitrine.recipes.finetune import GENERAL_FINETUNE_RECIPES, FinetuneRecipe, FinetuneTask
from vitrine.recipes.pretrain import PRETRAIN_RECIPES
from vitrine.recipes.small import SMALL_FINETUNE_RECIPES, SMALL_MASKED_RECIPES, SMALL_RECIPES

if TYPE_CHECKING:
    from vitrine.data.open_data import DataLike, DatasetHandle
    from vitrine.data.source import Source

RECIPES: dict[str, Callable[[], Recipe]] = {**SMALL_RECIPES, **PRETRAIN_RECIPES, **SMALL_MASKED_RECIPES, **DEMO_RECIPES}
FINETUNE_RECIPES: dict[str, FinetuneRecipe] = {**GENERAL_FINETUNE_RECIPES, **SMALL_FINETUNE_RECIPES, **DEMO_FINETUNE_RECIPES}

HELD_OUT = 0.1
MIN_IMAGES_TO_HOLD_OUT = 20  # a tenth of fewer images measures nothing
NUM_AREA_SAMPLES = 100  # images opened to estimate the median image area


def summarise_recipe(function: Callable[..., Recipe]) -> tuple[str, str]:
    """Return two lines of a recipe's docstring: what it is, and the result to expect."""
    lines = cleandoc(function.__doc__ or "").splitlines()
    expectation = next(line for line in lines if line.startswith("Expect "))
    return lines[0], expectation.removeprefix("Expect ")


def find_recipe(name: str) -> Callable[[], Recipe]:
    """Return the function that builds the named recipe of `vitrine train`."""
    if name in RECIPES:
        return RECIPES[name]
    if name in FINETUNE_RECIPES:
        raise ValueError(f"Recipe {name!r} fine-tunes a checkpoint: use `vitrine finetune MODEL DATA --recipe {name}`.")
    raise ValueError(f"Unknown recipe {name!r}. Nearest: {list_nearest(name, RECIPES)}. All recipes: `vitrine train --list`.")


def find_finetune_recipe(name: str) -> FinetuneRecipe:
    """Return the named recipe of `vitrine finetune`."""
    if name in FINETUNE_RECIPES:
        return FINETUNE_RECIPES[name]
    if name in RECIPES:
        raise ValueError(f"Recipe {name!r} trains from scratch, without a checkpoint: use `vitrine train {name}`.")
    nearest, names = list_nearest(name, FINETUNE_RECIPES), ", ".join(FINETUNE_RECIPES)
    raise ValueError(f"Unknown recipe {name!r}. Nearest: {nearest}. All fine-tuning recipes: {names}.")


def list_nearest(name: str, known: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(name.casefold(), list(known), n=3, cutoff=0.0))


def name_finetune_run(model: str | Path, data: str, recipe: str) -> str:
    """Return the name of a fine-tuning run and its folder, e.g. vit-b16-photos-folder."""
    return f"{short_model_name(model)}-{Path(data).resolve().name}-{recipe}"


def short_model_name(model: str | Path) -> str:
    """Return a name for a checkpoint: of a run's result, the run's; of a file, its name without the ending."""
    path = Path(model).resolve()
    if path.name in ("model", "best", "model.safetensors"):
        return path.parent.name
    return path.stem if path.is_file() else path.name


def find_data_once(data: "DataLike") -> "DatasetHandle":
    """Find data so that each of its splits is opened, and its files are listed, at most once, however often it is used."""
    from vitrine.data.open_data import find_data

    dataset = find_data(data)
    return replace(dataset, open_split=cache(dataset.open_split))


def build_finetune_recipe(name: str, model: str, dataset: "DatasetHandle", config: DataConfig | None = None) -> Recipe:
    """Build the recipe that fine-tunes a checkpoint on data, by the rule of the given name.

    `config` has settings that change how many images there are, e.g. a subset. They are not copied into the recipe.
    """
    from vitrine.data.open_data import open_train_data

    config = DataConfig(source=dataset.name) if config is None else config
    train, _ = open_train_data(replace(config, in_memory=False), dataset)
    task = FinetuneTask(
        checkpoint=model,
        source=config.source,
        num_images=len(train),
        num_classes=len(train.class_names),
        measure_area=partial(compute_median_area, train, config.bad_images),
    )
    recipe = find_finetune_recipe(name).build(task)
    if dataset.splits:
        return recipe
    if task.num_images < MIN_IMAGES_TO_HOLD_OUT:
        few = f"{dataset.name} has {task.num_images} images, too few to hold some out: the accuracy is not measured"
        warn_user(f"{few}. Add images to at least {MIN_IMAGES_TO_HOLD_OUT}, or a split test.")
        return recipe
    return with_changes(recipe, data={"held_out": HELD_OUT})  # data without splits needs images to measure on


def compute_median_area(source: "Source", bad_images: TrainBadImages) -> int:
    """Return the median height x width, in pixels, of about a hundred images of a source; bad ones may be skipped."""
    areas: list[int] = []
    for index in range(0, len(source), max(1, len(source) // NUM_AREA_SAMPLES)):
        try:
            image = source.read(index)[0]
        except ValueError:
            if bad_images == "error":
                raise
        else:
            areas.append(image.height * image.width)
    return int(median(areas or [0]))

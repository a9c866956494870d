"""All recipes by name: those of `vitrine train NAME`, and those of `vitrine finetune MODEL DATA --recipe NAME`."""

import difflib
from collections.abc import Callable, Iterable
from inspect import cleandoc

from vitrine.recipe import Recipe
from vitrine.recipes.demo import DEMO, DEMO_TRANSFERS
from vitrine.recipes.finetune import FINETUNING, FOLDER, HYPERRULE, FinetuneRecipe
from vitrine.recipes.pretrain import BIT_PRETRAINING, PRETRAINING, imagenet_vit_s16
from vitrine.recipes.small import MASKED, MASKED_TRANSFERS, MINIATURES

RECIPES: dict[str, Callable[[], Recipe]] = {
    **MINIATURES,
    "imagenet-vit-s16": imagenet_vit_s16,
    **PRETRAINING,
    **BIT_PRETRAINING,
    **MASKED,
    **DEMO,
}
FINETUNE_RECIPES: dict[str, FinetuneRecipe] = {
    "folder": FOLDER,
    **FINETUNING,
    "hyperrule": HYPERRULE,
    **MASKED_TRANSFERS,
    **DEMO_TRANSFERS,
}


def summarise_recipe(function: Callable[..., Recipe]) -> tuple[str, str]:
    """What a recipe is, in a line, and what it reaches: two lines of its docstring."""
    lines = cleandoc(function.__doc__ or "").splitlines()
    expectation = next(line for line in lines if line.startswith("Expect "))
    return lines[0], expectation.removeprefix("Expect ")


def find_recipe(name: str) -> Callable[[], Recipe]:
    if name in RECIPES:
        return RECIPES[name]
    if name in FINETUNE_RECIPES:
        raise ValueError(f"Recipe {name!r} fine-tunes a checkpoint: use `vitrine finetune MODEL DATA --recipe {name}`.")
    raise ValueError(f"Unknown recipe {name!r}. Nearest: {list_nearest(name, RECIPES)}. All recipes: `vitrine train --list`.")


def find_finetune_recipe(name: str) -> FinetuneRecipe:
    if name in FINETUNE_RECIPES:
        return FINETUNE_RECIPES[name]
    if name in RECIPES:
        raise ValueError(f"Recipe {name!r} trains from scratch, without a checkpoint: use `vitrine train {name}`.")
    raise ValueError(
        f"Unknown recipe {name!r}. "
        f"Nearest: {list_nearest(name, FINETUNE_RECIPES)}. All of fine-tuning: {', '.join(FINETUNE_RECIPES)}."
    )


def list_nearest(name: str, known: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(name.casefold(), list(known), n=3, cutoff=0.0))

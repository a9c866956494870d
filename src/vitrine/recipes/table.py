"""All recipes by name: those of `vitrine train NAME`, and those of `vitrine finetune MODEL DATA --recipe NAME`."""

import difflib
from collections.abc import Callable, Iterable
from inspect import cleandoc

from vitrine.recipe import Recipe
from vitrine.recipes.baseline import imagenet_vit_s16
from vitrine.recipes.bit import BIT_PRETRAINING, HYPERRULE
from vitrine.recipes.demo import DEMO, DEMO_TRANSFERS
from vitrine.recipes.finetune import FINETUNING, TransferRecipe
from vitrine.recipes.finetune import Transfer as Transfer
from vitrine.recipes.folder import FOLDER
from vitrine.recipes.masked import MASKED, MASKED_TRANSFERS
from vitrine.recipes.miniatures import MINIATURES
from vitrine.recipes.pretrain import PRETRAINING

RECIPES: dict[str, Callable[[], Recipe]] = {
    **MINIATURES,
    "imagenet-vit-s16": imagenet_vit_s16,
    **PRETRAINING,
    **BIT_PRETRAINING,
    **MASKED,
    **DEMO,
}
TRANSFERS: dict[str, TransferRecipe] = {
    "folder": FOLDER,
    **FINETUNING,
    "hyperrule": HYPERRULE,
    **MASKED_TRANSFERS,
    **DEMO_TRANSFERS,
}


def describe(function: Callable[..., Recipe]) -> tuple[str, str]:
    """What a recipe is, in a line, and what it reaches: two lines of its docstring."""
    lines = cleandoc(function.__doc__ or "").splitlines()
    expectation = next(line for line in lines if line.startswith("Expect "))
    return lines[0], expectation.removeprefix("Expect ")


def find_recipe(name: str) -> Callable[[], Recipe]:
    if name in RECIPES:
        return RECIPES[name]
    if name in TRANSFERS:
        raise ValueError(f"Recipe {name!r} fine-tunes a checkpoint: use `vitrine finetune MODEL DATA --recipe {name}`.")
    raise ValueError(f"Unknown recipe {name!r}. Nearest: {list_nearest(name, RECIPES)}. All recipes: `vitrine train --list`.")


def find_transfer(name: str) -> TransferRecipe:
    if name in TRANSFERS:
        return TRANSFERS[name]
    if name in RECIPES:
        raise ValueError(f"Recipe {name!r} trains from scratch, without a checkpoint: use `vitrine train {name}`.")
    raise ValueError(
        f"Unknown recipe {name!r}. Nearest: {list_nearest(name, TRANSFERS)}. All of fine-tuning: {', '.join(TRANSFERS)}."
    )


def list_nearest(name: str, known: Iterable[str]) -> str:
    return ", ".join(difflib.get_close_matches(name.casefold(), list(known), n=3, cutoff=0.0))

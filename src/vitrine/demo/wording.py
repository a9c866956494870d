"""What to type for a run: the words that make `vitrine train` and `vitrine finetune` of its recipe. No torch here."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrine.recipe import Recipe, list_fields


def word_training(base: str, usual: Recipe, recipe: Recipe, out: Path) -> str:
    """`usual` is the recipe of the name `base`, and options say in what this one differs."""
    return join("vitrine", "train", base, *list_options(usual, recipe), "--out", out)


def word_transfer(base: str, usual: Recipe, recipe: Recipe, out: Path) -> str:
    model, data = recipe.model.checkpoint, recipe.data.source
    return join("vitrine", "finetune", model, data, "--recipe", base, *list_options(usual, recipe), "--out", out)


def list_options(usual: Recipe, recipe: Recipe) -> list[str]:
    before = dict(list_fields(usual.to_json()))
    fields = list_fields(recipe.to_json())
    return [word for name, value in fields if before[name] != value for word in format_option(name, value)]


def format_option(name: str, value: Any) -> list[str]:
    """As the command line has it: `--augment.no-flip`, `--model.stages 2 2 2`."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = option.rpartition(".")
        return [f"--{option}" if value else f"--{group}{dot}no-{last}"]
    return [f"--{option}", *map(str, value if isinstance(value, Sequence) and not isinstance(value, str) else [value])]


def join(*words: object) -> str:
    return shlex.join(map(str, words))

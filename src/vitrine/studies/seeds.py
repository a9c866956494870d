"""The same recipe with several seeds: the mean and the spread of what it reaches (table 2 of arXiv:2010.11929 has three)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vitrine.core.files import make_folder
from vitrine.core.runtime import start_runtime
from vitrine.recipe import Recipe
from vitrine.run.run import run_recipe
from vitrine.run.summary import Summary


def run_seeds(recipe: Recipe, seeds: Sequence[int], out: Path, title: str) -> list[Summary]:
    """Each in a folder of its own, those that are finished already only read; an interruption ends the list."""
    require_distinct(seeds)
    make_folder(out)
    summaries: list[Summary] = []
    with start_runtime(recipe.device):
        for seed in seeds:
            summaries.append(run_recipe(replace(recipe, seed=seed), out / f"seed-{seed}", f"{title}, seed {seed}"))
            if summaries[-1].interrupted_by is not None:
                break
    return summaries


def require_distinct(seeds: Sequence[int]) -> None:
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds={tuple(seeds)} has one of them twice: each can count once only.")

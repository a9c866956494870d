"""`vitrine train`: a recipe from scratch, or the exact recipe of an earlier run."""

import sys
from pathlib import Path

from vitrine.commands.training import Options, run_training
from vitrine.core.arguments import parse_options
from vitrine.core.files import read_json
from vitrine.recipe import Recipe, parse_recipe

USAGE = """usage: vitrine train RECIPE [--out DIR] [--field.name VALUE ...]
       vitrine train --list              every recipe, and what it reaches
       vitrine train RECIPE --help       its fields and their values

RECIPE is a name of the list, or the recipe.json of an earlier run. The same command again goes on with a run that was stopped.
Several devices: torchrun --nproc-per-node 8 -m vitrine train RECIPE .."""

# Around the recipe's own rate, a factor of about three each way, as the steps of table 4.
RATE_FACTORS = (0.1, 0.3, 1.0, 3.0)
HELD_OUT = 0.1


def train(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--list":
        list_recipes()
        return
    name, *rest = arguments
    if name.startswith("-"):
        raise ValueError(f"vitrine train {name} was given, and the recipe's name comes first: vitrine train RECIPE {name} ..")
    recipe, title = find(name)
    rates = tuple(float(f"{recipe.optim.learning_rate * factor:.6g}") for factor in RATE_FACTORS)
    defaults = Options(out=Path("runs") / title, rates=rates, recipe=recipe)
    run_training(parse_options(f"train {name}", Options, rest, defaults), defaults, title, HELD_OUT)


def find(name: str) -> tuple[Recipe, str]:
    """The recipe of a name, or of a file, and what to call its runs."""
    from vitrine.recipes.table import find_recipe

    if not name.endswith(".json"):
        return find_recipe(name)(), name
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no recipe at {path}: give the recipe.json of a run, or a name of `vitrine train --list`."
        )
    return parse_recipe(read_json(path), name), path.resolve().parent.name


def list_recipes() -> None:
    from vitrine.recipes.table import RECIPES, TRANSFERS, describe

    print_recipes("vitrine train NAME", {name: describe(build) for name, build in RECIPES.items()})
    print()
    transfers = {name: describe(transfer.build) for name, transfer in TRANSFERS.items()}
    print_recipes("vitrine finetune MODEL DATA --recipe NAME", transfers)


def print_recipes(command: str, recipes: dict[str, tuple[str, str]]) -> None:
    """Names at the left; beside each what it is and, below that, what it reaches."""
    print(f"{command}\n")
    width = max(map(len, recipes)) + 2
    for name, (what, reaches) in recipes.items():
        print(f"{name:<{width}}{what}\n{'':<{width}}-> {reaches}")

"""`train`; options and output shared with `finetune`.

What `vitrine train` and `vitrine finetune` have in common: their options, the runs, and what they print.
`vitrine train`: a recipe from scratch, or the exact recipe of an earlier run.
"""

import os
import shlex
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from vitrine.commands.options import format_percent
from vitrine.core.arguments import parse_options
from vitrine.core.console import format_figure, print_table
from vitrine.core.files import check_output_file, read_json, write_json
from vitrine.recipe import Recipe, parse_recipe, with_changes

if TYPE_CHECKING:
    from vitrine.run.folder import RunSummary
    from vitrine.studies.sweeps import RateChoice


@dataclass(frozen=True, kw_only=True)
class Options:
    """Any field of the recipe can be set by its name."""

    out: Path
    """The folder of the run. Where it holds one of the same recipe, that is resumed."""
    seeds: tuple[int, ...] = ()
    """Several runs, as 0 1 2, and the mean and spread of what they reach."""
    select_rate: bool = False
    """Choose the learning rate on a held-out part of train first; the test images are looked at once, at the end."""
    rates: tuple[float, ...]
    """Learning rates to choose from."""
    json: Path | None = None
    """Write the results to this file."""
    recipe: Annotated[Recipe, arg(name="")]


def run_training(options: Options, defaults: Options, title: str, held_out: float) -> None:
    """All that the options ask for; `defaults` are what they are where nothing was said."""
    from vitrine.core.runtime import start_runtime

    recipe = check_options(options, defaults)
    with start_runtime(recipe.device):  # once for all the runs
        run_all(options, recipe, title, held_out)


def run_all(options: Options, recipe: Recipe, title: str, held_out: float) -> None:
    out = options.out
    results: dict[str, Any] = {}
    if options.select_rate:
        from vitrine.studies.sweeps import search_learning_rate

        choice = search_learning_rate(recipe, options.rates, held_out, out, title)
        if choice.interrupted_by is not None:
            stop_here(choice.interrupted_by)
        say_choice(choice)
        results["rates"] = {f"{rate:g}": summary.best for rate, summary in choice.summaries.items()}
        recipe = with_changes(recipe, optim={"learning_rate": choice.best}, data={"held_out": 0.0})
        out = out / "chosen"
    summaries = train_all(recipe, options.seeds, out, title)
    results["runs"] = [asdict(summary) for summary in summaries]
    if not summaries[-1].is_finished or len(summaries) < len(options.seeds):
        stop_here(summaries[-1].interrupted_by, summaries[-1])
    if is_main():
        print_summaries(summaries, out)
        if options.json is not None:
            write_json(options.json, results)


def check_options(options: Options, defaults: Options) -> Recipe:
    """The recipe, once it is sure that no word was in vain, and that what is written at the end can be written."""
    recipe, usual = options.recipe, defaults.recipe
    if options.rates != defaults.rates and not options.select_rate:
        raise ValueError("--rates belongs to --select-rate: add it, or leave them out.")
    if options.seeds and recipe.seed != usual.seed:
        raise ValueError("--seed and --seeds were both given: leave one of them out.")
    if options.select_rate and recipe.optim.learning_rate != usual.optim.learning_rate:
        raise ValueError("--optim.learning-rate and --select-rate were both given: leave one of them out, or give --rates.")
    if options.select_rate and (recipe.evaluation.patience is not None or recipe.evaluation.few_shot > 0):
        raise ValueError(
            "--evaluation.patience and --evaluation.few-shot need held-out images, which --select-rate gives back to training "
            "in the end: leave them out."
        )
    if len(set(options.seeds)) != len(options.seeds):
        raise ValueError(f"--seeds {' '.join(map(str, options.seeds))} has one of them twice: each can count once only.")
    if options.json is not None:
        check_output_file(options.json)
    if recipe.epochs != usual.epochs and recipe.total_steps == usual.total_steps:
        return replace(recipe, total_steps=None)  # what was given is what counts
    return recipe


def train_all(recipe: Recipe, seeds: tuple[int, ...], out: Path, title: str) -> "list[RunSummary]":
    from vitrine.run.run import run_recipe
    from vitrine.studies.sweeps import run_seeds

    if not seeds:
        return [run_recipe(recipe, out, title)]
    if len(seeds) == 1:
        return [run_recipe(replace(recipe, seed=seeds[0]), out, title)]
    return run_seeds(recipe, seeds, out, title)


def stop_here(number: int | None, summary: "RunSummary | None" = None) -> None:
    """The run was interrupted and is saved: say how to go on, and end as a program does that was told to."""
    if is_main():
        where = "" if summary is None else f" at step {summary.steps} of {summary.total_steps}"
        program = "torchrun .. -m vitrine" if "WORLD_SIZE" in os.environ else "vitrine"
        command = f"{program} {shlex.join(sys.argv[1:])}"
        print(f"Stopped{where}, and saved. To go on, give the same command again: {command}", file=sys.stderr)
    sys.exit(128 + (number or signal.SIGINT))


def is_main() -> bool:
    """Whether this is the process that speaks: torchrun numbers them."""
    return os.environ.get("RANK", "0") == "0"


def say_choice(choice: "RateChoice") -> None:
    if is_main():
        rows = [
            (f"{rate:g}", format_percent(summary.best), "chosen" if rate == choice.best else "")
            for rate, summary in choice.summaries.items()
        ]
        print_table(("learning rate", "held-out top-1", ""), rows)


def print_summaries(summaries: "list[RunSummary]", out: Path) -> None:
    from vitrine.evaluation.intervals import compute_spread

    columns = ("seed", "steps", "best on the way", "test top-1", "test top-5", "images", "exaFLOPs", "device-hours")
    print_table(columns, [format_summary(summary) for summary in summaries])
    tests = [summary.test_top1 for summary in summaries if summary.test_top1 is not None]
    if len(tests) > 1:
        spread = compute_spread(tests)
        print(f"test top-1 over {len(tests)} seeds: {100 * spread.mean:.2f} ± {100 * (spread.std or 0.0):.2f} %")
    models = out / "model" if (out / "model").is_dir() else out / "seed-*" / "model"
    print(f"The model is in {models}, its curves in {models.parent / 'curves.png'}.")


def format_summary(summary: "RunSummary") -> tuple[str, ...]:
    best = "" if summary.best is None else f"{format_percent(summary.best)} at step {summary.best_step}"
    return (
        str(summary.seed),
        f"{summary.steps:,}",
        best,
        format_percent(summary.test_top1),
        format_percent(summary.test_top5),
        f"{summary.images:,}",
        format_figure(summary.exaflops),
        f"{summary.device_hours:.3g} {summary.device}",
    )


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
    from vitrine.recipes.registry import find_recipe

    if not name.endswith(".json"):
        return find_recipe(name)(), name
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no recipe at {path}: give the recipe.json of a run, or a name of `vitrine train --list`."
        )
    return parse_recipe(read_json(path), name), path.resolve().parent.name


def list_recipes() -> None:
    from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES, summarise_recipe

    print_recipes("vitrine train NAME", {name: summarise_recipe(build) for name, build in RECIPES.items()})
    print()
    transfers = {name: summarise_recipe(transfer.build) for name, transfer in FINETUNE_RECIPES.items()}
    print_recipes("vitrine finetune MODEL DATA --recipe NAME", transfers)


def print_recipes(command: str, recipes: dict[str, tuple[str, str]]) -> None:
    """Names at the left; beside each what it is and, below that, what it reaches."""
    print(f"{command}\n")
    width = max(map(len, recipes)) + 2
    for name, (what, reaches) in recipes.items():
        print(f"{name:<{width}}{what}\n{'':<{width}}-> {reaches}")

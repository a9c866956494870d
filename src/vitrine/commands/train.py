"""`vitrine train`: train by a named recipe, or by the recipe.json of an earlier run; options and output of `finetune`."""

import os
import shlex
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from vitrine.commands.options import format_percent
from vitrine.core.arguments import parse_options
from vitrine.core.console import format_number, print_lines, print_notice, print_table
from vitrine.core.files import check_output_files, read_json, write_json
from vitrine.recipe import Recipe, parse_recipe, resolve_changes

if TYPE_CHECKING:
    from vitrine.run.folder import RunSummary
    from vitrine.studies.sweeps import LearningRateSearch, TrainResult

USAGE = """usage: vitrine train RECIPE [--out DIR] [--field.name VALUE ...]
       vitrine train --list              list all recipes and their results
       vitrine train RECIPE --help       list the common fields of a recipe and their values; --help-all: all fields

RECIPE is a name from the list, or the recipe.json of an earlier run. The same command again resumes an interrupted run.
Several devices: torchrun --nproc-per-node 8 -m vitrine train RECIPE .."""

SHORT_FORMS = {
    "--lr": "--optim.learning-rate",
    "--batch-size": "--loader.batch-size",
    "--steps": "--total-steps",
    "--workers": "--loader.num-workers",
    "--image-size": "--model.image-size",
    "--subset": "--data.subset",
    "--held-out": "--data.held-out",
    "--precision": "--machine.precision",
}
"""Short forms of the commonest options of `train` and `finetune`."""

# Around the recipe's learning rate in factors of about three, like the grids of table 4.
LR_FACTORS = (0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every field of the recipe is an option of its dotted name.

    Short forms: --lr, --batch-size, --steps, --workers, --image-size, --subset, --held-out and --precision.
    """

    out: Path
    """Folder of the run; an interrupted run of the same recipe in it is resumed."""
    seeds: tuple[int, ...] = ()
    """Train once with each of these seeds, e.g. 0 1 2, and report mean and spread."""
    select_rate: bool = False
    """First choose the learning rate on a held-out part of the training images."""
    rates: tuple[float, ...]
    """Learning rates to choose from."""
    json: Path | None = None
    """Write the results to this file."""
    recipe: Annotated[Recipe, arg(name="")]


def train(arguments: list[str]) -> None:
    """Parse a recipe's name and its options, train, and print the results."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print_lines(*USAGE.splitlines())
        sys.exit(0 if arguments else 2)
    if arguments[0] == "--list":
        list_recipes()
        return
    name, *rest = arguments
    if name.startswith("-"):
        raise ValueError(f"vitrine train {name}: the name of a recipe comes first, e.g. vitrine train RECIPE {name} ..")
    default_recipe, title = find_recipe_or_file(name)
    rates = tuple(float(f"{default_recipe.optim.learning_rate * factor:.6g}") for factor in LR_FACTORS)
    defaults = Options(out=Path("runs") / title, rates=rates, recipe=default_recipe)
    options = parse_options(f"train {name}", Options, rest, defaults, SHORT_FORMS)
    recipe = check_options(options, defaults)

    from vitrine.studies.sweeps import train

    print_result(train(recipe, title=title, base=default_recipe, **list_train_arguments(options)), options)


def list_train_arguments(options: Options) -> dict[str, Any]:
    """Return the arguments of `vitrine.train` that the options stand for."""
    learning_rates = options.rates if options.select_rate else None
    return {"out": options.out, "seeds": options.seeds, "learning_rates": learning_rates}


def find_recipe_or_file(name: str) -> tuple[Recipe, str]:
    """Return the recipe of a name or a JSON file, and the title of its runs."""
    from vitrine.recipes.registry import find_recipe

    if not name.endswith(".json"):
        return find_recipe(name)(), name
    path = Path(name)
    if not path.is_file():
        raise FileNotFoundError(f"{path} not found: give the recipe.json of a run, or a name from `vitrine train --list`.")
    return parse_recipe(read_json(path), name), path.resolve().parent.name


def check_options(options: Options, defaults: Options) -> Recipe:
    """Return the recipe to run, after checking that no option is without effect and that the results can be written."""
    recipe, default = options.recipe, defaults.recipe
    if options.rates != defaults.rates and not options.select_rate:
        raise ValueError("--rates has no effect without --select-rate: add it, or leave --rates out.")
    if options.seeds and recipe.seed != default.seed:
        raise ValueError("--seed and --seeds exclude each other: leave one of them out.")
    if options.select_rate and recipe.optim.learning_rate != default.optim.learning_rate:
        raise ValueError("--optim.learning-rate and --select-rate exclude each other: leave one of them out, or give --rates.")
    if options.select_rate and (recipe.evaluation.patience is not None or recipe.evaluation.few_shot > 0):
        conflict = "--evaluation.patience and --evaluation.few-shot need held-out images"
        raise ValueError(f"{conflict}, but the final run of --select-rate trains on all images: leave out both options.")
    if len(set(options.seeds)) != len(options.seeds):
        raise ValueError(f"--seeds {' '.join(map(str, options.seeds))} must be distinct.")
    check_output_files(options.json)
    return resolve_changes(recipe, default)


def print_result(result: "TrainResult", options: Options) -> None:
    """Print the results of `train` or `finetune` and write them as JSON; an interrupted one ends the program."""
    if is_main() and result.search is not None and result.search.interrupted_by is None:
        print_search(result.search)
    if not result.is_finished:
        stop_here(result.interrupted_by, result.runs[-1] if result.runs else None)
    if is_main():
        print_summaries(result.runs, result.folders)
        if options.json is not None:
            trials = {} if result.search is None else result.search.summaries
            search = {} if result.search is None else {"rates": {f"{lr:g}": trial.best for lr, trial in trials.items()}}
            write_json(options.json, {**search, "runs": [asdict(summary) for summary in result.runs]})


def stop_here(number: int | None, summary: "RunSummary | None" = None) -> None:
    """Say how to resume an interrupted run, and exit with the status of a program that was ended by this signal."""
    if is_main():
        where = "" if summary is None else f" at step {summary.steps} of {summary.total_steps}"
        program = "torchrun .. -m vitrine" if "WORLD_SIZE" in os.environ else "vitrine"
        command = f"{program} {shlex.join(sys.argv[1:])}"
        print_notice(f"Stopped{where} and saved. To resume, run the same command again: {command}")
    sys.exit(128 + (number or signal.SIGINT))


def is_main() -> bool:
    """Return whether this process prints and writes: rank 0 of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def print_search(search: "LearningRateSearch") -> None:
    """Print the held-out accuracy of each learning rate."""
    rows = [
        (f"{lr:g}", format_percent(summary.best), "chosen" if lr == search.best else "")
        for lr, summary in search.summaries.items()
    ]
    print_table(("learning rate", "held-out top-1", ""), rows)


def print_summaries(summaries: "list[RunSummary]", folders: list[Path]) -> None:
    """Print a row for each run, the mean over seeds, and where the models are."""
    from vitrine.evaluation.intervals import compute_spread

    columns = ("seed", "steps", "best validation accuracy", "test top-1", "test top-5", "images", "exaFLOPs", "device-hours")
    rows = [format_summary(summary) for summary in summaries]
    if not any(map(has_useful_top5, folders)):
        hidden = columns.index("test top-5")
        columns, *rows = [(*row[:hidden], *row[hidden + 1 :]) for row in (columns, *rows)]
    print_table(columns, rows)
    accuracies = [summary.test_top1 for summary in summaries if summary.test_top1 is not None]
    if len(accuracies) > 1:
        spread = compute_spread(accuracies)
        print_lines(f"test top-1 over {len(accuracies)} seeds: {100 * spread.mean:.2f} ± {100 * (spread.std or 0.0):.2f} %")
    folder = folders[0] if len(folders) == 1 else folders[0].parent / "seed-*"
    print_lines(f"The model is in {folder / 'model'}, its report in {folder / 'report.html'}.")


def has_useful_top5(folder: Path) -> bool:
    """Return whether a run has so many classes that top-5 is not always 100 %; also if they are not known."""
    from vitrine.evaluation.evaluation_page import shows_top5
    from vitrine.run.folder import RunFolder

    run = RunFolder(folder)
    return not run.data.is_file() or shows_top5(len(run.read_data().splits["train"].class_names))


def format_summary(summary: "RunSummary") -> tuple[str, ...]:
    """Return a run's row of the printed table."""
    best = "" if summary.best is None else f"{format_percent(summary.best)} at step {summary.best_step}"
    return (
        str(summary.seed),
        f"{summary.steps:,}",
        best,
        format_percent(summary.test_top1),
        format_percent(summary.test_top5),
        f"{summary.images:,}",
        format_number(summary.exaflops),
        f"{summary.device_hours:.3g} {summary.device}",
    )


def list_recipes() -> None:
    """Print all recipes, as `vitrine train --list` does."""
    from vitrine.recipes.registry import FINETUNE_RECIPES, RECIPES, summarise_recipe

    finetune = {name: recipe.build for name, recipe in FINETUNE_RECIPES.items()}
    for command, recipes in (("vitrine train NAME", RECIPES), ("vitrine finetune MODEL DATA --recipe NAME", finetune)):
        print_lines(*([""] if recipes is finetune else []), command, "")
        width = max(map(len, recipes)) + 2
        for name, build in recipes.items():
            description, expectation = summarise_recipe(build)
            print_lines(f"{name:<{width}}{description}", f"{'':<{width}}-> {expectation}")

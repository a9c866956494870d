"""`vitrine vtab`: fine-tune a checkpoint on the 19 tasks of VTAB-1k, or on those that are there."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from vitrine.commands.options import format_percent
from vitrine.commands.train import is_main, stop_here
from vitrine.core.arguments import parse_options
from vitrine.core.console import join_names, print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.data.sources.vtab import TASKS, VtabTask, find_task
from vitrine.recipe import Recipe
from vitrine.recipes.registry import short_model_name
from vitrine.studies.vtab.config import VtabConfig

if TYPE_CHECKING:
    from vitrine.studies.vtab.benchmark import Sweep, VtabResult
    from vitrine.studies.vtab.scores import Score, TaskResult

USAGE = """usage: vitrine vtab MODEL ROOT [--seeds 0 1 2] [--sweep] [--generated] [--json FILE] [--field.name VALUE ...]
       vitrine vtab --list                 list the tasks: classes, splits, disabled augmentation
       vitrine vtab MODEL ROOT --help      list the fields of the protocol and their values

MODEL is a folder or file in any known format, or hf://org/name. ROOT contains a dataset for each task, named like the task.
The default protocol is the paper's; the results name every setting that departs from it. The same command again resumes."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every field of the protocol is an option of its dotted name; the results then say that it is not the paper's."""

    out: Path
    """Folder of the runs, the figure vtab.png and all results as vtab.json; finished runs in it are only read."""
    json: Path | None = None
    """Write the results to this file too."""
    suite: Annotated[VtabConfig, arg(name="")]
    recipe: Annotated[Recipe, arg(name="")]


def vtab(arguments: list[str]) -> None:
    """Parse MODEL, ROOT and options, run the tasks, and print accuracies and scores."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print_lines(*USAGE.splitlines())
        sys.exit(0 if arguments else 2)
    if arguments == ["--list"]:
        columns = ("task", "group", "classes", "label", "disabled", "val if missing", "train/val/test", "also called")
        print_table(columns, [describe_task(task) for task in TASKS.values()])
        return
    if len(arguments) < 2 or any(word.startswith("-") for word in arguments[:2]):
        raise ValueError(f"vitrine vtab {' '.join(arguments)}: MODEL and ROOT come first, e.g. vitrine vtab MODEL ROOT ..")
    model, root, *rest = arguments

    from vitrine.studies.vtab.protocol import build_protocol, check_recipe

    protocol = build_protocol(model, root)
    defaults = Options(out=Path("runs") / f"{short_model_name(model)}-vtab", suite=VtabConfig(), recipe=protocol)
    options = parse_options(f"vtab {model} {root}", Options, rest, defaults)
    check_recipe(options.recipe, protocol)
    if options.suite.seeds and options.recipe.seed != protocol.seed:
        raise ValueError("--seed and --seeds exclude each other: leave one of them out.")
    check_output_files(options.json)

    from vitrine.studies.vtab.benchmark import vtab

    result = vtab(model, root, options.out, recipe=options.recipe, **vars(options.suite))
    if is_main() and result.sweep is not None and result.sweep.interrupted_by is None:
        print_sweep(result.sweep)
    if result.interrupted_by is not None:
        stop_here(result.interrupted_by.interrupted_by, result.interrupted_by)
    if is_main():
        print_result(result)
        print_lines(f"The figure is {options.out / 'vtab.png'}, all results are in {options.out / 'vtab.json'}.")
        if options.json is not None:
            write_json(options.json, result.to_json())


def print_sweep(sweep: "Sweep") -> None:
    """Print the accuracy of each setting that was tried."""
    rows = [
        (
            f"{trial['learning_rate']:g}",
            f"{trial['total_steps']:,}",
            format_percent(trial["mean"]),
            "chosen" if trial["is_chosen"] else "",
        )
        for trial in sweep.to_json()
    ]
    print_table(("learning rate", "steps", "mean top-1 on val", ""), rows)
    print_lines("")


def print_result(result: "VtabResult") -> None:
    """Print the accuracies of all tasks, the means of groups, the score, and the protocol."""
    columns = ("task", "group", "classes", "disabled", "train", "test", "top-1", "95 % interval")
    print_table(columns, [format_task(task) for task in result.tasks])
    print_lines("")
    rows = [(score.name, count_tasks(score), format_spread(score)) for score in result.scores]
    print_table(("group", "tasks", "top-1"), rows)
    print_lines("")
    if result.score is None:
        others = ", ".join(f"{score.name} {format_spread(score)}" for score in result.scores)
        print_lines(f"No VTAB score: none of its 19 tasks was run (other means: {others}).")
    else:
        tasks = "all 19 tasks" if result.score.is_complete else f"{count_tasks(result.score)} tasks"
        print_lines(f"VTAB score: {format_spread(result.score)}, the mean of {tasks}.")
    if result.missing:
        print_lines(f"Missing: {join_names(result.missing, len(TASKS))}.")
    print_lines(*result.protocol.splitlines())


def format_task(task: "TaskResult") -> tuple[str, ...]:
    """Return a task's row of the printed table."""
    return (
        task.name,
        task.group,
        str(task.num_classes),
        list_disabled(find_task(task.name)),
        f"{task.num_train_images:,}",
        f"{task.num_test_images:,}",
        format_spread(task),
        "" if task.low is None or task.high is None else f"{100 * task.low:.2f} .. {100 * task.high:.2f} %",
    )


def format_spread(result: "TaskResult | Score") -> str:
    """Return a mean accuracy, with its standard deviation over several seeds."""
    return format_percent(result.mean) if result.std is None else f"{100 * result.mean:.2f} ± {100 * result.std:.2f} %"


def count_tasks(score: "Score") -> str:
    return str(score.num_tasks) if score.num_all is None else f"{score.num_tasks} of {score.num_all}"


def list_disabled(task: VtabTask) -> str:
    """Return the augmentation that would change a task's labels."""
    return ", ".join(name for name, is_on in (("flip", task.flip), ("crop", task.crop)) if not is_on)


def describe_task(task: VtabTask) -> tuple[str, ...]:
    """Return a task's row of `vitrine vtab --list`."""
    val, test = round(100 * task.val_fraction), round(100 * task.test_fraction)
    return (
        task.name,
        task.group,
        str(task.num_classes),
        task.label,
        list_disabled(task),
        "half of test" if task.splits_test else f"{val} % of train",
        f"{100 - val - test}/{val}/{test}",
        ", ".join(task.folders),
    )

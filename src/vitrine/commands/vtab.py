"""`vitrine vtab`: a checkpoint on the 19 tasks of VTAB-1k, or on those of them that there are."""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from vitrine.commands.options import format_percent
from vitrine.commands.train import is_main, stop_here
from vitrine.core.arguments import parse_options
from vitrine.core.console import join_names, print_table
from vitrine.core.files import check_output_files, make_folder, write_json
from vitrine.data.sources.vtab import TASKS, VtabTask, find_task
from vitrine.recipe import Recipe
from vitrine.recipes.registry import short_model_name
from vitrine.studies.vtab.config import VtabConfig

if TYPE_CHECKING:
    from vitrine.studies.vtab.benchmark import Sweep
    from vitrine.studies.vtab.protocol import TaskSurvey
    from vitrine.studies.vtab.scores import Score, TaskResult

USAGE = """usage: vitrine vtab MODEL ROOT [--seeds 0 1 2] [--sweep] [--generated] [--json FILE] [--field.name VALUE ...]
       vitrine vtab --list                 the tasks: classes, splits, and what is not done to their images
       vitrine vtab MODEL ROOT --help      the fields of the protocol and their values

MODEL is a folder or file in any known format, or hf://org/name. ROOT has a folder or a list for each task, called by its name.
The protocol is the paper's; with other fields it is another one, and the results say so. The same command again goes on."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Any field of the protocol can be set by its name; the results then say that it is not the paper's."""

    out: Path
    """A folder for the runs, the figure vtab.png and all results as vtab.json. What is finished there is not run again."""
    json: Path | None = None
    """Write the results to this file too."""
    suite: Annotated[VtabConfig, arg(name="")]
    recipe: Annotated[Recipe, arg(name="")]


def vtab(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    if arguments == ["--list"]:
        list_tasks()
        return
    if len(arguments) < 2 or any(word.startswith("-") for word in arguments[:2]):
        given = " ".join(arguments)
        raise ValueError(f"vitrine vtab {given} was given, and MODEL and ROOT come first: vitrine vtab MODEL ROOT ..")
    model, root, *rest = arguments

    from vitrine.studies.vtab.protocol import build_protocol, check_recipe

    protocol = build_protocol(model, root)
    defaults = Options(out=Path("runs") / f"{short_model_name(model)}-vtab", suite=VtabConfig(), recipe=protocol)
    options = parse_options(f"vtab {model} {root}", Options, rest, defaults)
    check_recipe(options.recipe, protocol)
    if options.suite.seeds and options.recipe.seed != protocol.seed:
        raise ValueError("--seed and --seeds were both given: leave one of them out.")
    check_output_files(options.json)
    run(model, Path(root), options, protocol)


def run(model: str, root: Path, options: Options, protocol: Recipe) -> None:
    from vitrine.core.runtime import start_runtime
    from vitrine.studies.vtab.benchmark import run_suite
    from vitrine.studies.vtab.protocol import find_tasks, list_departures

    survey = find_tasks(root, options.suite, options.out)
    recipe, departures = options.recipe, list_departures(options.recipe, protocol, options.suite, survey.found)
    seeds = options.suite.seeds or (recipe.seed,)
    results: dict[str, Any] = {"model": model, "seeds": list(seeds), "is_paper_protocol": not departures}
    results |= {"departures": departures, "missing": list(survey.missing)}
    with start_runtime(recipe.device):
        if options.suite.sweep:
            recipe, results["sweep"] = choose_setting(recipe, options, survey)
        suite = run_suite(recipe, survey.found, seeds, options.out)
    if suite.interrupted_by is not None:
        stop_here(suite.interrupted_by.interrupted_by, suite.interrupted_by)
    if is_main():
        results |= {"recipe": recipe.to_json(), "protocol": describe_protocol(recipe, departures, options.suite.sweep)}
        report(suite.results, survey, results, options)


def choose_setting(recipe: Recipe, options: Options, survey: "TaskSurvey") -> tuple[Recipe, list[dict[str, Any]]]:
    """The recipe with the rate and length that were best, and what each of them reached."""
    from vitrine.studies.vtab.benchmark import sweep_settings
    from vitrine.studies.vtab.protocol import apply_setting

    make_folder(options.out)
    sweep = sweep_settings(recipe, options.suite, survey.found, options.out / "sweep")
    if sweep.interrupted_by is not None:
        stop_here(sweep.interrupted_by.interrupted_by, sweep.interrupted_by)
    trials = list_trials(sweep)
    if is_main():
        print_table(("learning rate", "steps", "mean top-1 on val", ""), [format_trial(trial) for trial in trials])
        print()
    return apply_setting(recipe, sweep.best), trials


def list_trials(sweep: "Sweep") -> list[dict[str, Any]]:
    return [
        {**asdict(setting), "mean": sum(found) / len(found), "accuracies": list(found), "is_chosen": setting == sweep.best}
        for setting, found in sweep.accuracies.items()
    ]


def format_trial(trial: dict[str, Any]) -> tuple[str, ...]:
    chosen = "chosen" if trial["is_chosen"] else ""
    return (f"{trial['learning_rate']:g}", f"{trial['total_steps']:,}", format_percent(trial["mean"]), chosen)


def describe_protocol(recipe: Recipe, departures: list[str], is_swept: bool) -> str:
    """In a sentence, whether it is the paper's."""
    chosen = " (chosen by the sweep)" if is_swept else ""
    steps = f"{recipe.total_steps:,} steps{chosen} of {recipe.loader.batch_size} images"
    size = "the checkpoint's size" if recipe.model.image_size is None else f"{recipe.model.image_size} px"
    setting = f"rate {recipe.optim.learning_rate:g}, {steps}, {size}"
    if not departures:
        return f"The paper's protocol: {setting}."
    return f"Not the paper's protocol, but {setting}: {'; '.join(departures)}."


def report(tasks: "list[TaskResult]", survey: "TaskSurvey", results: dict[str, Any], options: Options) -> None:
    from vitrine.studies.vtab.scores import compute_scores, draw_scores, find_overall

    scores = compute_scores(tasks)
    overall = find_overall(scores)
    print_results(tasks, scores)
    print(describe_score(overall, scores))
    if survey.missing:
        print(f"Missing: {join_names(survey.missing, len(TASKS))}.")
    print(results["protocol"])
    draw_scores(scores, tasks, short_model_name(results["model"]), results["protocol"], options.out / "vtab.png")
    figures = {"tasks": [asdict(task) for task in tasks], "groups": [asdict(score) for score in scores]}
    for path in (options.out / "vtab.json", options.json):
        if path is not None:
            write_json(path, {**results, **figures, "score": None if overall is None else asdict(overall)})
    print(f"The figure is {options.out / 'vtab.png'}, all of it as JSON in {options.out / 'vtab.json'}.")


def print_results(tasks: "list[TaskResult]", scores: "list[Score]") -> None:
    columns = ("task", "group", "classes", "off", "train", "test", "top-1", "95 % interval")
    print_table(columns, [format_task(task) for task in tasks])
    print()
    print_table(("group", "tasks", "top-1"), [(score.name, count_tasks(score), format_spread(score)) for score in scores])
    print()


def format_task(task: "TaskResult") -> tuple[str, ...]:
    interval = "" if task.low is None or task.high is None else f"{100 * task.low:.2f} .. {100 * task.high:.2f} %"
    counts = (f"{task.num_train_images:,}", f"{task.num_test_images:,}")
    return (
        task.name,
        task.group,
        str(task.num_classes),
        list_off(find_task(task.name)),
        *counts,
        format_spread(task),
        interval,
    )


def format_spread(figure: "TaskResult | Score") -> str:
    return format_percent(figure.mean) if figure.std is None else f"{100 * figure.mean:.2f} ± {100 * figure.std:.2f} %"


def count_tasks(score: "Score") -> str:
    return str(score.num_tasks) if score.num_all is None else f"{score.num_tasks} of {score.num_all}"


def describe_score(overall: "Score | None", scores: "list[Score]") -> str:
    if overall is not None:
        tasks = "all 19 tasks" if overall.is_complete else f"{count_tasks(overall)} tasks"
        return f"VTAB score: {format_spread(overall)}, the mean of {tasks}."
    others = ", ".join(f"{score.name}: {format_spread(score)}, the mean of {score.num_tasks}" for score in scores)
    return f"There is no VTAB score, because none of its 19 tasks was run ({others})."


def list_off(task: VtabTask) -> str:
    return ", ".join(name for name, is_on in (("flip", task.flip), ("crop", task.crop)) if not is_on)


def list_tasks() -> None:
    columns = ("task", "group", "classes", "label", "off", "without val", "undivided", "also called")
    print_table(columns, [describe_task(task) for task in TASKS.values()])


def describe_task(task: VtabTask) -> tuple[str, ...]:
    val, test = round(100 * task.val_fraction), round(100 * task.test_fraction)
    without_val = "half of test" if task.splits_test else f"{val} % of train"
    undivided = f"{100 - val - test}/{val}/{test}"
    return (
        task.name,
        task.group,
        str(task.num_classes),
        task.label,
        list_off(task),
        without_val,
        undivided,
        ", ".join(task.folders),
    )

"""`vitrine finetune`: fine-tune a checkpoint on your images."""

import sys
from dataclasses import dataclass
from pathlib import Path

from vitrine.commands.train import SHORT_FORMS, Options, check_options, list_train_arguments, print_result
from vitrine.core.arguments import HELP, HELP_ALL, parse_known_options, parse_options, replace_options
from vitrine.core.console import print_lines
from vitrine.data.config import DataConfig

USAGE = """usage: vitrine finetune MODEL DATA [--recipe NAME] [--out DIR] [--field.name VALUE ...]
       vitrine finetune MODEL DATA --help    list the common fields of the recipe and their values; --help-all: all fields

MODEL is a folder or file in any known format, or hf://org/name. DATA is a folder of class folders, or any other dataset.
The default recipe, folder, suits a laptop; those of the paper (pets, cifar10, ..) are in `vitrine train --list`."""


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options that change the number of images, on which the defaults of the others depend."""

    data: DataConfig


def finetune(arguments: list[str]) -> None:
    """Parse MODEL, DATA and options, fine-tune, and print the results."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print_lines(*USAGE.splitlines())
        sys.exit(0 if arguments else 2)
    if len(arguments) < 2 or any(word.startswith("-") for word in arguments[:2]):
        raise ValueError(f"vitrine finetune {' '.join(arguments)}: MODEL and DATA come first, vitrine finetune MODEL DATA ..")
    model, data, *rest = arguments
    name, rest = take_recipe(rest)

    from vitrine.recipes.registry import build_finetune_recipe, find_data_once, find_finetune_recipe, name_finetune_run

    rule = find_finetune_recipe(name)
    if (Path(data) / "config.json").is_file():
        raise ValueError(f"{data} is a checkpoint, and MODEL comes before DATA: vitrine finetune {data} {model} ..")
    config = read_data_options(data, rest)
    dataset = find_data_once(config.source)
    title = name_finetune_run(model, data, name)
    base = build_finetune_recipe(name, model, dataset, config)
    defaults = Options(out=Path("runs") / title, rates=rule.learning_rates, recipe=base)
    options = parse_options(f"finetune {model} {data}", Options, rest, defaults, SHORT_FORMS)
    recipe = check_options(options, defaults)

    from vitrine.studies.sweeps import train

    shared = list_train_arguments(options)
    result = train(recipe, held_out=rule.held_out, title=title, dataset=dataset, base=base, **shared)
    print_result(result, options)


def read_data_options(data: str, arguments: list[str]) -> DataConfig:
    """Parse the options of the data alone; mistakes in any option are reported later, when all are parsed."""
    default = DataOptions(data=DataConfig(source=data))
    is_help = not {*HELP, HELP_ALL}.isdisjoint(arguments)
    options = None if is_help else parse_known_options(DataOptions, replace_options(arguments, SHORT_FORMS), default)
    return default.data if options is None else options.data


def take_recipe(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the value of --recipe, by default folder, and the other words."""
    for index, word in enumerate(arguments):
        if word == "--recipe" and index + 1 < len(arguments):
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
        if word.startswith("--recipe="):
            return word.removeprefix("--recipe="), arguments[:index] + arguments[index + 1 :]
    return "folder", arguments

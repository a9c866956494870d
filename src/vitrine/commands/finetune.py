"""`vitrine finetune`: a checkpoint to someone's own images."""

import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from vitrine.commands.training import Options, run_training
from vitrine.core.arguments import parse_options
from vitrine.data.config import DataConfig
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe

if TYPE_CHECKING:
    from vitrine.recipes.finetune import Transfer

USAGE = """usage: vitrine finetune MODEL DATA [--recipe NAME] [--out DIR] [--field.name VALUE ...]
       vitrine finetune MODEL DATA --help    the fields of the recipe and their values

MODEL is a folder or file in any known format, or hf://org/name. DATA is a folder of images by class, or any other data.
--recipe is folder, made for a laptop, unless you name one of the paper's (pets, cifar10, ..): see vitrine train --list."""

NUM_MEASURED = 100  # images whose size is looked at, for rules that go by it


def finetune(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    if len(arguments) < 2 or any(word.startswith("-") for word in arguments[:2]):
        given = " ".join(arguments)
        raise ValueError(f"vitrine finetune {given} was given, and MODEL and DATA come first: vitrine finetune MODEL DATA ..")
    model, data, *rest = arguments
    name, rest = take_recipe(rest)

    from vitrine.recipes.table import find_transfer

    transfer = find_transfer(name)
    usual = describe_usual(model, data)
    command = f"finetune {model} {data}"
    config = usual.data if is_help(rest) else parse_options(command, Options, rest, build_defaults(usual, "", ())).recipe.data
    recipe = transfer.build(describe_transfer(model, config))
    title = f"{Path(model).stem}-{Path(data).stem}-{name}"
    options = parse_options(command, Options, rest, build_defaults(recipe, title, transfer.rates))
    run_training(options, title, transfer.held_out)


def describe_usual(model: str, data: str) -> Recipe:
    """A recipe to read options with as long as it is not known how much data there is."""
    return Recipe(model=ModelSettings(checkpoint=model), data=DataConfig(source=data), epochs=1)


def build_defaults(recipe: Recipe, title: str, rates: tuple[float, ...]) -> Options:
    return Options(out=Path("runs") / title, rates=rates, recipe=recipe)


def is_help(arguments: list[str]) -> bool:
    return "-h" in arguments or "--help" in arguments


def take_recipe(arguments: list[str]) -> tuple[str, list[str]]:
    """The name behind --recipe, and the other words."""
    for place, word in enumerate(arguments):
        if word == "--recipe" and place + 1 < len(arguments):
            return arguments[place + 1], arguments[:place] + arguments[place + 2 :]
        if word.startswith("--recipe="):
            return word.removeprefix("--recipe="), arguments[:place] + arguments[place + 1 :]
    return "folder", arguments


def describe_transfer(model: str, config: DataConfig) -> "Transfer":
    """What a rule may ask of the data, which is opened for it."""
    from vitrine.data.opening import open_configured
    from vitrine.recipes.finetune import Transfer

    train, _ = open_configured(replace(config, in_memory=False))
    step = max(1, len(train) // NUM_MEASURED)
    images = [train.read(index)[0] for index in range(0, len(train), step)][:NUM_MEASURED]
    return Transfer(
        checkpoint=model,
        source=config.source,
        num_images=len(train),
        image_area=int(median(image.height * image.width for image in images)),
        num_classes=len(train.class_names),
    )

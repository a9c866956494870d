"""`vitrine finetune`: a checkpoint to someone's own images."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from vitrine.commands.train import Options, run_training
from vitrine.core.arguments import parse_known_options, parse_options
from vitrine.data.config import BadImages, DataConfig
from vitrine.recipe import Recipe, with_changes

if TYPE_CHECKING:
    from vitrine.data.source import Source
    from vitrine.recipes.finetune import FinetuneTask

USAGE = """usage: vitrine finetune MODEL DATA [--recipe NAME] [--out DIR] [--field.name VALUE ...]
       vitrine finetune MODEL DATA --help    the fields of the recipe and their values

MODEL is a folder or file in any known format, or hf://org/name. DATA is a folder of images by class, or any other data.
--recipe is folder, made for a laptop, unless you name one of the paper's (pets, cifar10, ..): see vitrine train --list."""

HELD_OUT, LEAST_IMAGES = 0.1, 20  # a tenth of fewer says nothing
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

    from vitrine.recipes.registry import find_finetune_recipe

    transfer = find_finetune_recipe(name)
    if (Path(data) / "config.json").is_file():
        raise ValueError(f"{data} is a checkpoint, and MODEL comes before DATA: vitrine finetune {data} {model} ..")
    found = describe_transfer(model, read_data_options(data, rest))
    recipe = keep_some_out(transfer.build(found), found.num_images)
    title = f"{name_model(model)}-{Path(data).resolve().name}-{name}"
    defaults = Options(out=Path("runs") / title, rates=transfer.rates, recipe=recipe)
    options = parse_options(f"finetune {model} {data}", Options, rest, defaults)
    run_training(options, defaults, title, transfer.held_out)


def keep_some_out(recipe: Recipe, num_images: int) -> Recipe:
    """Of data that is not divided, a tenth to measure on: whoever brings a folder of photos wants to know how good it is."""
    from vitrine.data.open_data import find_data

    if find_data(recipe.data.source).splits or num_images < LEAST_IMAGES:
        return recipe
    return with_changes(recipe, data={"held_out": HELD_OUT})


def name_model(model: str) -> str:
    """What to call it in the name of a folder: of a run's result, the run; of a file, what it is without its ending."""
    path = Path(model).resolve()
    if path.name in ("model", "best", "model.safetensors"):
        return path.parent.name
    return path.stem if path.is_file() else path.name


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Those that say how many images there are, of which a rule makes the defaults of the others."""

    data: DataConfig


def read_data_options(data: str, arguments: list[str]) -> DataConfig:
    """What else is among the words, and what is wrong with them, is seen when all are read."""
    usual = DataOptions(data=DataConfig(source=data))
    is_help = bool({"-h", "--help"} & set(arguments))  # which is wanted whatever was typed before it
    found = None if is_help else parse_known_options(DataOptions, arguments, usual)
    return usual.data if found is None else found.data


def take_recipe(arguments: list[str]) -> tuple[str, list[str]]:
    """The name behind --recipe, and the other words."""
    for place, word in enumerate(arguments):
        if word == "--recipe" and place + 1 < len(arguments):
            return arguments[place + 1], arguments[:place] + arguments[place + 2 :]
        if word.startswith("--recipe="):
            return word.removeprefix("--recipe="), arguments[:place] + arguments[place + 1 :]
    return "folder", arguments


def describe_transfer(model: str, config: DataConfig) -> "FinetuneTask":
    """What a rule may ask of the data, which is opened for it."""
    from vitrine.data.open_data import open_train_data
    from vitrine.recipes.finetune import FinetuneTask

    train, _ = open_train_data(replace(config, in_memory=False))
    step = max(1, len(train) // NUM_MEASURED)
    places = range(0, len(train), step)
    areas = [area for area in (measure_area(train, place, config.bad_images) for place in places) if area is not None]
    return FinetuneTask(
        checkpoint=model,
        source=config.source,
        num_images=len(train),
        image_area=int(median(areas or [0])),
        num_classes=len(train.class_names),
    )


def measure_area(source: "Source", place: int, bad_images: BadImages) -> int | None:
    """In pixels; None for an image that cannot be read and is to be skipped."""
    try:
        image = source.read(place)[0]
    except ValueError:
        if bad_images == "error":
            raise
        return None
    return image.height * image.width

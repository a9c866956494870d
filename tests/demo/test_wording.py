"""Options as the command line takes them: what tyro makes of them is the recipe that they were made of."""

from pathlib import Path
from typing import Any

import pytest

from vitrine.commands.training import Options
from vitrine.core.arguments import parse_options
from vitrine.demo.wording import format_option, list_options, word_training, word_transfer
from vitrine.models.settings import ModelSettings
from vitrine.recipe import Recipe, with_changes
from vitrine.recipes.table import RECIPES

CHANGES: list[dict[str, Any]] = [
    {},
    {"model": {"stages": (1, 2), "width_factor": 0.25}},
    {"augment": {"flip": True}, "data": {"in_memory": False, "source": "a folder", "subset": "3/class"}},
    {"total_steps": None, "epochs": 2.5},
    {"optim": {"learning_rate": 1e-05, "decay_at": (0.5,)}, "seed": 3, "device": "cpu"},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_options_make_the_recipe(changes: dict[str, Any]) -> None:
    usual = RECIPES["demo-resnet"]()
    recipe = with_changes(usual, **changes)
    defaults = Options(out=Path("out"), rates=(), recipe=usual)
    words = list_options(usual, recipe)
    assert parse_options("train demo-resnet", Options, words, defaults).recipe == recipe
    assert (words == []) == (changes == {})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("augment.flip", False, ["--augment.no-flip"]),
        ("augment.flip", True, ["--augment.flip"]),
        ("model.stem_stages", [2, 3], ["--model.stem-stages", "2", "3"]),
        ("model.width", None, ["--model.width", "None"]),
        ("data.source", "my photos", ["--data.source", "my photos"]),
    ],
)
def test_an_option_is_as_the_command_line_has_it(name: str, value: object, words: list[str]) -> None:
    assert format_option(name, value) == words


def test_a_command_can_be_typed() -> None:
    usual = Recipe(epochs=1)
    recipe = with_changes(usual, data={"source": "my photos"}, seed=2)
    command = word_training("shapes", usual, recipe, Path("a b"))
    assert command == "vitrine train shapes --data.source 'my photos' --seed 2 --out 'a b'"
    transfer = with_changes(recipe, model=ModelSettings(checkpoint="m"))
    assert (
        word_transfer("folder", transfer, transfer, Path("out")) == "vitrine finetune m 'my photos' --recipe folder --out out"
    )

"""What the search of self-supervision tries: as many values for every start, on held-out images alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.test_data_size_grid import write_data
from vitrine.data.open_data import open_train_data
from vitrine.field_effects import resolve_unused
from vitrine.recipe import Recipe
from vitrine.studies.config import Scale
from vitrine.studies.self_supervision_grid import GRIDS, STARTS, TARGETS, Rate, find_facts
from vitrine.studies.self_supervision_search import MAX_HELD_OUT, TARGET, build_search, hold_out_others, list_tried


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_every_choice_has_the_committed_value_and_no_run_is_tested(scale: Scale) -> None:
    plan = build_search(scale, None)
    assert len(plan.choices) == 2 + 1 + len(STARTS)
    folders: dict[str, Recipe] = {}
    for choice in plan.choices:
        assert choice.committed in choice.values
        for value in choice.values:
            runs = choice.build(value)
            measured = [run for run in runs if run.folder not in {each.start for each in runs}]
            assert len(measured) == 3  # pre-training does not count, only what fine-tuning makes of it
            for run in runs:
                resolve_unused(run.recipe)
                assert (run.recipe.evaluation.test, run.recipe.evaluation.num_times, run.recipe.seed) == (False, 1, 0)
                assert folders.setdefault(run.folder, run.recipe) == run.recipe  # the same folder is the same run
                assert run.recipe.model.checkpoint == run.start


def test_no_start_has_more_values_than_another() -> None:
    for family, num_choices in (("pre-training", 2), ("fine-tuning", 3)):
        choices = [choice for choice in build_search("small", None).choices if choice.family == family]
        assert len(choices) == num_choices
        assert len({choice.values for choice in choices}) == 1


def test_targets_have_pre_training_of_their_own() -> None:
    (choice,) = [choice for choice in build_search("small", None).choices if choice.name == TARGET]
    assert choice.values == TARGETS
    first = [choice.build(target)[0] for target in TARGETS]
    assert [run.recipe.masked_patches.target for run in first] == [*TARGETS]
    assert len({run.folder for run in first}) == 3


@pytest.mark.parametrize(("num_images", "num_held"), [(50, 1387), (1000, 437)])
def test_digits_that_are_not_trained_on_are_held_out(num_images: int, num_held: int) -> None:
    choice = build_search("small", None).choices[-1]
    (recipe,) = [run.recipe for run in choice.build(1e-3) if f"-on-{num_images}-" in run.folder]
    train, held_out = open_train_data(recipe.data)
    assert held_out is not None
    assert (len(train), len(held_out)) == (num_images, num_held)


def test_of_own_data_some_images_are_held_out(tmp_path: Path) -> None:
    grid = GRIDS["tiny"]
    data = write_data(tmp_path / "own.npz", ("train", "test"), num_images=3000)
    facts = find_facts(grid, data)
    (recipe, *_) = [run.recipe for run in build_search("tiny", data).choices[-1].build(1e-3) if run.start is not None]
    train, held_out = open_train_data(recipe.data)
    assert held_out is not None
    assert (len(train), len(held_out)) == (6, MAX_HELD_OUT)
    with pytest.raises(ValueError, match="3,000"):
        hold_out_others(facts, recipe.data, 3000)


def test_what_was_tried_is_listed() -> None:
    grid = GRIDS["tiny"]
    scratch, masked, labels = grid.starts
    starts = (replace(scratch, finetune_rate=Rate(value=4e-3, tried=(2e-3, 4e-3))), masked, labels)
    grid = replace(grid, starts=starts, targets_tried=TARGETS)
    facts = find_facts(grid, None)
    assert [(each.name, each.chosen, each.tried) for each in list_tried(grid, facts)] == [
        ("learning rate of fine-tuning, from scratch", "0.004", ("0.002", "0.004")),
        (TARGET, "mean-colour", TARGETS),
    ]
    assert list_tried(grid, replace(facts, is_default=False)) == ()  # settings were chosen for the digits

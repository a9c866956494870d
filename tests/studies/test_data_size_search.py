"""What the search of data-size tries: the committed values among others, on held-out images alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.studies.test_data_size_grid import write_data
from vitrine.data.open_data import open_train_data
from vitrine.field_effects import resolve_unused
from vitrine.studies.data_size_grid import GRIDS, PLAIN, REGULARISATIONS, find_facts
from vitrine.studies.data_size_search import build_search, list_tried


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_every_choice_has_the_committed_value_and_no_run_is_tested(scale: str) -> None:
    plan = build_search(scale, None)  # type: ignore[arg-type]
    grid = GRIDS[scale]  # type: ignore[index]
    assert len(plan.choices) == 2 * len(grid.models) + 2 * len(grid.sizes)
    folders: dict[str, object] = {}
    for choice in plan.choices:
        assert choice.committed in choice.values
        for run in (*choice.prepare, *(run for value in choice.values for run in choice.build(value))):
            resolve_unused(run.recipe)
            assert not run.recipe.evaluation.test
            assert run.recipe.seed == 0
            assert folders.setdefault(run.folder, run.recipe) == run.recipe  # the same folder is the same run
            assert run.start is None or run.start in {each.folder for each in choice.prepare}


def test_rates_are_compared_on_some_numbers_of_images_and_all() -> None:
    (choice,) = [each for each in build_search("small", None).choices if each.name == "learning rate of ViT"]
    runs = choice.build(0.5)
    assert [run.recipe.optim.learning_rate for run in runs] == [0.5] * 3
    assert [run.recipe.data.subset for run in runs] == ["512", "8192", "all"]


def test_at_most_four_regularisations_are_compared() -> None:
    choices = [each for each in build_search("small", None).choices if each.name.startswith("regularisation")]
    assert len(REGULARISATIONS) <= 4
    assert {choice.values for choice in choices} == {tuple(REGULARISATIONS)}
    assert len(choices) == 2 * len(GRIDS["small"].sizes)


def test_fine_tuning_is_chosen_on_digits_that_the_study_does_not_train_on() -> None:
    choice = next(each for each in build_search("small", None).choices if each.name.endswith("on digits"))
    (run,) = choice.build(1e-3)
    train, held_out = open_train_data(run.recipe.data)
    assert held_out is not None
    assert 95 <= len(train) <= 105
    assert len(held_out) > 1300


def test_own_data_has_learning_rates_alone(tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train", "test"))
    assert len(build_search("tiny", data).choices) == len(GRIDS["tiny"].models)


def test_nothing_was_tried_on_own_data(tmp_path: Path) -> None:
    data = write_data(tmp_path / "own.npz", ("train", "test"))
    grid = GRIDS["small"]
    assert list_tried(grid, find_facts(grid, None)) != ()
    assert list_tried(grid, find_facts(grid, data)) == ()


def test_what_was_tried_is_listed() -> None:
    grid = GRIDS["tiny"]
    first = replace(grid.models[0], rates_tried=(2e-3, 4e-3), finetune_rates_tried=(1e-3,), regularised=("decay", PLAIN))
    grid = replace(grid, models=(first, *grid.models[1:]))
    tried = list_tried(grid, find_facts(grid, None))
    assert [(each.name, each.chosen, each.tried) for each in tried] == [
        ("learning rate of ViT, half width", "0.004", ("0.002", "0.004")),
        ("learning rate of ViT, half width on digits", "0.002", ("0.001",)),
        ("regularisation of ViT, half width on 20 images", "decay", tuple(REGULARISATIONS)),
        ("regularisation of ViT, half width on 100 images", "none", tuple(REGULARISATIONS)),
    ]

"""The recipes of self-supervision: both kinds of pre-training differ in nothing but objective and learning rate."""

from typing import get_args

import pytest

from vitrine.field_effects import resolve_unused
from vitrine.recipe import list_fields
from vitrine.studies.config import Scale
from vitrine.studies.self_supervision import build
from vitrine.studies.self_supervision_grid import LABELS, MASKED, SCRATCH, STARTS
from vitrine.studies.study import StudyPlan

FREE_BEFORE = ("objective", "masked_patches.", "optim.learning_rate")
FREE = ("model.", "optim.learning_rate", "data.subset", "data.subset_seed", "seed")


def list_differences(plan: StudyPlan, kind: str, free: tuple[str, ...], starts: tuple[str, ...] = STARTS) -> set[str]:
    """Return the fields that differ between the runs of a kind, besides those that may."""
    runs = [run for run in plan.runs if run.columns["kind"] == kind and run.columns["start"] in starts]
    assert len(runs) > 1
    first, *others = [dict(list_fields(run.recipe.to_json())) for run in runs]
    return {name for other in others for name in first if first[name] != other[name] and not name.startswith(free)}


@pytest.mark.parametrize("scale", ["tiny", "small"])
def test_runs_differ_only_in_what_is_compared(scale: Scale) -> None:
    plan = build(scale, None, (0, 1))
    assert list_differences(plan, "pre-training", (*FREE_BEFORE, "seed")) == set()
    assert list_differences(plan, "fine-tuning", FREE) == set()


def test_every_start_of_the_paper_has_table_4_s_fine_tuning() -> None:
    assert list_differences(build("paper", None, (0, 1)), "fine-tuning", ("model.checkpoint", *FREE[2:])) == set()


@pytest.mark.parametrize("scale", get_args(Scale))
def test_no_setting_of_a_recipe_is_without_effect(scale: Scale) -> None:
    for run in build(scale, None, ()).runs:
        resolve_unused(run.recipe)


@pytest.mark.parametrize("scale", get_args(Scale))
def test_runs_draw_no_pages(scale: Scale) -> None:
    assert not any(run.recipe.report.page for run in build(scale, None, ()).runs)


def test_test_images_are_seen_after_fine_tuning_alone() -> None:
    for run in build("small", None, (0,)).runs:
        is_tuned = run.columns["kind"] == "fine-tuning"
        assert (run.recipe.evaluation.test, run.recipe.evaluation.num_times) == (is_tuned, 0 if is_tuned else 1)
        assert run.columns["num_evaluated"] == (2 * 360 if is_tuned else 5_000)


def test_the_paper_s_pre_training_is_that_of_its_recipes() -> None:
    runs = [run for run in build("paper", None, (3,)).runs if run.columns["kind"] == "pre-training"]
    recipes = {(run.columns["start"], run.columns["num_images"]): run.recipe for run in runs}
    assert len(recipes) == len(runs) == 5
    masked, labels = recipes[MASKED, None], recipes[LABELS, None]
    assert (masked.objective, masked.total_steps, masked.optim.learning_rate) == ("masked-patches", 1_000_000, 2e-4)
    assert (labels.objective, labels.total_steps, labels.optim.learning_rate) == ("supervised", 517_822, 8e-4)
    few, every = recipes[SCRATCH, 12_812], recipes[SCRATCH, 1_281_167]
    assert few.total_steps == every.total_steps == round(300 * 1_281_167 / 4096)
    assert (few.data.subset, few.data.subset_seed, few.seed) == ("1%", 3, 3)
    assert (every.data.source, every.data.subset) == ("imagenet", "all")

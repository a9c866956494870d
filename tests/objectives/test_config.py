"""Settings of objectives, and which settings of a recipe each objective accepts."""

from dataclasses import fields
from typing import Any, get_args

import pytest

from vitrine.evaluation.evaluators import EVALUATORS
from vitrine.models.settings import ModelSettings
from vitrine.objectives.config import OBJECTIVES, MaskedPatchesConfig, ObjectiveKind, SupervisedConfig
from vitrine.objectives.objective import Objective, load_objective_class
from vitrine.recipe import Recipe


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"loss": "hinge"}, "hinge"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"loss": "sigmoid", "label_smoothing": 0.1}, "softmax"),
    ],
)
def test_wrong_settings_of_supervised_learning_are_rejected(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SupervisedConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"target": "colour"}, "colour"),
        ({"corrupted_rate": 1.5}, "corrupted_rate=1.5"),
        ({"masked_rate": -0.1}, "masked_rate=-0.1"),
        ({"masked_rate": 0.8, "replaced_rate": 0.3}, "replaced_rate=0.3"),
    ],
)
def test_wrong_settings_of_masked_patches_are_rejected(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        MaskedPatchesConfig(**settings)


def test_every_objective_of_a_recipe_is_in_the_table() -> None:
    assert set(OBJECTIVES) == set(get_args(ObjectiveKind))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_rows_of_the_table_refer_to_what_exists(name: ObjectiveKind) -> None:
    spec = OBJECTIVES[name]
    assert issubclass(load_objective_class(name), Objective)
    assert set(spec.recipe_fields) <= {field.name for field in fields(Recipe)}
    assert set(spec.evaluators) <= set(EVALUATORS)


CHECKPOINT = ModelSettings(checkpoint="somewhere")


def test_a_fitted_head_needs_the_softmax_loss() -> None:
    with pytest.raises(ValueError, match="sigmoid"):
        Recipe(epochs=1, model=CHECKPOINT, head_init="ridge", supervised=SupervisedConfig(loss="sigmoid"))

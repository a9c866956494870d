"""Settings of evaluation that cannot be are refused before anything is loaded."""

import re
from dataclasses import FrozenInstanceError

import pytest

from vitrine.evaluate.config import EvaluationConfig

NEEDS_EVALUATIONS = "evaluation.patience and evaluation.few_shot need evaluations: raise evaluation.num_times."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_times": -1}, "num_times=-1 must be at least 0."),
        ({"num_times": 2.5}, "num_times=2.5 must be a whole number."),
        ({"num_times": True}, "num_times=True must be a whole number."),
        ({"batch_size": 0}, "batch_size=0 must be at least 1."),
        ({"batch_size": None}, "batch_size=None must be a whole number."),
        ({"resize": 0}, "evaluation.resize=0 must be at least 1."),
        ({"resize": "256"}, "resize='256' must be a whole number."),
        ({"patience": -1}, "evaluation.patience=-1 must be at least 0."),
        ({"few_shot": -5}, "few_shot=-5 must be at least 0."),
        ({"test": 1}, "test=1 must be True or False."),
        ({"num_times": 0, "patience": 3}, NEEDS_EVALUATIONS),
        ({"num_times": 0, "patience": 0}, NEEDS_EVALUATIONS),
        ({"num_times": 0, "few_shot": 5}, NEEDS_EVALUATIONS),
    ],
)
def test_wrong_settings_cost_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EvaluationConfig(**settings)


def test_settings_at_their_limits_are_taken() -> None:
    assert EvaluationConfig(num_times=0, test=False).patience is None
    assert EvaluationConfig(num_times=1, patience=0, few_shot=1, batch_size=1, resize=1).num_times == 1


def test_settings_are_frozen_and_named() -> None:
    config = EvaluationConfig()
    with pytest.raises(FrozenInstanceError):
        config.num_times = 3  # pyright: ignore
    with pytest.raises(TypeError):
        EvaluationConfig(3)

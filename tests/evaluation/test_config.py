"""Settings of evaluation that cannot be are refused before anything is loaded."""

import re
from dataclasses import FrozenInstanceError

import pytest

from vitrine.evaluation.config import EvaluationConfig, InferenceConfig, ProbeConfig

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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1."),
        ({"batch_size": 1.0}, "batch_size=1.0 must be a whole number."),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0."),
        ({"num_workers": "2"}, "num_workers='2' must be a whole number."),
        ({"bad_images": "hide"}, "bad_images='hide' must be one of error, skip."),
    ],
)
def test_wrong_ways_to_read_cost_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        InferenceConfig(**settings)


PENALTIES = "must be one or more numbers above 0, as 0.01 0.1."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalties": ()}, f"penalties=() {PENALTIES}"),
        ({"penalties": (0.1, 0.0)}, f"penalties=(0.1, 0.0) {PENALTIES}"),
        ({"penalties": (-1.0,)}, f"penalties=(-1.0,) {PENALTIES}"),
        ({"penalties": (float("nan"),)}, f"penalties=(nan,) {PENALTIES}"),
        ({"choice_share": 0.0}, "choice_share=0.0 must be above 0 and below 1, as 0.2."),
        ({"choice_share": 1.0}, "choice_share=1.0 must be above 0 and below 1, as 0.2."),
        ({"choice_share": float("nan")}, "choice_share=nan must be a number."),
        ({"num_neighbours": 0}, "num_neighbours=0 must be at least 1."),
        ({"num_neighbours": 2.5}, "num_neighbours=2.5 must be a whole number."),
        ({"temperature": 0.0}, "temperature=0.0 must be above 0."),
        ({"temperature": float("inf")}, "temperature=inf must be a number."),
        ({"seed": -1}, "seed=-1 must be at least 0."),
    ],
)
def test_wrong_probes_cost_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ProbeConfig(**settings)


def test_settings_of_measuring_at_their_limits_are_taken() -> None:
    assert InferenceConfig(batch_size=1, num_workers=0, bad_images="skip").num_workers == 0
    assert InferenceConfig() == InferenceConfig(batch_size=64, num_workers=None, bad_images="error")
    assert ProbeConfig(penalties=(1e-9,), choice_share=0.999, num_neighbours=1, temperature=1e-3, seed=0).seed == 0


def test_the_neighbours_are_dino_s() -> None:
    assert (ProbeConfig().num_neighbours, ProbeConfig().temperature) == (20, 0.07)

"""Checks of the evaluation configs."""

import re
from dataclasses import FrozenInstanceError

import pytest

from vitrine.evaluation.config import EvaluationConfig, InferenceConfig, ProbeConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_times": -1}, "num_times=-1"),
        ({"num_times": 2.5}, "num_times=2.5"),
        ({"num_times": True}, "num_times=True"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": None}, "batch_size=None"),
        ({"resize": 0}, "evaluation.resize=0"),
        ({"resize": "256"}, "resize='256'"),
        ({"patience": -1}, "evaluation.patience=-1"),
        ({"few_shot": -5}, "few_shot=-5"),
        ({"test": 1}, "test=1"),
        ({"num_times": 0, "patience": 3}, "evaluation.num_times"),
        ({"num_times": 0, "patience": 0}, "evaluation.num_times"),
        ({"num_times": 0, "few_shot": 5}, "evaluation.num_times"),
    ],
)
def test_wrong_evaluation_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EvaluationConfig(**settings)


def test_evaluation_settings_at_their_limits() -> None:
    assert EvaluationConfig(num_times=0, test=False).patience is None
    assert EvaluationConfig(num_times=1, patience=0, few_shot=1, batch_size=1, resize=1).num_times == 1


def test_configs_are_frozen_and_keyword_only() -> None:
    config = EvaluationConfig()
    with pytest.raises(FrozenInstanceError):
        config.num_times = 3  # pyright: ignore
    with pytest.raises(TypeError):
        EvaluationConfig(3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1.0}, "batch_size=1.0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": "2"}, "num_workers='2'"),
        ({"bad_images": "hide"}, "bad_images='hide'"),
    ],
)
def test_wrong_inference_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        InferenceConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalties": ()}, "penalties=()"),
        ({"penalties": (0.1, 0.0)}, "penalties=(0.1, 0.0)"),
        ({"penalties": (-1.0,)}, "penalties=(-1.0,)"),
        ({"penalties": (float("nan"),)}, "penalties=(nan,)"),
        ({"choice_share": 0.0}, "choice_share=0.0"),
        ({"choice_share": 1.0}, "choice_share=1.0"),
        ({"choice_share": float("nan")}, "choice_share=nan"),
        ({"num_neighbours": 0}, "num_neighbours=0"),
        ({"num_neighbours": 2.5}, "num_neighbours=2.5"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": float("inf")}, "temperature=inf"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_wrong_probe_settings_are_rejected(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        ProbeConfig(**settings)


def test_inference_and_probe_settings_at_their_limits() -> None:
    assert InferenceConfig(batch_size=1, num_workers=0, bad_images="skip").num_workers == 0
    assert InferenceConfig() == InferenceConfig(batch_size=64, num_workers=None, bad_images="error")
    assert ProbeConfig(penalties=(1e-9,), choice_share=0.999, num_neighbours=1, temperature=1e-3, seed=0).seed == 0


def test_neighbours_default_to_dino_settings() -> None:
    assert (ProbeConfig().num_neighbours, ProbeConfig().temperature) == (20, 0.07)

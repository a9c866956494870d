"""Wrong settings are rejected, with the value in the message."""

import re
from dataclasses import FrozenInstanceError

import pytest

from vitrine.training.config import MachineConfig, OptimConfig, ReportConfig, SavingConfig

Config = type[OptimConfig] | type[MachineConfig] | type[SavingConfig] | type[ReportConfig]

MISTAKES: dict[Config, list[tuple[dict[str, object], str]]] = {
    OptimConfig: [
        ({"learning_rate": 0}, "learning_rate=0 must be above 0."),
        ({"learning_rate": float("nan")}, "learning_rate=nan must be a number."),
        ({"learning_rate": float("inf")}, "learning_rate=inf must be a number."),
        ({"weight_decay": -1}, "weight_decay=-1 must be at least 0."),
        ({"beta2": 1.0}, "beta2=1.0 must be at least 0 and below 1."),
        ({"kind": "adam"}, "kind='adam' must be one of adamw, sgd."),
        ({"decay": "poly"}, "decay='poly' must be one of constant, linear"),
        ({"layer_decay": 1.5}, "layer_decay=1.5 must be at most 1"),
        ({"decay_at": (0.3, 1.2)}, "decay_at=(0.3, 1.2)"),
        ({"decay_at": [0.3]}, "decay_at=[0.3]"),
        ({"decay_at": (0.6, 0.3)}, "decay_at=(0.6, 0.3)"),
        ({"frozen_blocks": -2}, "frozen_blocks=-2 must be at least -1."),
        ({"max_grad_norm": 0.0}, "max_grad_norm=0.0 must be above 0."),
    ],
    MachineConfig: [
        ({"precision": "float8"}, "precision='float8' must be one of auto, float32, bfloat16, float16."),
        ({"sharding": "zero"}, "sharding='zero' must be one of ddp, fsdp."),
        ({"compile": "yes"}, "compile='yes' must be True or False."),
        ({"gradient_checkpointing": 1}, "gradient_checkpointing=1 must be True or False."),
        ({"accumulation_steps": 0}, "accumulation_steps=0 must be at least 1."),
        ({"accumulation_steps": 2.0}, "accumulation_steps=2.0 must be a whole number."),
    ],
    SavingConfig: [
        ({"every_minutes": 0}, "every_minutes=0 must be above 0."),
        ({"every_minutes": float("inf")}, "every_minutes=inf must be a number."),
        ({"every_minutes": None}, "every_minutes=None must be a number."),
        ({"every_steps": 0}, "every_steps=0 must be above 0."),
        ({"every_steps": 1.5}, "every_steps=1.5 must be a whole number."),
        ({"keep_last": 0}, "keep_last=0 must be at least 1."),
    ],
    ReportConfig: [
        ({"every_steps": 0}, "every_steps=0 must be at least 1."),
        ({"every_steps": None}, "every_steps=None must be a whole number."),
        ({"tensorboard": "on"}, "tensorboard='on' must be True or False."),
    ],
}


@pytest.mark.parametrize(
    ("config", "settings", "message"), [(config, *mistake) for config, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_wrong_settings_are_rejected(config: Config, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        config(**settings)


@pytest.mark.parametrize("config", MISTAKES)
def test_settings_are_frozen_and_named(config: Config) -> None:
    name = next(iter(config.__dataclass_fields__))
    with pytest.raises(FrozenInstanceError):
        setattr(config(), name, None)
    with pytest.raises(TypeError):
        config(1)


def test_settings_at_their_limits_are_accepted() -> None:
    assert SavingConfig(every_minutes=0.01, every_steps=1, keep_last=1).keep_last == 1
    assert SavingConfig().every_steps is None
    assert MachineConfig(precision="bfloat16", sharding="fsdp", accumulation_steps=1).compile is False


def test_warm_up_and_cooldown_must_fit() -> None:
    OptimConfig(warmup_steps=5, cooldown_steps=4).check_total_steps(10)
    with pytest.raises(ValueError, match=r"warmup_steps=5.*cooldown_steps=5.*total_steps=10"):
        OptimConfig(warmup_steps=5, cooldown_steps=5).check_total_steps(10)

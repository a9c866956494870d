"""Settings that cannot be are refused before anything is loaded."""

import pytest

from vitrine.train.config import OptimConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0}, r"learning_rate=0 must be above 0"),
        ({"weight_decay": -1}, r"weight_decay=-1 must be at least 0"),
        ({"beta2": 1.0}, r"beta2=1.0 must be at least 0 and below 1"),
        ({"kind": "adam"}, r"kind='adam' must be one of adamw, sgd"),
        ({"decay": "poly"}, r"decay='poly' must be one of constant, linear"),
        ({"layer_decay": 1.5}, r"layer_decay=1.5 must be at most 1"),
        ({"decay_at": (0.3, 1.2)}, r"decay_at=\(0.3, 1.2\) must be shares"),
        ({"decay_at": (0.6, 0.3)}, r"must rise from one share to the next"),
        ({"frozen_blocks": -2}, r"frozen_blocks=-2 must be at least -1"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm=0.0 must be above 0"),
    ],
)
def test_wrong_settings_cost_a_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OptimConfig(**settings)


def test_warm_up_and_cooldown_must_fit() -> None:
    OptimConfig(warmup_steps=5, cooldown_steps=4).require_room(10)
    with pytest.raises(ValueError, match=r"warmup_steps=5 and cooldown_steps=5 leave nothing of total_steps=10"):
        OptimConfig(warmup_steps=5, cooldown_steps=5).require_room(10)

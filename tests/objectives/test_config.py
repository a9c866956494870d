"""Settings that cannot be are refused."""

import pytest

from vitrine.objectives.config import SupervisedConfig


def test_wrong_settings_cost_a_sentence() -> None:
    with pytest.raises(ValueError, match="loss='hinge' must be one of softmax, sigmoid"):
        SupervisedConfig(loss="hinge")
    with pytest.raises(ValueError, match=r"label_smoothing=1.0 must be at least 0 and below 1"):
        SupervisedConfig(label_smoothing=1.0)
    with pytest.raises(ValueError, match=r"belongs to loss='softmax'"):
        SupervisedConfig(loss="sigmoid", label_smoothing=0.1)

"""The same network in another form gives the same numbers."""

import pytest
import torch

from tests.filling import build_filled
from tests.formats.cases import SMALL, run
from vitrine.formats.folding import TABLE, as_table, with_rows, without_rows
from vitrine.models.config import Position, ViTConfig
from vitrine.models.registry import build_model


@pytest.mark.parametrize("position", ["none", "learned-1d", "learned-2d", "sincos-2d"])
@pytest.mark.parametrize("class_position", [None, False])
@pytest.mark.parametrize("fold", [with_rows, without_rows, lambda config, state: (config, state)])
def test_logits_stay(position: Position, class_position: bool | None, fold: object, tmp_path: object) -> None:
    config = ViTConfig(**{**SMALL, "image_size": (12, 20)}, position=position, class_position=class_position, num_classes=3)
    model = build_filled(config)
    folded_config, state = fold(*as_table(model))
    assert folded_config.position == "learned-1d"
    folded = build_model(folded_config).eval()
    folded.load_state_dict(state)
    torch.testing.assert_close(run(folded), run(model), rtol=1e-6, atol=1e-6)


def test_both_readout_tokens_are_folded() -> None:
    model = build_filled(ViTConfig(**SMALL, distillation_token=True))
    config, state = without_rows(*as_table(model))
    old = model.state_dict()
    assert config.num_position_rows == 0
    torch.testing.assert_close(state["class_token"], old["class_token"] + old[TABLE][:1])
    torch.testing.assert_close(state["distillation_token"], old["distillation_token"] + old[TABLE][1:2])


def test_the_model_itself_is_left_alone() -> None:
    model = build_filled(ViTConfig(**SMALL))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    without_rows(*as_table(model))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_nothing_to_do_changes_nothing() -> None:
    model = build_filled(ViTConfig(**SMALL))
    config, state = with_rows(*as_table(model))
    assert config is model.config
    assert state[TABLE].data_ptr() == model.state_dict()[TABLE].data_ptr()

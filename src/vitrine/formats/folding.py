"""The same network in another form: positions as one table, with or without rows for the readout tokens.

Formats differ in where the class token's position is. Added to the token itself it does the same, so a row can be folded
into the token, and a token without one can be given a row of zeros (big_vision does the former with old checkpoints).
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrine.models.config import ViTConfig
from vitrine.models.model import Model
from vitrine.models.positions import AddedPositions

TABLE = "positions.0.table"
State = dict[str, Tensor]


def as_table(model: Model[Any]) -> tuple[ViTConfig, State]:
    """Positions of any kind that is added at the stem, or none, as one learned table."""
    config, state = model.config, dict(model.state_dict())
    assert isinstance(config, ViTConfig)
    if config.position == "learned-1d":
        return config, state
    like = state["patches.projection.weight"]
    state = {name: tensor for name, tensor in state.items() if not name.startswith("positions.")}
    if config.position == "none":
        table = like.new_zeros(config.num_position_rows + config.num_patches, config.width)
    else:
        positions = model.get_submodule("positions.0")
        assert isinstance(positions, AddedPositions)
        table = positions.compute_table(like).detach()
    state[TABLE] = table
    # sin-cos and no positions give the readout tokens no row; learned-1d would by itself.
    return replace(config, position="learned-1d", class_position=config.num_position_rows > 0), state


def with_rows(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """A row for each readout token, zeros where there was none."""
    missing = config.num_readout_tokens - config.num_position_rows
    if missing == 0:
        return config, state
    table = state[TABLE]
    padded = torch.cat([table.new_zeros(missing, config.width), table])
    return replace(config, class_position=None), {**state, TABLE: padded}


def without_rows(config: ViTConfig, state: State) -> tuple[ViTConfig, State]:
    """Positions of readout tokens added to the tokens themselves."""
    num_rows = config.num_position_rows
    if num_rows == 0:
        return config, state
    rows, patches = state[TABLE][:num_rows], state[TABLE][num_rows:]
    state = {**state, TABLE: patches, "class_token": state["class_token"] + rows[:1]}
    if num_rows > 1:
        state["distillation_token"] = state["distillation_token"] + rows[1:]
    return replace(config, class_position=False), state

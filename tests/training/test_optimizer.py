"""Groups by closed forms, steps against torch and the formulas of the released code."""

from typing import Any

import pytest
import torch
from torch import nn

from vitrine.models.registry import build_model
from vitrine.training.config import OptimConfig
from vitrine.training.optimizer import build_groups, build_optimizer, clip_gradients, freeze, set_lr

SMALL = {"width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "image_size": 32, "num_classes": 5}


def build_small(name: str = "ViT-Ti/16", **changes: object) -> nn.Module:
    return build_model(name, **(SMALL | changes))


def find_groups(module: nn.Module, config: OptimConfig) -> dict[str, tuple[Any, Any]]:
    """From the name of each trained parameter to its share of the rate and its decay."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = build_groups(module, config)
    return {names[id(each)]: (group["lr_scale"], group["weight_decay"]) for group in groups for each in group["params"]}


def test_kernels_decay_and_nothing_else() -> None:
    model = build_small(num_registers=2)
    found = find_groups(model, OptimConfig(weight_decay=0.3))
    assert len(found) == len(list(model.parameters()))
    decaying = {name for name, (_, decay) in found.items() if decay == 0.3}
    assert decaying == {name for name, value in model.named_parameters() if value.ndim > 1} - {
        "class_token",
        "positions.0.table",
        "registers",
    }


def test_all_decay_if_so_wished() -> None:
    found = find_groups(build_small(), OptimConfig(weight_decay=0.3, decay_mask="all"))
    assert {decay for _, decay in found.values()} == {0.3}


def test_kernels_of_a_resnet_are_its_convolutions_and_its_head() -> None:
    with torch.device("meta"):
        model = build_model("R50x1", num_classes=5)
    found = find_groups(model, OptimConfig())
    for name, value in model.named_parameters():
        assert (found[name][1] > 0) == (value.ndim > 1), name


@pytest.mark.parametrize("prefix", ["", "encoder."])
def test_rates_fall_from_block_to_block(prefix: str) -> None:
    model: nn.Module = build_small()
    if prefix:
        model = nn.ModuleDict({"encoder": model})
    scales = {name.removeprefix(prefix): scale for name, (scale, _) in find_groups(model, OptimConfig(layer_decay=0.5)).items()}
    assert scales["head.weight"] == scales["norm.weight"] == 1.0
    for name, scale in scales.items():
        layer = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else 4 if name.startswith(("head", "norm")) else 0
        assert scale == 0.5 ** (4 - layer), name


def test_a_step_of_adamw_is_the_paper_s_convention() -> None:
    """Weights lose rate x decay of themselves, and move by the rate: p - lr * (sign of the gradient + wd * p) at the first."""
    layer = nn.Linear(1, 1)
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(2.0)
    optimizer = build_optimizer(layer, OptimConfig(learning_rate=0.1, weight_decay=0.3))
    set_lr(optimizer, 0.01)
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert layer.weight.item() == pytest.approx(2.0 - 0.01 * (1.0 + 0.3 * 2.0), abs=1e-6)
    assert layer.bias.item() == pytest.approx(2.0 - 0.01, abs=1e-6)


def test_sgd_is_torch_s() -> None:
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    config = OptimConfig(kind="sgd", learning_rate=0.1, weight_decay=0.0, momentum=0.9)
    optimizers = build_optimizer(ours, config), torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for model, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            model(torch.full((1, 3), float(step + 1))).square().sum().backward()
            if optimizer is optimizers[0]:
                set_lr(optimizer, 0.1)
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_clipping_is_torch_s() -> None:
    for max_norm in (0.5, 1e9, None):
        ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
        theirs.load_state_dict(ours.state_dict())
        for model in (ours, theirs):
            model(torch.ones(1, 3)).square().sum().backward()
        norm = clip_gradients(ours, max_norm)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), float("inf") if max_norm is None else max_norm)
        torch.testing.assert_close(norm, expected)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_freezing_leaves_the_upper_part() -> None:
    model = build_small()
    freeze(model, OptimConfig(frozen_blocks=2))
    trained = {".".join(name.split(".")[:2]) for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {"blocks.2", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    freeze(model, OptimConfig(frozen_blocks=-1))
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match=r"frozen_blocks=4 is more than the 3 blocks"):
        freeze(model, OptimConfig(frozen_blocks=4))


def test_nothing_left_to_train_costs_a_sentence() -> None:
    model = build_small().requires_grad_(False)
    with pytest.raises(ValueError, match="Nothing is left to train"):
        build_optimizer(model, OptimConfig())

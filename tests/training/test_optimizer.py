"""Parameter groups and frozen parameters of models; optimizer steps against torch and closed forms."""

from typing import Any

import pytest
import torch
from torch import nn

from vitrine.data.preprocessing import build_inception_preprocessing
from vitrine.models.registry import build_model
from vitrine.objectives.config import MaskedPatchesConfig, SupervisedConfig
from vitrine.objectives.masked_patches import MaskedPatches
from vitrine.objectives.objective import Objective
from vitrine.objectives.supervised import Supervised
from vitrine.training.config import OptimConfig
from vitrine.training.optimizer import build_groups, build_optimizer, clip_gradients, freeze, set_lr

SMALL = {"width": 16, "depth": 3, "num_heads": 2, "mlp_dim": 32, "image_size": 32, "num_classes": 5}
PREPROCESSING = build_inception_preprocessing((32, 32))


def build_small(**changes: object) -> Supervised:
    return Supervised(build_model("ViT-Ti/16", **(SMALL | changes)), PREPROCESSING, SupervisedConfig())


class OwnLayer(Objective):
    """An objective that trains only a layer of its own."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(build_model("ViT-Ti/16", **SMALL).requires_grad_(False), PREPROCESSING)
        self.layer = nn.Linear(*sizes)


def find_groups(objective: Objective, config: OptimConfig) -> dict[str, tuple[Any, Any]]:
    """Return the learning-rate scale and weight decay of each trained parameter by name, without the encoder's prefix."""
    names = {id(parameter): name.removeprefix("encoder.") for name, parameter in objective.named_parameters()}
    groups = build_groups(objective, config)
    return {names[id(each)]: (group["lr_scale"], group["weight_decay"]) for group in groups for each in group["params"]}


def test_only_kernels_decay() -> None:
    objective = build_small(num_registers=2)
    groups = find_groups(objective, OptimConfig(weight_decay=0.3))
    parameters = dict(objective.encoder.named_parameters())
    assert groups.keys() == parameters.keys()
    decaying = {name for name, (_, decay) in groups.items() if decay == 0.3}
    assert decaying == {name for name, value in parameters.items() if value.ndim > 1} - {
        "class_token",
        "positions.0.table",
        "registers",
    }


def test_all_parameters_may_decay() -> None:
    groups = find_groups(build_small(), OptimConfig(weight_decay=0.3, decay_mask="all"))
    assert {decay for _, decay in groups.values()} == {0.3}


def test_kernels_of_a_resnet_are_its_convolutions_and_its_head() -> None:
    with torch.device("meta"):
        model = build_model("R50x1", num_classes=5)
    groups = find_groups(Supervised(model, PREPROCESSING, SupervisedConfig()), OptimConfig())
    for name, value in model.named_parameters():
        assert (groups[name][1] > 0) == (value.ndim > 1), name


def test_learning_rates_fall_from_block_to_block() -> None:
    groups = find_groups(build_small(), OptimConfig(layer_decay=0.5))
    scales = {name: scale for name, (scale, _) in groups.items()}
    assert scales["head.weight"] == scales["norm.weight"] == 1.0
    for name, scale in scales.items():
        layer = int(name.split(".")[1]) + 1 if name.startswith("blocks.") else 4 if name.startswith(("head", "norm")) else 0
        assert scale == 0.5 ** (4 - layer), name


def test_groups_are_in_the_order_of_the_blocks() -> None:
    scales = [group["lr_scale"] for group in build_groups(build_small(), OptimConfig(layer_decay=0.5))]
    assert scales == sorted(scales)


def test_parameters_of_the_objective_train_at_the_full_learning_rate() -> None:
    objective = MaskedPatches(build_model("ViT-Ti/16", **(SMALL | {"num_classes": 0})), PREPROCESSING, MaskedPatchesConfig())
    groups = find_groups(objective, OptimConfig(layer_decay=0.5, weight_decay=0.3))
    assert groups["prediction.weight"] == (1.0, 0.3)
    assert groups["prediction.bias"] == groups["mask"] == (1.0, 0.0)


def test_a_step_of_adamw_follows_the_paper_s_convention() -> None:
    """The first step is p - lr * (sign of the gradient + decay * p): weight decay is relative to the learning rate."""
    objective = OwnLayer(1, 1)
    layer = objective.layer
    with torch.no_grad():
        layer.weight.fill_(2.0)
        layer.bias.fill_(2.0)
    optimizer = build_optimizer(objective, OptimConfig(learning_rate=0.1, weight_decay=0.3))
    set_lr(optimizer, 0.01)
    layer(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    assert layer.weight.item() == pytest.approx(2.0 - 0.01 * (1.0 + 0.3 * 2.0), abs=1e-6)
    assert layer.bias.item() == pytest.approx(2.0 - 0.01, abs=1e-6)


def test_sgd_equals_torch() -> None:
    objective, reference = OwnLayer(3, 2), nn.Linear(3, 2)
    reference.load_state_dict(objective.layer.state_dict())
    config = OptimConfig(kind="sgd", learning_rate=0.1, weight_decay=0.0, momentum=0.9)
    optimizers = build_optimizer(objective, config), torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for layer, optimizer in zip((objective.layer, reference), optimizers, strict=True):
            optimizer.zero_grad()
            layer(torch.full((1, 3), float(step + 1))).square().sum().backward()
            if optimizer is optimizers[0]:
                set_lr(optimizer, 0.1)
            optimizer.step()
    torch.testing.assert_close(objective.layer.weight, reference.weight)


def test_clipping_equals_torch() -> None:
    for max_norm in (0.5, 1e9, None):
        ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
        theirs.load_state_dict(ours.state_dict())
        for model in (ours, theirs):
            model(torch.ones(1, 3)).square().sum().backward()
        norm = clip_gradients(ours, max_norm)
        expected = nn.utils.clip_grad_norm_(theirs.parameters(), float("inf") if max_norm is None else max_norm)
        torch.testing.assert_close(norm, expected)
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def list_trained(objective: Objective) -> set[str]:
    return {name.removeprefix("encoder.") for name, each in objective.named_parameters() if each.requires_grad}


def test_frozen_blocks_leave_the_upper_part_trained() -> None:
    objective = build_small()
    freeze(objective, OptimConfig(frozen_blocks=2))
    trained = {".".join(name.split(".")[:2]) for name in list_trained(objective)}
    assert trained == {"blocks.2", "norm.weight", "norm.bias", "head.weight", "head.bias"}
    freeze(objective, OptimConfig(frozen_blocks=-1))
    assert list_trained(objective) == {"head.weight", "head.bias"}
    with pytest.raises(ValueError, match=r"frozen_blocks=4 .*3 blocks"):
        freeze(objective, OptimConfig(frozen_blocks=4))


def test_parameters_that_the_objective_does_not_train_are_frozen() -> None:
    class HeadOnly(Supervised):
        def trains(self, name: str) -> bool:
            return name.startswith("head.")

    objective = HeadOnly(build_model("ViT-Ti/16", **SMALL), PREPROCESSING, SupervisedConfig())
    freeze(objective, OptimConfig())
    assert list_trained(objective) == {"head.weight", "head.bias"}


def test_an_optimizer_without_parameters_is_an_error() -> None:
    with pytest.raises(ValueError, match="frozen_blocks"):
        build_optimizer(build_small().requires_grad_(False), OptimConfig())

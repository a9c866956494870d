"""From a module to an optimizer: which parameters are trained, which decay, and at what part of the rate.

Depth is read from names: what comes before the blocks is layer 0, block i is layer i + 1, and the last norm, the pool and the
head lie above all of them.
"""

import re

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from vitrine.training.config import OptimConfig

BLOCK = re.compile(r"blocks\.(\d+)\.")
BEFORE_BLOCKS = ("stem", "root", "patches", "positions", "class_token", "distillation_token", "registers")
HEADS = ("head", "head_distillation")


def build_optimizer(module: nn.Module, config: OptimConfig) -> Optimizer:
    """An optimizer of what `freeze` left, in groups; the rate of a group is its `lr_scale` times that of the step."""
    groups = build_groups(module, config)
    if not groups:
        raise ValueError("Nothing is left to train: lower frozen_blocks.")
    if config.kind == "sgd":
        return SGD(groups, lr=config.learning_rate, momentum=config.momentum)
    return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps)


def build_groups(module: nn.Module, config: OptimConfig) -> list[dict[str, object]]:
    """Parameters that share a layer's rate and whether they decay, in the order of the layers."""
    kernels = {f"{name}.weight".lstrip(".") for name, each in module.named_modules() if isinstance(each, nn.Linear | nn.Conv2d)}
    num_blocks = count_blocks(module)
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            layer = find_layer(name, num_blocks) if config.layer_decay < 1 else num_blocks + 1
            groups.setdefault((layer, config.decay_mask == "all" or name in kernels), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr_scale": config.layer_decay ** (num_blocks + 1 - layer),
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (layer, decays), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def freeze(module: nn.Module, config: OptimConfig) -> None:
    """Leave the first blocks and what comes before them as they are; with -1, everything but the head."""
    if config.frozen_blocks == 0:
        return
    num_blocks = count_blocks(module)
    if config.frozen_blocks > num_blocks:
        raise ValueError(f"frozen_blocks={config.frozen_blocks} is more than the {num_blocks} blocks of the model: lower it.")
    for name, parameter in module.named_parameters():
        is_head = strip(name).split(".")[0] in HEADS
        is_low = find_layer(name, num_blocks) <= config.frozen_blocks
        if is_low or (config.frozen_blocks == -1 and not is_head):
            parameter.requires_grad_(False)


def count_blocks(module: nn.Module) -> int:
    found = [BLOCK.match(strip(name)) for name, _ in module.named_parameters()]
    return max((int(match[1]) + 1 for match in found if match), default=0)


def find_layer(name: str, num_blocks: int) -> int:
    name = strip(name)
    match = BLOCK.match(name)
    if match:
        return int(match[1]) + 1
    return 0 if name.split(".")[0] in BEFORE_BLOCKS else num_blocks + 1


def strip(name: str) -> str:
    """An objective has its model under the name `encoder`."""
    return name.removeprefix("encoder.")


def set_lr(optimizer: Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


@torch.no_grad()
def clip_gradients(module: nn.Module, max_norm: float | None) -> torch.Tensor:
    """Scale all gradients down to a global norm, if one is given; returns what it was before, on the device."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(module.parameters(), max_norm, norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm  # each process has a part of a sharded one

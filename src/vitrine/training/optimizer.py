"""Optimizer of an objective: which parameters are trained, which decay, and their learning-rate scales.

Names of parameters are the model's business: it tells which are left out of weight decay, and the block of each.
"""

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, AdamW, Optimizer

from vitrine.objectives.objective import ENCODER, Objective
from vitrine.training.config import OptimConfig

MIN_NORM = 1e-6  # torch's own, so that a gradient of zeros is not divided by zero


def build_optimizer(objective: Objective, config: OptimConfig) -> Optimizer:
    """Build the optimizer of all parameters that `freeze` left; see `set_lr` for the learning rates of its groups.

    It is torch's fused one: one kernel for all parameters, which also skips a step in float16 without the host waiting for it.
    """
    groups = build_groups(objective, config)
    if not groups:
        raise ValueError(f"No parameters are left to train with optim.frozen_blocks={config.frozen_blocks}: lower it.")
    fused = can_be_fused(objective, config) or None  # None: what torch chooses, e.g. foreach on CUDA
    if config.kind == "adamw":
        return AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps, fused=fused)
    optimizer = SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=fused)
    if fused and config.momentum > 0:
        # torch's fused SGD leaves momenta uninitialised if float16 skips the first step. Zeros give the same first step.
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def can_be_fused(objective: Objective, config: OptimConfig) -> bool:
    """Return whether torch has a fused optimizer for the parameters: not on the meta device, and no SGD of sharded ones.

    The one of mps does not skip the steps that float16 has to skip (pytorch 186360).
    """
    parameters = list(objective.parameters())
    is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters)
    has_kernel = all(parameter.device.type not in ("meta", "mps") for parameter in parameters)
    return has_kernel and (config.kind == "adamw" or not is_sharded)


def build_groups(objective: Objective, config: OptimConfig) -> list[dict[str, object]]:
    """Group trained parameters by block (with layer_decay) and by whether they decay, in the order of the blocks."""
    top = objective.depth + 1 if config.layer_decay < 1 else 0
    no_decay = objective.no_weight_decay() if config.decay_mask == "kernels" else set()
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            block = objective.block_index(name) if config.layer_decay < 1 else top
            groups.setdefault((block, name not in no_decay), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr_scale": config.layer_decay ** (top - block),
            "weight_decay": config.weight_decay if decays else 0.0,
        }
        for (block, decays), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def freeze(objective: Objective, config: OptimConfig) -> None:
    """Freeze what is not trained: the first `frozen_blocks` blocks and what comes before them; with -1, all but the head."""
    for name, parameter in objective.named_parameters():
        if name.startswith(ENCODER) and not objective.trains(name.removeprefix(ENCODER)):
            parameter.requires_grad_(False)
    if config.frozen_blocks == 0:
        return
    if config.frozen_blocks > objective.depth:
        raise ValueError(f"optim.frozen_blocks={config.frozen_blocks} exceeds the {objective.depth} blocks of the model.")
    for name, parameter in objective.named_parameters():
        is_low = objective.block_index(name) <= config.frozen_blocks
        if is_low or (config.frozen_blocks == -1 and not objective.is_head(name)):
            parameter.requires_grad_(False)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of a step: each group gets it times its `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_scale"]


@torch.no_grad()
def clip_gradients(module: nn.Module, max_norm: float | None) -> torch.Tensor:
    """Scale all gradients down to a global norm, unless it is None; return the norm before that, on the device."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    # As nn.utils.clip_grad_norm_, which on a CPU takes the gradients one by one, in twice the time.
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))  # pyright: ignore[reportPrivateImportUsage]
    if max_norm is not None:
        factor = (max_norm / (norm + MIN_NORM)).clamp(max=1.0)
        torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateImportUsage]
    return norm.full_tensor() if isinstance(norm, DTensor) else norm  # each rank has a part of a sharded one

"""How the objective runs on the ranks and devices of a run: replicated (DDP) or sharded (FSDP2), and in which precision.

DDP and FSDP2 are used only here. The model is changed in place and its parameters keep their names.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from vitrine.core.console import warn_user
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.objectives.objective import LossOutput, Objective
from vitrine.training.config import MachineConfig, Precision


class Parallel:
    """The objective as the training loop calls it."""

    def __init__(self, objective: Objective, machine: MachineConfig, runtime: Runtime) -> None:
        """Move the objective to its device. Build the optimizer afterwards: sharding replaces parameters by their parts."""
        self.objective = objective
        self.runtime = runtime
        self.dtype = choose_dtype(machine.precision, runtime.device)
        self.call: nn.Module = objective
        if machine.compile:
            objective.encoder.compile()
        if runtime.world_size == 1 and machine.sharding != "ddp":
            warn_user(f"machine.sharding={machine.sharding!r} has no effect in a single process: start several with torchrun.")
        if runtime.world_size > 1 and machine.sharding == "fsdp":
            shard(objective, runtime)  # moves each part by itself: the whole may not fit on the device
            return
        objective.to(runtime.device)
        if runtime.world_size > 1:
            self.call = DistributedDataParallel(objective, broadcast_buffers=False)  # buffers never change

    def __call__(self, batch: Batch) -> LossOutput:
        with self.autocast():
            return self.call(batch)

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context in which products and convolutions are computed in the run's precision."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.runtime.device.type, self.dtype)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch the objective to evaluation mode in the run's precision; back to training mode on exit."""
        self.objective.eval()
        try:
            with self.autocast():
                yield
        finally:
            self.objective.train()
            if isinstance(self.objective, FSDPModule):
                self.objective.reshard()  # in training the backward pass does this

    @contextmanager
    def synchronised(self, is_last: bool) -> Iterator[None]:
        """Sum gradients over ranks only in the last part of a batch."""
        if isinstance(self.call, DistributedDataParallel) and not is_last:
            with self.call.no_sync():
                yield
            return
        if isinstance(self.call, FSDPModule):
            self.call.set_requires_gradient_sync(is_last)
        yield


def shard(objective: Objective, runtime: Runtime) -> None:
    """Shard the blocks and the objective around them with FSDP2, but never the encoder itself.

    So the encoder's parameters outside of its blocks belong to the objective, whose methods gather them.
    """
    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    for block in list_blocks(objective.encoder):
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    for method in objective.forward_methods:
        register_fsdp_forward_method(objective, method)


def list_blocks(encoder: nn.Module) -> list[nn.Module]:
    """Return the modules that `Model.run_block` runs: encoder blocks, residual units."""
    blocks: list[nn.Module] = []
    for name, module in encoder.named_modules():
        if name.split(".")[-1] == "blocks" and isinstance(module, nn.ModuleList):
            for child in module:
                blocks.extend(child if isinstance(child, nn.Sequential) else [child])
    return blocks


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision setting on a device; "auto" is bfloat16 on GPUs that have it, else float32."""
    if precision == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32

"""How the objective runs on the processes and devices of a run: whole in each of them, or in parts; in which precision.

Only here are torch's DDP and FSDP2 known. The network is changed in place and keeps the names of its parameters.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.objectives.objective import LossOutput, Objective
from vitrine.training.config import MachineConfig, Precision


class Parallel:
    """The objective as the loop calls it."""

    def __init__(self, objective: Objective, machine: MachineConfig, runtime: Runtime) -> None:
        """To be made before the optimizer: sharding replaces parameters by their parts."""
        self.objective = objective
        self.runtime = runtime
        self.dtype = choose_dtype(machine.precision, runtime.device)
        self.call: nn.Module = objective
        if machine.compile:
            objective.encoder.compile()
        if runtime.world_size > 1 and machine.sharding == "fsdp":
            shard(objective, runtime)  # which moves each part by itself: the whole may not fit
            return
        objective.to(runtime.device)
        if runtime.world_size > 1:
            self.call = DistributedDataParallel(objective, broadcast_buffers=False)  # which never change

    def __call__(self, batch: Batch) -> LossOutput:
        with self.autocast():
            return self.call(batch)

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.runtime.device.type, self.dtype)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The objective without what only training does, in the precision of the run."""
        self.objective.eval()
        try:
            with self.autocast():
                yield
        finally:
            self.objective.train()
            if isinstance(self.objective, FSDPModule):
                self.objective.reshard()  # which the backward pass does otherwise

    @contextmanager
    def synchronised(self, is_last: bool) -> Iterator[None]:
        """Gradients are summed over the processes in the last part of a batch only: once is enough."""
        if isinstance(self.call, DistributedDataParallel) and not is_last:
            with self.call.no_sync():
                yield
            return
        if isinstance(self.call, FSDPModule):
            self.call.set_requires_gradient_sync(is_last)
        yield


def shard(objective: Objective, runtime: Runtime) -> None:
    """Blocks and the objective around them, never the encoder between: what is not in a block belongs to the objective."""
    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    for block in list_blocks(objective.encoder):
        fully_shard(block, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    for method in ("classify", "featurise"):
        register_fsdp_forward_method(objective, method)


def list_blocks(encoder: nn.Module) -> list[nn.Module]:
    """The modules that `Model.run` runs: encoder blocks, residual units."""
    found: list[nn.Module] = []
    for name, module in encoder.named_modules():
        if name.split(".")[-1] == "blocks" and isinstance(module, nn.ModuleList):
            for child in module:
                found.extend(child if isinstance(child, nn.Sequential) else [child])
    return found


def choose_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision == "auto":
        has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bfloat16 else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32

"""How the objective runs on the ranks and devices of a run: replicated (DDP) or sharded (FSDP2), and in which precision.

DDP and FSDP2 are used only here. The model is changed in place and its parameters keep their names.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel

from vitrine.core.console import warn_user
from vitrine.core.precision import choose_dtype, computing_in, keeping_digits
from vitrine.core.runtime import Runtime
from vitrine.data.batch import Batch
from vitrine.objectives.objective import LossOutput, Objective
from vitrine.training.config import MachineConfig

COMPILER = "inductor"  # backend of torch.compile
INITIAL_SCALE = 2.0**16  # of the loss in float16; torch's default. It is halved when a gradient overflows


class Parallel:
    """The objective as the training loop calls it."""

    def __init__(self, objective: Objective, machine: MachineConfig, runtime: Runtime) -> None:
        """Move the objective to its device. Build the optimizer afterwards: sharding replaces parameters by their parts."""
        self.objective = objective
        self.runtime = runtime
        self.dtype = choose_dtype(machine.precision, runtime.device)
        self.call: nn.Module = objective
        if machine.compile:
            compile_objective(objective, is_sharded=runtime.world_size > 1 and machine.sharding == "fsdp")
        if runtime.world_size == 1 and machine.sharding != "ddp":
            warn_user(f"machine.sharding={machine.sharding!r} has no effect in a single process: start several with torchrun.")
        if runtime.world_size > 1 and machine.sharding == "fsdp":
            shard(objective, runtime, self.dtype)  # moves each part by itself: the whole may not fit on the device
            return
        objective.to(runtime.device)
        if runtime.world_size > 1:
            # Buffers never change. Gradients are views of the buckets that are sent, which saves a copy of all of them.
            self.call = DistributedDataParallel(objective, broadcast_buffers=False, gradient_as_bucket_view=True)

    def __call__(self, batch: Batch) -> LossOutput:
        with self.computing():
            return self.call(batch)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context in which products and convolutions are computed in the run's precision."""
        return computing_in(self.dtype, self.runtime.device)

    def keeping_digits(self) -> AbstractContextManager[None]:
        """Return a context for forward and backward pass together, in which float32 keeps all of its digits."""
        return keeping_digits(self.dtype, self.runtime.device)

    def build_scaler(self) -> GradScaler:
        """Build what scales the loss in float16, whose gradients would underflow; in other precisions it does nothing."""
        return GradScaler(self.runtime.device.type, INITIAL_SCALE, enabled=self.dtype == torch.float16)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch the objective to evaluation mode in the run's precision; back to training mode on exit."""
        self.objective.eval()
        try:
            with self.computing():
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


def compile_objective(objective: Objective, is_sharded: bool) -> None:
    """Compile what a training step computes, from the batch to the loss, as one graph; a sharded model block by block.

    FSDP2 gathers parameters between the blocks, where a graph cannot go on. What a compiler cannot take is an error, since it
    would fall back to plain torch without a word. The encoder is compiled too, because logits in evaluation are its own;
    features for few-shot evaluation are not.
    """
    if is_sharded:
        for block in list_blocks(objective.encoder):
            block.compile(backend=COMPILER, fullgraph=True)
        return
    objective.encoder.compile(backend=COMPILER, fullgraph=True)
    objective.compile(backend=COMPILER, fullgraph=True)


def shard(objective: Objective, runtime: Runtime, dtype: torch.dtype) -> None:
    """Shard the blocks and the objective around them with FSDP2, but never the encoder itself.

    So the encoder's parameters outside of its blocks belong to the objective, whose methods gather them. In half precision the
    parameters of blocks are gathered in it: autocast alone would gather float32, and keep its copies until the backward pass.
    Inputs stay float32, as under autocast, and so do the few parameters outside, or the residual stream would lose digits. So
    do the kernels of ResNets, which are standardised before they are used.
    """
    mesh = init_device_mesh(runtime.device.type, (runtime.world_size,))
    half = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for block in list_blocks(objective.encoder):
        has_kernels = any(isinstance(layer, nn.Conv2d) for layer in block.modules())
        is_half = dtype != torch.float32 and not has_kernels
        fully_shard(block, mesh=mesh, mp_policy=half if is_half else MixedPrecisionPolicy())
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

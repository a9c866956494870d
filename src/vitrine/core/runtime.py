"""Device, rank, world size, collectives, seeds.

Where tensors are computed.
The processes of a run and where each computes: one alone, or several that torchrun started.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def require_device(name: str) -> None:
    """Whether this machine has the device, found out before anything is loaded for it."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):  # torch's words for no such kind, not compiled in, none there
        raise ValueError(
            f"--device {name} is not on this machine: take cpu, or what torch can use here, as cuda or mps."
        ) from None


@dataclass(frozen=True)
class Runtime:
    """This process among those of the run."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether it is the one that writes files and speaks to people."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all processes."""
        return self.reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Over all processes."""
        return self.reduce(tensor, dist.ReduceOp.MAX)

    def reduce(self, tensor: Tensor, operation: "dist.ReduceOp.RedOpType") -> Tensor:
        if self.world_size == 1:
            return tensor
        reduced = tensor.to(self.device, copy=True)
        dist.all_reduce(reduced, operation)
        return reduced.to(tensor.device)

    def any_rank(self, wishes: Sequence[bool]) -> list[bool]:
        """Of each, whether any of the processes wishes it: the same answer in all of them."""
        if self.world_size == 1:
            return list(wishes)
        votes = torch.tensor(wishes, dtype=torch.int32, device=self.device)
        return [vote > 0 for vote in self.max(votes).tolist()]

    def share(self, value: Any) -> Any:
        """What the main process has, for all."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes through alone, and the others find what it left on the disk."""
        if self.world_size > 1 and not self.is_main:
            dist.barrier()
        yield
        if self.world_size > 1 and self.is_main:
            dist.barrier()


@contextmanager
def start_runtime(device: str | None = None) -> Iterator[Runtime]:
    """Where to compute; among the processes of torchrun, if it started this one. Without a device, on a GPU if there is one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    name = choose_device(device)
    if name.startswith("cuda") and world_size > 1 and ":" not in name:
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        require_device(name)
    chosen = torch.device(name)
    if world_size == 1:
        yield Runtime(chosen)
        return
    if dist.is_initialized():  # by whoever makes several runs: torchrun's processes can meet once only
        yield Runtime(chosen, dist.get_rank(), world_size)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # The main process may have millions of files to list while the others wait for it.
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(hours=2))
    try:
        yield Runtime(chosen, dist.get_rank(), world_size)
    finally:
        dist.destroy_process_group()


def choose_device(device: str | None) -> str:
    """The one that was named, if it is here; without a name a GPU, if there is one."""
    if device is not None:
        require_device(device)
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def seed_generators(*keys: int) -> None:
    """What torch draws from now on, in dropout for one, is a function of the keys."""
    digest = hashlib.blake2b(",".join(map(str, keys)).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)

"""Device, rank and world size of a run, collective operations over its processes, and seeds."""

import gc
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitrine.core.console import format_bytes, name_setting

MEMORY_FACTOR = 2  # only what needs more than this times the memory is refused: what might just fit is not


@dataclass(frozen=True)
class Runtime:
    """The device and rank of this process; with one process, collective operations return their input."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Return True on rank 0, which writes the files and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks."""
        return self.reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: Tensor) -> Tensor:
        """Return the elementwise maximum of a tensor over all ranks."""
        return self.reduce(tensor, dist.ReduceOp.MAX)

    def reduce(self, tensor: Tensor, operation: "dist.ReduceOp.RedOpType") -> Tensor:
        """Return the all-reduced tensor on its own device; the input is unchanged."""
        if self.world_size == 1:
            return tensor
        reduced = tensor.to(self.device, copy=True)
        dist.all_reduce(reduced, operation)
        return reduced.to(tensor.device)

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is set on any rank; all ranks get the same answer."""
        if self.world_size == 1:
            return list(flags)
        votes = torch.tensor(flags, dtype=torch.int32, device=self.device)
        return [vote > 0 for vote in self.max(votes).tolist()]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all ranks."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, e.g. to download and index data; the other ranks then reuse its files."""
        if self.world_size > 1 and not self.is_main:
            dist.barrier()
        yield
        if self.world_size > 1 and self.is_main:
            dist.barrier()


@contextmanager
def start_runtime(device: str | None = None) -> Iterator[Runtime]:
    """Choose the device and, under torchrun, join the process group for the duration of the block."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    name = choose_device(device)
    if name.startswith("cuda") and world_size > 1 and ":" not in name:
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        check_device(name)
    chosen = torch.device(name)
    if world_size == 1:
        yield Runtime(chosen)
        return
    if dist.is_initialized():  # by a caller that makes several runs: torchrun's processes can join only once
        yield Runtime(chosen, dist.get_rank(), world_size)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # Rank 0 may have millions of files to list while the other ranks wait for it.
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=timedelta(hours=2))
    runtime = Runtime(chosen, dist.get_rank(), world_size)
    try:
        yield runtime
    except RuntimeError as error:
        if not is_connection_error(error):
            raise
        raise OSError(
            f"Process {runtime.rank} of {world_size} lost the connection to another one, which has ended or was killed, "
            "perhaps because memory ran out: see its messages, then run the same command again."
        ) from error
    # DDP holds the group too. If it were the last to do so, its destructor would wait for Gloo's threads while it keeps them
    # from ending: it holds Python's lock, which they need.
    gc.collect()
    dist.destroy_process_group()  # not after an error: other processes may never answer


def is_connection_error(error: RuntimeError) -> bool:
    """Return whether a collective operation failed because another process is gone. Gloo says so in words only."""
    return isinstance(error, dist.DistError) or any(
        word in str(error) for word in ("gloo/transport", "Connection closed by peer")
    )


def choose_device(device: str | None) -> str:
    """Return the requested device after a check that it exists; None selects a GPU if available."""
    if device is not None:
        check_device(device)
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def check_device(name: str) -> None:
    """Raise ValueError if this machine does not have the device, before anything is loaded for it."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError):  # unknown name, not compiled in, not present
        given = name_setting("device", name)
        raise ValueError(f"{given} is not available on this machine: use cpu, or another device torch finds.") from None


def measure_memory(device: torch.device) -> int | None:
    """Return the memory of a device in bytes, of a CPU with swap; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    if device.type != "cpu" or not hasattr(os, "sysconf"):
        return None
    meminfo = Path("/proc/meminfo")
    swap = re.search(r"SwapTotal: *(\d+) kB", meminfo.read_text()) if meminfo.is_file() else None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + (0 if swap is None else 1024 * int(swap[1]))


def require_memory(num_bytes: int, device: torch.device, what: str, advice: str) -> None:
    """Raise ValueError if a lower bound of the memory that something needs exceeds twice the memory of the device."""
    memory = measure_memory(device)
    if memory is not None and num_bytes > MEMORY_FACTOR * memory:
        needs = f"{what} needs at least {format_bytes(num_bytes)} of memory"
        raise ValueError(f"{needs}, and {device} has {format_bytes(memory)}: {advice}.")


def seed_generators(*keys: int) -> None:
    """Seed torch's generators from the keys, e.g. (seed, step, rank), so that dropout is a function of them."""
    digest = hashlib.blake2b(",".join(map(str, keys)).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)

"""Device, rank and world size of a run, collective operations over its processes, and seeds."""

import gc
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vitrine.core.console import format_bytes, name_setting

MEMORY_FACTOR = 2  # only what needs more than this times the memory is refused: what might just fit is not
# Words of errors about a lack of memory that are not torch.OutOfMemoryError: of the CPU, of mps, of CUDA's libraries.
OUT_OF_MEMORY_WORDS = ("out of memory", "DefaultCPUAllocator", "bad_alloc", "Invalid buffer size", "ALLOC_FAILED")
DEVICE_TIMEOUT = timedelta(minutes=30)  # of a step that waits for another rank
HOST_TIMEOUT = timedelta(hours=12)  # of waiting for rank 0, which may have millions of files to download, list or write


@dataclass(frozen=True)
class Runtime:
    """The device and rank of this process; with one process, collective operations return their input."""

    device: torch.device
    rank: int = 0
    world_size: int = 1
    host_group: dist.ProcessGroup | None = None
    """All ranks, for what is on the host, and for waiting: its timeout is long, and no device waits with it."""

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
        reduced = tensor.clone()
        dist.all_reduce(reduced, operation, self.host_group if tensor.device.type == "cpu" else None)
        return reduced

    def any_rank(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is set on any rank; all ranks get the same answer."""
        if self.world_size == 1:
            return list(flags)
        return [vote > 0 for vote in self.max(torch.tensor(flags, dtype=torch.int32)).tolist()]

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on all ranks."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self.host_group, device=torch.device("cpu"))
        return values[0]

    def gather_rows(self, rows: Tensor, index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return the rows of all ranks, float32 (N, D) on the CPU, sorted by their `index` in 0..num_rows, each of one rank."""
        if self.world_size == 1:
            return rows, index
        table = torch.zeros(num_rows, rows.shape[1] + 1)
        table[index] = torch.cat([rows, torch.ones(len(rows), 1)], dim=1)
        table = self.sum(table)  # a row is 0 on all ranks but one
        found = table[:, -1].nonzero()[:, 0]
        return table[found, :-1], found

    def wait_for_all(self) -> None:
        """Wait until every rank is here, for as long as it takes, e.g. until rank 0 has written a checkpoint."""
        if self.world_size > 1:
            dist.barrier(self.host_group)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Run the block on rank 0 first, e.g. to download and index data; the other ranks then reuse its files."""
        if not self.is_main:
            self.wait_for_all()
        yield
        if self.is_main:
            self.wait_for_all()


@contextmanager
def start_runtime(device: str | None = None) -> Iterator[Runtime]:
    """Choose the device and, under torchrun, join the process group for the duration of the block."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Runtime(torch.device(choose_device(device)))
        return
    chosen = choose_rank_device(device, world_size)
    if dist.is_initialized():  # by a caller that makes several runs: torchrun's processes can join only once
        yield Runtime(chosen, dist.get_rank(), world_size, open_host_group())
        return
    is_cuda = chosen.type == "cuda"
    dist.init_process_group("nccl" if is_cuda else "gloo", timeout=DEVICE_TIMEOUT, device_id=chosen if is_cuda else None)
    runtime = Runtime(chosen, dist.get_rank(), world_size, open_host_group())
    try:
        yield runtime
        runtime.wait_for_all()
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
    open_host_group.cache_clear()
    dist.destroy_process_group()  # not after an error: other processes may never answer, and its message would not be printed


@cache
def open_host_group() -> dist.ProcessGroup:
    """Open the group of all ranks for their hosts, once for all runs of a process; all ranks call it together."""
    group = dist.new_group(backend="gloo", timeout=HOST_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


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
    return find_default_device()


def find_default_device() -> str:
    """Return the kind of device that is used unless the user chooses one: a GPU if available."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def choose_rank_device(device: str | None, world_size: int) -> torch.device:
    """Return the device of this process of several: of CUDA the GPU of its local rank.

    That becomes the current GPU here, before anything else uses CUDA: otherwise every process would take memory of the first.
    """
    name = find_default_device() if device is None else device
    if name.startswith("mps"):
        cpu = name_setting("device", "cpu")
        raise ValueError(f"{world_size} processes cannot train on mps together: start one, without torchrun, or use {cpu}.")
    if not name.startswith("cuda"):
        check_device(name)
        return torch.device(name)
    if ":" in name:
        given, needed = name_setting("device", name), name_setting("device", "cuda")
        raise ValueError(f"{given} would put all {world_size} processes on one GPU: use {needed}, or start one process.")
    local_rank, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local_rank >= num_gpus:
        raise ValueError(
            f"Process {local_rank} of this machine has no GPU of its own, because there are {num_gpus}: start as many "
            "processes as GPUs with torchrun --nproc-per-node."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


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


@contextmanager
def explain_out_of_memory(what: str, device: torch.device | str, advice: str) -> Iterator[None]:
    """Turn a lack of memory in this block, in whatever words a device reports it, into a ValueError with advice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        has_words = any(word in str(error) for word in OUT_OF_MEMORY_WORDS)
        if not has_words and not isinstance(error, torch.OutOfMemoryError | MemoryError):
            raise
        raise ValueError(f"{what} does not fit into the memory of {device}: {advice}.") from None


def seed_generators(*keys: int) -> None:
    """Seed torch's generators from the keys, e.g. (seed, step, rank), so that dropout is a function of them."""
    digest = hashlib.blake2b(",".join(map(str, keys)).encode(), digest_size=8).digest()
    torch.manual_seed(int.from_bytes(digest, "little") >> 1)

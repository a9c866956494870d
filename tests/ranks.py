"""Processes that work together as those of torchrun do, each started by a test itself."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def open_meeting(world_size: int) -> Iterator[list[dict[str, str]]]:
    """What torchrun tells each of its processes, and the store in which they find each other.

    The store is this process's, as it is torchrun's: it is given a free port and holds it. A port that is looked for first and
    opened later by a child may be another's by then.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # pyright: ignore[reportPrivateImportUsage]
    shared = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    yield [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]

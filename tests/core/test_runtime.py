"""Devices, seeds, and collective operations of one process and of two."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import open_rendezvous
from vitrine.core.runtime import (
    Runtime,
    check_device,
    choose_device,
    measure_memory,
    open_host_group,
    seed_generators,
    start_runtime,
)


@pytest.mark.parametrize("name", ["toaster", "cuda:99"])
def test_a_missing_device_is_an_error(name: str) -> None:
    check_device("cpu")
    with pytest.raises(ValueError, match=f"device={name!r}"):
        check_device(name)
    with pytest.raises(ValueError, match=f"device={name!r}"), start_runtime(name):
        pass


ROOT = Path(__file__).parent.parent.parent
PAUSE_S = 0.5


def work(out: Path) -> None:
    """Run in each of two processes; at the end rank 0 fails, and rank 1 must not wait for it forever."""
    with start_runtime("cpu") as runtime:
        mine = torch.tensor([runtime.rank + 1, 10])
        results: dict[str, Any] = {
            "rank": runtime.rank,
            "world_size": runtime.world_size,
            "is_main": runtime.is_main,
            "sum": runtime.sum(mine).tolist(),
            "sum_of_doubles": runtime.sum(torch.tensor(2.0**30 + runtime.rank, dtype=torch.float64)).item(),
            "max": runtime.max(torch.tensor([-1 - runtime.rank, 5 * runtime.rank])).tolist(),
            "after": mine.tolist(),
            "any_rank": runtime.any_rank([runtime.rank == 0, runtime.rank == 1, False, True]),
            "broadcast": runtime.broadcast({"from": runtime.rank, "path": Path("here"), "nothing": None}) | {"path": "here"},
        }
        mine = [torch.tensor([[0.0, 7.0], [0.0, 5.0]]), torch.tensor([[1.0, 6.0]])][runtime.rank]
        rows, index = runtime.gather_rows(mine, torch.tensor([[4, 1], [2]][runtime.rank]), 5)
        results["rows"] = [rows.tolist(), index.tolist()]
        for name in ("first", "second"):
            with runtime.main_first():
                results[name] = (out / name).is_file()
                if runtime.is_main:
                    time.sleep(PAUSE_S)
                    (out / name).touch()
        (out / f"{runtime.rank}.json").write_text(json.dumps(results))
        with runtime.main_first():
            if runtime.is_main:
                raise ValueError("rank 0 failed")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("two")
    script = "import sys; from pathlib import Path; from tests.core.test_runtime import work; work(Path(sys.argv[1]))"
    with open_rendezvous(2) as environments:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(out)],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for environment in environments
        ]
        try:
            errors = [process.communicate(timeout=600)[1] for process in processes]
        finally:
            for process in processes:
                process.kill()
    assert [(out / f"{rank}.json").is_file() for rank in range(2)] == [True, True], errors
    return [
        json.loads((out / f"{rank}.json").read_text()) | {"code": process.returncode, "error": error}
        for rank, (process, error) in enumerate(zip(processes, errors, strict=True))
    ]


def test_each_process_knows_its_rank(results: list[dict[str, Any]]) -> None:
    assert [(each["rank"], each["world_size"], each["is_main"]) for each in results] == [(0, 2, True), (1, 2, False)]


def test_sums_and_maxima_are_the_same_on_both_ranks(results: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(results):
        assert each["sum"] == [3, 20]
        assert each["sum_of_doubles"] == 2**31 + 1  # not a float32
        assert each["max"] == [-1, 5]
        assert each["after"] == [rank + 1, 10]


def test_a_flag_of_any_rank_is_known_to_all(results: list[dict[str, Any]]) -> None:
    assert [each["any_rank"] for each in results] == [[True, True, False, True]] * 2


def test_rank_0_broadcasts_its_value(results: list[dict[str, Any]]) -> None:
    assert [each["broadcast"] for each in results] == [{"from": 0, "path": "here", "nothing": None}] * 2


def test_rank_0_goes_first_each_time(results: list[dict[str, Any]]) -> None:
    assert [(each["first"], each["second"]) for each in results] == [(False, False), (True, True)]


def test_if_rank_0_fails_the_other_ends_too(results: list[dict[str, Any]]) -> None:
    assert all(each["code"] > 0 for each in results), results
    assert "rank 0 failed" in results[0]["error"]


def test_one_process_needs_no_process_group() -> None:
    with start_runtime("cpu") as runtime:
        assert runtime == Runtime(torch.device("cpu"), 0, 1)
        assert runtime.is_main
        assert not dist.is_initialized()
        tensor = torch.tensor([1.0, 2.0])
        assert torch.equal(runtime.sum(tensor), tensor)
        assert torch.equal(runtime.max(tensor), tensor)
        assert runtime.any_rank([True, False]) == [True, False]
        assert runtime.broadcast("mine") == "mine"
        with runtime.main_first():
            pass


@pytest.mark.parametrize(
    ("has_cuda", "has_mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_a_gpu_is_chosen_if_available(has_cuda: bool, has_mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert choose_device(None) == chosen
    assert choose_device("cpu") == "cpu"


def draw(*keys: int) -> Tensor:
    seed_generators(*keys)
    return torch.rand(4)


def test_random_numbers_are_a_function_of_the_keys() -> None:
    first = draw(0, 7, 1, 0)
    draw(3, 3, 3, 3)
    assert torch.equal(draw(0, 7, 1, 0), first)


def test_different_keys_give_different_numbers() -> None:
    keys = [*product(range(3), range(-1, 12), range(3), range(3)), (1, 23), (12, 3), (123,), (2**63, 0), (0, 2**63)]
    assert len({tuple(draw(*each).tolist()) for each in keys}) == len(keys)


def test_memory_of_a_cpu_is_that_of_the_machine() -> None:
    """The kernel's own count, which leaves out what it reserved at boot, is a little below the pages of the machine."""
    memory = measure_memory(torch.device("cpu"))
    counts = dict(re.findall(r"(MemTotal|SwapTotal): *(\d+) kB", Path("/proc/meminfo").read_text()))
    assert memory == pytest.approx(1024 * sum(map(int, counts.values())), rel=0.05)
    assert measure_memory(torch.device("meta")) is None


class Calls:
    """Records in which order CUDA and the process group are used, on a machine that seems to have two GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, local_rank: int, *, has_mps: bool = False, num_gpus: int = 2) -> None:
        self.made: list[str] = []
        for name, value in {"WORLD_SIZE": "2", "RANK": str(local_rank), "LOCAL_RANK": str(local_rank)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda device: self.made.append(f"set_device {device}"))
        monkeypatch.setattr(torch, "empty", lambda *size, device: self.made.append(f"empty {device}"))
        monkeypatch.setattr(dist, "is_initialized", lambda: False)
        monkeypatch.setattr(dist, "init_process_group", self.init)
        monkeypatch.setattr(dist, "new_group", self.open_group)
        monkeypatch.setattr(dist, "get_rank", lambda: local_rank)
        monkeypatch.setattr(dist, "barrier", lambda group: self.made.append("barrier"))
        monkeypatch.setattr(dist, "destroy_process_group", lambda: self.made.append("destroy"))

    def init(self, backend: str, *, timeout: timedelta, device_id: torch.device | None) -> None:
        self.made.append(f"init {backend} {device_id}")
        self.timeout = timeout

    def open_group(self, *, backend: str, timeout: timedelta) -> dist.ProcessGroup:
        self.made.append(f"group {backend}")
        assert timeout > 10 * self.timeout  # rank 0 may list files for hours; a step that hangs should not
        return dist.ProcessGroup.__new__(dist.ProcessGroup)


@pytest.fixture(autouse=True)
def no_host_group() -> Iterator[None]:
    open_host_group.cache_clear()
    yield
    open_host_group.cache_clear()


@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_rank_sets_its_gpu_before_anything_else(device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch, local_rank=1)
    with start_runtime(device) as runtime:
        assert runtime.device == torch.device("cuda:1")
        assert runtime.host_group is not None
        calls.made.append("work")
    assert calls.made == ["set_device 1", "init nccl cuda:1", "group gloo", "work", "barrier", "destroy"]


def test_the_group_is_not_destroyed_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL may wait for the other ranks there, and the message would never be printed."""
    calls = Calls(monkeypatch, local_rank=0)
    with pytest.raises(ValueError, match="mine"), start_runtime("cuda"):
        raise ValueError("mine")
    assert calls.made == ["set_device 0", "init nccl cuda:0", "group gloo"]


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cuda:0", {}, "device='cuda:0' would put all 2 processes on one GPU"),
        ("cuda", {"num_gpus": 1}, "Process 1 of this machine has no GPU"),
        ("cuda", {"num_gpus": 0}, "Process 1 of this machine has no GPU"),
        ("mps", {"num_gpus": 0, "has_mps": True}, "2 processes cannot train on mps"),
        (None, {"num_gpus": 0, "has_mps": True}, "2 processes cannot train on mps"),
    ],
)
def test_devices_that_several_processes_cannot_have(
    device: str | None, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, local_rank=1, **settings)
    with pytest.raises(ValueError, match=message), start_runtime(device):
        pass
    assert calls.made == []


def test_rows_of_one_process_are_all_rows() -> None:
    rows, index = torch.rand(3, 2), torch.tensor([4, 0, 2])
    found = Runtime(torch.device("cpu")).gather_rows(rows, index, 5)
    assert torch.equal(found[0], rows)
    assert torch.equal(found[1], index)


def test_rows_of_both_ranks_come_in_their_order(results: list[dict[str, Any]]) -> None:
    for each in results:
        assert each["rows"] == [[[0.0, 5.0], [1.0, 6.0], [0.0, 7.0]], [1, 2, 4]]  # 0 and 3 are of no rank

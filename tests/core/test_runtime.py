"""Tests of core/runtime.py.

Devices that are there, and that are not.
One process alone, and two that have to agree.
"""

import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.ranks import open_meeting
from vitrine.core.runtime import Runtime, choose_device, require_device, seed_generators, start_runtime


def test_the_processor_is_always_there() -> None:
    require_device("cpu")


@pytest.mark.parametrize("name", ["toaster", "cuda:99"])
def test_another_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(ValueError, match=f"--device {name} is not on this machine: take cpu"):
        require_device(name)


ROOT = Path(__file__).parent.parent.parent
PAUSE_S = 0.5


def work(out: Path) -> None:
    """What each of two processes does; at the end the main one breaks, and the other must not wait for it for ever."""
    with start_runtime("cpu") as runtime:
        mine = torch.tensor([runtime.rank + 1, 10])
        found: dict[str, Any] = {
            "rank": runtime.rank,
            "world_size": runtime.world_size,
            "is_main": runtime.is_main,
            "sum": runtime.sum(mine).tolist(),
            "sum_of_doubles": runtime.sum(torch.tensor(2.0**30 + runtime.rank, dtype=torch.float64)).item(),
            "max": runtime.max(torch.tensor([-1 - runtime.rank, 5 * runtime.rank])).tolist(),
            "after": mine.tolist(),
            "agreed": runtime.any_rank([runtime.rank == 0, runtime.rank == 1, False, True]),
            "shared": runtime.share({"from": runtime.rank, "path": Path("here"), "nothing": None}) | {"path": "here"},
        }
        for name in ("first", "second"):
            with runtime.main_first():
                found[name] = (out / name).is_file()
                if runtime.is_main:
                    time.sleep(PAUSE_S)
                    (out / name).touch()
        (out / f"{runtime.rank}.json").write_text(json.dumps(found))
        with runtime.main_first():
            if runtime.is_main:
                raise ValueError("the main process broke")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("two")
    script = "import sys; from pathlib import Path; from tests.core.test_runtime import work; work(Path(sys.argv[1]))"
    with open_meeting(2) as environments:
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


def test_each_of_two_knows_which_it_is(found: list[dict[str, Any]]) -> None:
    assert [(each["rank"], each["world_size"], each["is_main"]) for each in found] == [(0, 2, True), (1, 2, False)]


def test_two_have_the_same_sums_and_maxima(found: list[dict[str, Any]]) -> None:
    for rank, each in enumerate(found):
        assert each["sum"] == [3, 20]
        assert each["sum_of_doubles"] == 2**31 + 1  # which single precision does not have
        assert each["max"] == [-1, 5]
        assert each["after"] == [rank + 1, 10]


def test_two_agree_on_what_any_of_them_wishes(found: list[dict[str, Any]]) -> None:
    assert [each["agreed"] for each in found] == [[True, True, False, True]] * 2


def test_what_the_main_one_has_is_shared(found: list[dict[str, Any]]) -> None:
    assert [each["shared"] for each in found] == [{"from": 0, "path": "here", "nothing": None}] * 2


def test_the_main_one_goes_first_each_time(found: list[dict[str, Any]]) -> None:
    assert [(each["first"], each["second"]) for each in found] == [(False, False), (True, True)]


def test_if_the_main_one_breaks_the_other_ends_too(found: list[dict[str, Any]]) -> None:
    assert all(each["code"] > 0 for each in found), found
    assert "the main process broke" in found[0]["error"]


def test_one_alone_needs_nobody() -> None:
    with start_runtime("cpu") as runtime:
        assert runtime == Runtime(torch.device("cpu"), 0, 1)
        assert runtime.is_main
        assert not dist.is_initialized()
        tensor = torch.tensor([1.0, 2.0])
        assert torch.equal(runtime.sum(tensor), tensor)
        assert torch.equal(runtime.max(tensor), tensor)
        assert runtime.any_rank([True, False]) == [True, False]
        assert runtime.share("mine") == "mine"
        with runtime.main_first():
            pass


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="toaster is not on this machine"), start_runtime("toaster"):
        pass


@pytest.mark.parametrize(
    ("has_cuda", "has_mps", "chosen"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_a_gpu_is_taken_if_there_is_one(has_cuda: bool, has_mps: bool, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert choose_device(None) == chosen
    assert choose_device("cpu") == "cpu"


def draw(*keys: int) -> Tensor:
    seed_generators(*keys)
    return torch.rand(4)


def test_what_is_drawn_is_a_function_of_the_keys() -> None:
    first = draw(0, 7, 1, 0)
    draw(3, 3, 3, 3)
    assert torch.equal(draw(0, 7, 1, 0), first)


def test_no_two_keys_draw_the_same() -> None:
    keys = [*product(range(3), range(-1, 12), range(3), range(3)), (1, 23), (12, 3), (123,), (2**63, 0), (0, 2**63)]
    assert len({tuple(draw(*each).tolist()) for each in keys}) == len(keys)

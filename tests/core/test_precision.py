"""Precision: what `auto` is on each device, and that float32 keeps all of its digits."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from vitrine.core.precision import choose_dtype, computing_in

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda"])
def test_a_named_precision_is_the_same_on_every_device(device: str) -> None:
    names: tuple[Any, ...] = ("float32", "bfloat16", "float16")
    assert [choose_dtype(name, torch.device(device)) for name in names] == [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("device", "has_bfloat16", "dtype"),
    [
        ("cpu", True, torch.float32),
        ("mps", True, torch.float32),
        ("cuda", True, torch.bfloat16),
        ("cuda", False, torch.float16),
    ],
)
def test_auto(device: str, has_bfloat16: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    assert choose_dtype("auto", torch.device(device)) == dtype


def read_settings() -> tuple[str, str]:
    """Return what torch's kernels go by: tf32, or ieee, or none for neither."""
    backends: Any = torch.backends
    return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision


@pytest.fixture
def set_flags() -> Iterator[Callable[[str, bool], None]]:
    def set_flags(matmul: str, cudnn: bool) -> None:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn

    before = torch.get_float32_matmul_precision(), bool(torch.backends.cudnn.allow_tf32)
    yield set_flags
    set_flags(*before)


@pytest.mark.parametrize("before", [("high", True), ("highest", True), ("medium", False)])
def test_float32_on_cuda_is_without_tf32(before: tuple[str, bool], set_flags: Callable[[str, bool], None]) -> None:
    set_flags(*before)
    settings = read_settings()
    assert ("tf32" in settings[0]) == (before[0] != "highest")
    assert ("tf32" in settings[1]) == before[1]
    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert read_settings() == settings
    with computing_in(torch.float32, CPU):
        assert read_settings() == settings


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
def test_the_precision_of_products_is_restored(before: str, set_flags: Callable[[str, bool], None]) -> None:
    set_flags(before, True)
    with computing_in(torch.float32, CUDA):
        assert torch.get_float32_matmul_precision() == "highest"  # the compiler asks for it too
    assert torch.get_float32_matmul_precision() == before


def test_a_program_that_uses_torch_s_newer_settings() -> None:
    """In a process of its own: the newer and the older settings must not be mixed."""
    script = """
import torch
from vitrine.core.precision import computing_in
torch.backends.fp32_precision = "tf32"
def read(): return torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision
before = read()
with computing_in(torch.float32, torch.device("cuda")):
    print(before, read())
print(read())
"""
    lines = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines == ["('tf32', 'tf32') ('ieee', 'ieee')", "('tf32', 'tf32')"]


def fail_inside() -> None:
    with computing_in(torch.float32, CUDA):
        assert "tf32" not in read_settings()
        raise KeyError("inside")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_computed_in_the_dtype(dtype: torch.dtype) -> None:
    layer, images = torch.nn.Linear(3, 2), torch.ones(4, 3)
    with computing_in(dtype, CPU):
        assert layer(images).dtype == dtype
    assert layer(images).dtype == layer.weight.dtype == torch.float32

"""Precision: what `auto` is on each device, and that float32 keeps all of its digits."""

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


def read_flags() -> tuple[Any, Any]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture
def set_flags() -> Iterator[Callable[[bool, bool], None]]:
    def set_flags(matmul: bool, cudnn: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn

    before = read_flags()
    yield set_flags
    set_flags(*before)


@pytest.mark.parametrize("before", [(True, True), (False, True), (False, False)])
def test_float32_on_cuda_is_without_tf32(before: tuple[bool, bool], set_flags: Callable[[bool, bool], None]) -> None:
    set_flags(*before)
    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert read_flags() == before
    with computing_in(torch.float32, CPU):
        assert read_flags() == before


def fail_inside() -> None:
    with computing_in(torch.float32, CUDA):
        assert read_flags() == (False, False)
        raise KeyError("inside")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_computed_in_the_dtype(dtype: torch.dtype) -> None:
    layer, images = torch.nn.Linear(3, 2), torch.ones(4, 3)
    with computing_in(dtype, CPU):
        assert layer(images).dtype == dtype
    assert layer(images).dtype == layer.weight.dtype == torch.float32

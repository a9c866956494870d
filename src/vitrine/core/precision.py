"""Precision of computation: the number format that each device gets, and a context that computes in it.

torch is imported on first use, so that configs and `--help` load fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]


def choose_dtype(precision: Precision, device: "torch.device") -> "torch.dtype":
    """Return the dtype of a precision setting on a device.

    "auto" is bfloat16 on NVIDIA GPUs that have it, float16 on older ones (T4, V100), and float32 on every other device.
    """
    import torch

    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


@contextmanager
def computing_in(dtype: "torch.dtype", device: "torch.device") -> Iterator[None]:
    """Compute matrix products and convolutions in a dtype, while weights stay float32.

    float32 means all of its digits: TF32, which rounds factors to 10 bits, is switched off, also in cuDNN, where it is torch's
    default.
    """
    import torch

    if dtype != torch.float32:
        with torch.autocast(device.type, dtype):
            yield
    elif device.type == "cuda":
        backends: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
        before = [backend.allow_tf32 for backend in backends]
        try:
            for backend in backends:
                backend.allow_tf32 = False
            yield
        finally:
            for backend, allowed in zip(backends, before, strict=True):
                backend.allow_tf32 = allowed
    else:
        yield

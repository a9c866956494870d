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
    """Compute matrix products and convolutions in a dtype, while weights stay float32; see `keeping_digits` for float32."""
    import torch

    if dtype == torch.float32:
        with keeping_digits(dtype, device):
            yield
    else:
        with torch.autocast(device.type, dtype):
            yield


@contextmanager
def keeping_digits(dtype: "torch.dtype", device: "torch.device") -> Iterator[None]:
    """Switch TF32 off while float32 is computed on CUDA, in backward passes too; nothing in other precisions.

    TF32 rounds factors to 10 bits, and for convolutions it is torch's default.
    """
    import torch

    if dtype != torch.float32 or device.type != "cuda":
        yield
        return
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    try:
        before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    except RuntimeError:  # the program uses torch's newer settings, which must not be mixed with the older ones
        newer = matmul.fp32_precision, cudnn.conv.fp32_precision
        try:
            matmul.fp32_precision = cudnn.conv.fp32_precision = "ieee"
            yield
        finally:
            matmul.fp32_precision, cudnn.conv.fp32_precision = newer
        return
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]

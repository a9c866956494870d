"""Tensor mappings, compared with NumPy's transposes, einsum and torch's convolution."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from vitrine.formats.tensor_files import LazyTensor
from vitrine.formats.tensor_mapping import TensorMapping, check_tensors

# Axes of the foreign tensor, as numbers of ours.
AXES = {"transposed": (1, 0), "hwio": (2, 3, 1, 0)}
B, D, H, K = 5, 6, 3, 2


@given(order=st.sampled_from(["same", "transposed", "hwio"]), data=st.data(), num_parts=st.integers(1, 3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_reading_undoes_writing(order: Any, data: st.DataObject, num_parts: int) -> None:
    rank = len(AXES.get(order, ())) or data.draw(st.integers(1, 4))
    part_shape = data.draw(st.tuples(*[st.integers(1, 4)] * rank))
    ours = torch.randn(num_parts * part_shape[0], *part_shape[1:])
    mapping = TensorMapping("ours", tuple(f"part {index}" for index in range(num_parts)), order)
    written = dict(mapping.write(ours))
    assert tuple(written) == mapping.foreign_names
    for part, expected in zip(written.values(), np.split(ours.numpy(), num_parts), strict=True):
        np.testing.assert_array_equal(part, expected.transpose(AXES.get(order, range(rank))))
        assert tuple(part.shape) == mapping.foreign_shape(tuple(ours.shape))
        assert part.is_contiguous()
    again = mapping.read(list(written.values()), tuple(ours.shape))
    torch.testing.assert_close(again, ours, rtol=0, atol=0)
    assert again.is_contiguous()


def test_kernels_of_query_key_and_value() -> None:
    kernels = np.random.default_rng(0).standard_normal((3, D, H, K)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((B, D))
    mapping = TensorMapping("qkv.weight", ("q", "k", "v"), "transposed", (D, H, K))
    ours = mapping.read([torch.from_numpy(kernel) for kernel in kernels], (3 * H * K, D))
    expected = np.einsum("nd,pdhk->nphk", x, kernels)
    np.testing.assert_allclose((x @ ours.numpy().T).reshape(B, 3, H, K), expected)
    for kernel, (_, written) in zip(kernels, mapping.write(ours), strict=True):
        np.testing.assert_array_equal(written, kernel)


def test_kernel_of_the_attention_output() -> None:
    kernel = np.random.default_rng(0).standard_normal((H, K, D)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((B, H, K))
    mapping = TensorMapping("out.weight", ("out",), "transposed", (H, K, D))
    ours = mapping.read([torch.from_numpy(kernel)], (D, H * K))
    np.testing.assert_allclose(x.reshape(B, H * K) @ ours.numpy().T, np.einsum("nhk,hkd->nd", x, kernel))
    np.testing.assert_array_equal(next(mapping.write(ours))[1], kernel)


def test_biases_of_query_key_and_value() -> None:
    biases = np.random.default_rng(0).standard_normal((3, H, K)).astype(np.float32)
    mapping = TensorMapping("qkv.bias", ("q", "k", "v"), shape=(H, K))
    ours = mapping.read([torch.from_numpy(bias) for bias in biases], (3 * H * K,))
    np.testing.assert_array_equal(ours, biases.reshape(-1))
    np.testing.assert_array_equal(np.stack([part for _, part in mapping.write(ours)]), biases)


@pytest.mark.parametrize("stride", [1, 2])
def test_kernel_of_a_convolution(stride: int) -> None:
    kernel = torch.randn(3, 2, 4, D)  # height, width, in, out
    images = torch.randn(B, 4, 9, 8)
    ours = TensorMapping("conv.weight", ("kernel",), "hwio").read([kernel], (D, 4, 3, 2))
    windows = np.lib.stride_tricks.sliding_window_view(images.numpy(), (3, 2), axis=(2, 3))[:, :, ::stride, ::stride]
    expected = np.einsum("bcrshw,hwco->bors", windows, kernel.numpy())
    np.testing.assert_allclose(F.conv2d(images, ours, stride=stride), expected, rtol=1e-5, atol=1e-5)


def test_kernel_of_the_patch_embedding() -> None:
    kernel = torch.randn(4, 4, 3, D)
    images = torch.randn(B, 3, 8, 12)
    mapping = TensorMapping("patches.weight", ("kernel",), "hwio", (4, 4, 3, D))
    ours = mapping.read([kernel], (D, 3 * 4 * 4))
    patches = F.unfold(images, 4, stride=4).mT  # (B, N, C * P * P)
    expected = F.conv2d(images, kernel.permute(3, 2, 0, 1), stride=4).flatten(2).mT
    torch.testing.assert_close(patches @ ours.T, expected)
    torch.testing.assert_close(next(mapping.write(ours))[1], kernel, rtol=0, atol=0)


def test_reading_copies_to_float32() -> None:
    """The foreign tensor may be mapped from a file that will be gone, and of any precision."""
    foreign = torch.ones(4, 2, dtype=torch.float16)
    ours = TensorMapping("w", ("w",)).read([foreign], (4, 2))
    foreign.zero_()
    torch.testing.assert_close(ours, torch.ones(4, 2), rtol=0, atol=0)


def test_axes_of_length_one_are_ignored() -> None:
    old_scale = torch.randn(1, 1, 1, D)
    torch.testing.assert_close(
        TensorMapping("scale", ("gn/scale",)).read([old_scale], (D,)), old_scale.reshape(D), rtol=0, atol=0
    )


def test_written_tensors_own_their_memory(tmp_path: Path) -> None:
    """safetensors rejects tensors that share memory or are not contiguous."""
    ours = torch.randn(3 * D, D)
    mappings = [
        TensorMapping("a", ("q", "k", "v")),
        TensorMapping("a", ("q/kernel", "k/kernel"), "transposed"),
        TensorMapping("a", ("all",)),
    ]
    written = {name: part for mapping in mappings for name, part in mapping.write(ours)}
    save_file(written, tmp_path / "w.safetensors")
    torch.testing.assert_close(load_file(tmp_path / "w.safetensors"), written, rtol=0, atol=0)
    written["all"].zero_()
    assert ours.ne(0).any()


MAPPINGS = [
    TensorMapping("qkv", ("q", "k"), "transposed"),
    TensorMapping("scale", ("scale",)),
    TensorMapping("bias", ("bias",)),
]
SHAPES = {"qkv": (8, 3), "scale": (3,), "bias": (3,)}
FITTING = {"q": (3, 4), "k": (3, 4), "scale": (1, 1, 3), "bias": (3,)}


def check(shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str] | None = None) -> None:
    def read() -> torch.Tensor:
        raise AssertionError("shapes are compared before any tensor is read")

    tensors = {name: LazyTensor(shape, (dtypes or {}).get(name, "torch.float32"), read) for name, shape in shapes.items()}
    check_tensors(MAPPINGS, tensors, SHAPES, "the file")


def test_every_tensor_that_does_not_fit_is_named() -> None:
    check(FITTING)
    wrong = {"q": (4, 3), "scale": (3,), "bias": (4,), "extra": (1,)}
    with pytest.raises(ValueError, match="nothing was loaded") as caught:
        check(wrong, {"scale": "I64"})
    for part in ("missing: k;", "unexpected: extra;", "q (4, 3) instead of (3, 4), bias (4) instead of (3);", "scale (I64)"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match="x7 and 12 more"):
        check({**FITTING, **{f"x{index}": (1,) for index in range(20)}})

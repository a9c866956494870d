"""The released networks in plain NumPy, computed from the arrays of an npz file.

Written from the layout alone (kernels (in, out), heads as an axis of their own, convolutions (height, width, in, out), TF's
SAME padding), so that our models can be compared with it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Arrays = Mapping[str, Array]


def run_vit(
    arrays: Arrays,
    images: Array,
    block_names: tuple[str, str, str, str],
    *,
    big_vision: bool = False,
    reads_first: bool = False,
) -> Array:
    """Return logits of images (B, H, W, C), or features; the names of the arrays determine nearly every option.

    `reads_first` is big_vision's pool_type "0".
    """
    x = images
    if "conv_root/kernel" in arrays:
        x = run_stem(arrays, x)
    kernel = arrays["embedding/kernel"]
    x = convolve(x, kernel, stride=kernel.shape[0], padding="VALID") + arrays["embedding/bias"]
    x = x.reshape(len(x), -1, x.shape[-1])
    cls = np.broadcast_to(arrays["cls"], (len(x), 1, x.shape[-1])) if "cls" in arrays else x[:, :0]
    if big_vision:
        x = np.concatenate([cls, x + arrays["pos_embedding"]], axis=1)
    else:
        x = np.concatenate([cls, x], axis=1) + arrays["Transformer/posembed_input/pos_embedding"]
    norm1, attention, norm2, mlp = block_names
    depth = len({name.split("/")[1] for name in arrays if name.startswith("Transformer/encoderblock_")})
    for index in range(depth):
        block = f"Transformer/encoderblock_{index}"
        y = normalise(arrays, f"{block}/{norm1}", x)
        x = x + attend(arrays, f"{block}/{attention}", y, y)
        x = x + run_mlp(arrays, f"{block}/{mlp}", normalise(arrays, f"{block}/{norm2}", x))
    x = normalise(arrays, "Transformer/encoder_norm", x)
    if "MAPHead_0/probe" in arrays:
        probe = np.broadcast_to(arrays["MAPHead_0/probe"], (len(x), 1, x.shape[-1]))
        y = attend(arrays, "MAPHead_0/MultiHeadDotProductAttention_0", probe, x)
        y = y + run_mlp(arrays, "MAPHead_0/MlpBlock_0", normalise(arrays, "MAPHead_0/LayerNorm_0", y))
        features = y[:, 0]
    else:
        features = x[:, 0] if "cls" in arrays or reads_first else x.mean(axis=1)
    if "pre_logits/kernel" in arrays:
        features = np.tanh(features @ arrays["pre_logits/kernel"] + arrays["pre_logits/bias"])
    return features @ arrays["head/kernel"] + arrays["head/bias"] if "head/kernel" in arrays else features


def run_bit(arrays: Arrays, images: Array) -> Array:
    """Return logits of the post-activation ResNet of big_vision's `bit.py`."""
    return run_stem(arrays, images).mean(axis=(1, 2)) @ arrays["head/kernel"] + arrays["head/bias"]


def run_bit_paper(arrays: Arrays, images: Array) -> Array:
    """Return logits of the pre-activation ResNet of big_vision's `bit_paper.py`, whose pool pads with minus infinity."""
    x = pad(convolve(pad(images, 3), standardise_bit(arrays["root_block/conv_root/kernel"]), 2, "VALID"), 1, -np.inf)
    x = windows(x, 3, 2).max(axis=(-2, -1))
    for block, unit in sorted({tuple(name.split("/")[:2]) for name in arrays if name.startswith("block")}):
        name = f"{block}/{unit}"
        kernels = {part: standardise_bit(arrays[f"{name}/{part}/kernel"]) for part in ("conv1", "conv2", "conv3")}
        stride = 2 if unit == "unit01" and block != "block1" else 1
        y = relu(group_normalise(arrays, f"{name}/gn1", x, 1e-5))
        if f"{name}/conv_proj/kernel" in arrays:
            x = convolve(y, standardise_bit(arrays[f"{name}/conv_proj/kernel"]), stride, "VALID")
        y = relu(group_normalise(arrays, f"{name}/gn2", convolve(y, kernels["conv1"], 1, "VALID"), 1e-5))
        y = relu(group_normalise(arrays, f"{name}/gn3", convolve(pad(y, 1), kernels["conv2"], stride, "VALID"), 1e-5))
        x = x + convolve(y, kernels["conv3"], 1, "VALID")
    x = relu(group_normalise(arrays, "norm-pre-head", x, 1e-5))
    return x.mean(axis=(1, 2)) @ arrays["head/kernel"] + arrays["head/bias"]


def normalise(arrays: Arrays, name: str, x: Array) -> Array:
    mean, variance = x.mean(axis=-1, keepdims=True), x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]


def attend(arrays: Arrays, name: str, queries: Array, keys: Array) -> Array:
    q = np.einsum("bqd,dhk->bhqk", queries, arrays[f"{name}/query/kernel"]) + arrays[f"{name}/query/bias"][:, None]
    k = np.einsum("bsd,dhk->bhsk", keys, arrays[f"{name}/key/kernel"]) + arrays[f"{name}/key/bias"][:, None]
    v = np.einsum("bsd,dhk->bhsk", keys, arrays[f"{name}/value/kernel"]) + arrays[f"{name}/value/bias"][:, None]
    logits = np.einsum("bhqk,bhsk->bhqs", q / np.sqrt(q.shape[-1]), k)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhqs,bhsk->bqhk", weights, v)
    return np.einsum("bqhk,hkd->bqd", mixed, arrays[f"{name}/out/kernel"]) + arrays[f"{name}/out/bias"]


def run_mlp(arrays: Arrays, name: str, x: Array) -> Array:
    x = x @ arrays[f"{name}/Dense_0/kernel"] + arrays[f"{name}/Dense_0/bias"]
    x = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x @ arrays[f"{name}/Dense_1/kernel"] + arrays[f"{name}/Dense_1/bias"]


def run_stem(arrays: Arrays, x: Array) -> Array:
    """Compute the post-activation ResNet stem of a hybrid."""
    x = relu(group_normalise(arrays, "gn_root", convolve(x, standardise(arrays["conv_root/kernel"]), 2, "SAME")))
    x = pool(x)
    units = sorted({tuple(name.split("/")[:2]) for name in arrays if name.startswith("block")})
    for block, unit in units:
        name = f"{block}/{unit}"
        stride = 2 if unit == "unit1" and block != "block1" else 1
        y = relu(group_normalise(arrays, f"{name}/gn1", convolve(x, standardise(arrays[f"{name}/conv1/kernel"]), 1, "SAME")))
        y = convolve(y, standardise(arrays[f"{name}/conv2/kernel"]), stride, "SAME")
        y = relu(group_normalise(arrays, f"{name}/gn2", y))
        y = group_normalise(arrays, f"{name}/gn3", convolve(y, standardise(arrays[f"{name}/conv3/kernel"]), 1, "SAME"))
        if f"{name}/conv_proj/kernel" in arrays:
            x = convolve(x, standardise(arrays[f"{name}/conv_proj/kernel"]), stride, "SAME")
            x = group_normalise(arrays, f"{name}/gn_proj", x)
        x = relu(x + y)
    return x


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def standardise(kernel: Array) -> Array:
    axes = (0, 1, 2)
    return (kernel - kernel.mean(axis=axes)) / (kernel.std(axis=axes) + 1e-5)


def standardise_bit(kernel: Array) -> Array:
    return (kernel - kernel.mean(axis=(0, 1, 2))) / np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-10)


def group_normalise(arrays: Arrays, name: str, x: Array, eps: float = 1e-6) -> Array:
    channels = x.shape[-1]
    groups = max(g for g in range(1, 33) if channels % g == 0)
    y = x.reshape(*x.shape[:3], groups, channels // groups)
    mean, variance = y.mean(axis=(1, 2, 4), keepdims=True), y.var(axis=(1, 2, 4), keepdims=True)
    y = ((y - mean) / np.sqrt(variance + eps)).reshape(x.shape)
    return y * arrays[f"{name}/scale"].reshape(-1) + arrays[f"{name}/bias"].reshape(-1)


def pad_same(x: Array, kernel: int, stride: int, value: float) -> Array:
    margins = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[1:3]]
    sides = [(margin // 2, margin - margin // 2) for margin in margins]
    return np.pad(x, [(0, 0), *sides, (0, 0)], constant_values=value)


def pad(x: Array, margin: int, value: float = 0.0) -> Array:
    return np.pad(x, [(0, 0), (margin, margin), (margin, margin), (0, 0)], constant_values=value)


def windows(x: Array, kernel: int, stride: int) -> Array:
    """Return all windows, (B, R, S, C, kernel, kernel)."""
    return np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]


def convolve(x: Array, kernel: Array, stride: int, padding: str) -> Array:
    if padding == "SAME":
        x = pad_same(x, kernel.shape[0], stride, 0.0)
    return np.einsum("brscij,ijco->brso", windows(x, kernel.shape[0], stride), kernel)


def pool(x: Array) -> Array:
    return windows(pad_same(x, 3, 2, -np.inf), 3, 2).max(axis=(-2, -1))

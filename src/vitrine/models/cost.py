"""Parameters, MACs and memory of a model from its config alone: no torch, no weights, so that ViT-G/14 is counted at once.

Counts are for eager float32 execution with fused attention: parameters, multiply-accumulates of matrix products and
convolutions (norms, activations and sums are not counted, as usual), and the numbers held for the backward pass or at the peak
of the forward pass. CPUs do not use fused attention for few tokens and then hold the attention maps too. The tests compare
each count with torch: its parameters, FLOP counter, saved tensors and allocator.

Shapes: T tokens, N patches, D width, M MLP width, H heads.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig, halve, needs_projection
from vitrine.models.registry import MODELS, resolve_config

BYTES_PER_NUMBER = 4
# Weights, gradients and Adam's two averages.
TRAINED_NUMBERS_PER_PARAMETER = 4
# Backpropagation costs twice the forward pass, and a multiply-accumulate is two operations, as in table 6 of the paper.
FLOPS_PER_TRAINED_MAC = 6
# Fields of `Part` that add up; of the others the largest remains.
SUMMED = ("parameters", "macs", "saved", "saved_weights")

Grid = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one image; activations scale with the batch, weights do not."""

    num_parameters: int
    num_tokens: int
    """Tokens of the encoder, or cells of a ResNet's last feature map."""
    macs: int
    """Multiply-accumulates of one forward pass."""
    inference_weight_bytes: int
    """Weights, and the largest kernel while it is standardised."""
    inference_activation_bytes: int
    """Peak of the activations in the forward pass."""
    training_weight_bytes: int
    """Weights, gradients, Adam's two averages, and the kernels that standardised convolutions save."""
    training_activation_bytes: int
    """Activations saved for the backward pass, without dropout masks."""

    def compute_exaflops(self, num_images: float, num_epochs: float) -> float:
        """Compute the operations of a training run in 1e18, counted as in table 6 of the paper."""
        return FLOPS_PER_TRAINED_MAC * self.macs * num_images * num_epochs / 1e18

    def compute_step_bytes(
        self, num_images: int, numbers_per_parameter: int, num_shards: int = 1, is_half: bool = False
    ) -> int:
        """Return what a training step at least needs on each device; `num_images` go through the model at once.

        Each parameter has `numbers_per_parameter` numbers in float32, divided among the shards: weight, gradient, averages.
        `is_half` halves the activations, which bfloat16 and a compiler may do.
        """
        weights = BYTES_PER_NUMBER * numbers_per_parameter * self.num_parameters // num_shards
        return weights + num_images * self.training_activation_bytes // (2 if is_half else 1)


@dataclass(frozen=True)
class ModelInfo:
    """A model and its cost, as `list_models` returns it."""

    name: str
    image_size: tuple[int, int]
    num_classes: int
    images: float
    """Training images; 0: no run is counted."""
    epochs: float
    cost: Cost

    @property
    def exaflops(self) -> float | None:
        """Operations of the training run in 1e18; None without `images`."""
        return self.cost.compute_exaflops(self.images, self.epochs) if self.images > 0 else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures and what they were computed for, as `vitrine models --json` writes them."""
        run = {"images": self.images, "epochs": self.epochs} if self.images > 0 else {}
        settings = {"name": self.name, "image_size": self.image_size, "num_classes": self.num_classes, **run}
        return {**settings, **asdict(self.cost), **({"exaflops": self.exaflops} if self.images > 0 else {})}


def list_models(
    names: Sequence[str] = (),
    *,
    image_size: int | tuple[int, int] = 224,
    num_classes: int = 1000,
    images: float = 0.0,
    epochs: float = 1.0,
) -> list[ModelInfo]:
    """Return the cost of models by name, by default of all listed ones; with `images`, of training runs too."""
    if not (0 <= images < math.inf and 0 < epochs < math.inf):
        raise ValueError(f"images={images:g} must be at least 0 and epochs={epochs:g} above 0.")
    if images == 0 and epochs != 1:
        raise ValueError(f"epochs={epochs:g} needs the number of training images: give images too, e.g. 1.28e6.")
    return [
        ModelInfo(name, config.image_size, num_classes, images, epochs, compute_cost(config))
        for name in names or MODELS
        for config in [resolve_config(name, image_size=image_size, num_classes=num_classes)]
    ]


def compute_cost(name: str | ModelConfig, image_size: int | tuple[int, int] | None = None, **changes: Any) -> Cost:
    """Compute parameters, tokens, MACs and bytes of a model by name or config, with any of its fields changed."""
    config = resolve_config(name, image_size=image_size, **changes)
    if isinstance(config, ViTConfig):
        total, num_tokens = count_vit(config), config.num_tokens
    else:
        assert isinstance(config, ResNetConfig)
        total, num_tokens = count_resnet(config), cells(config.grid)
    return Cost(
        num_parameters=total.parameters,
        num_tokens=num_tokens,
        macs=total.macs,
        inference_weight_bytes=BYTES_PER_NUMBER * (total.parameters + total.peak_weights),
        inference_activation_bytes=BYTES_PER_NUMBER * total.peak,
        training_weight_bytes=BYTES_PER_NUMBER * (TRAINED_NUMBERS_PER_PARAMETER * total.parameters + total.saved_weights),
        training_activation_bytes=BYTES_PER_NUMBER * total.saved,
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """Counts of one part of a network for one image; parts add up, and the largest peak remains."""

    parameters: int = 0
    macs: int = 0
    saved: int = 0
    """Numbers saved for the backward pass."""
    saved_weights: int = 0
    """Numbers saved for the backward pass whatever the batch size: standardised kernels."""
    peak: int = 0
    """Numbers held at the peak of inference."""
    peak_weights: int = 0
    """Numbers held at the peak whatever the batch size: the largest kernel while it is standardised."""

    def __add__(self, other: "Part") -> "Part":
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMMED}
        return Part(**sums, peak=max(self.peak, other.peak), peak_weights=max(self.peak_weights, other.peak_weights))

    def __mul__(self, count: int) -> "Part":
        return replace(self, **{name: count * getattr(self, name) for name in SUMMED})


def count_vit(config: ViTConfig) -> Part:
    """Count a ViT, hybrid or axial model."""
    stem = count_resnet(config.stem) if isinstance(config, HybridConfig) else Part()
    return stem + count_embedding(config) + count_blocks(config) + count_pool(config) + count_heads(config)


def count_embedding(config: ViTConfig) -> Part:
    """Count patch embedding, prefix tokens and positions."""
    patches, (rows, columns) = config.num_patches, config.grid
    # Relative positions belong to the attention.
    table = {
        "learned-1d": config.num_positions * config.width,
        "learned-2d": config.num_position_rows * config.width + (rows + columns) * config.width // 2,
    }.get(config.position, 0)
    positions = table * (config.depth if config.position_insertion == "every-layer" else 1)
    embedding = Part(
        parameters=(config.patch_dim + int(config.patch_bias) + config.num_prefix_tokens) * config.width + positions,
        macs=patches * config.patch_dim * config.width,
        saved=patches * config.patch_dim,
        peak=patches * (config.patch_dim + config.width),
    )
    normed = config.num_tokens * (config.width + 2)  # input and two statistics per token
    return embedding + Part(parameters=2 * config.width, saved=normed) if config.pre_norm else embedding


def count_blocks(config: ViTConfig) -> Part:
    """Count all encoder blocks; with gradient checkpointing, their inputs and one block are saved."""
    if isinstance(config, AxialConfig):
        rows, columns = config.grid
        block = count_block(config, rows, columns) + count_block(config, columns, rows)
    else:
        block = count_block(config, 1, config.num_tokens)
    blocks = block * config.depth
    if not config.gradient_checkpointing:
        return blocks
    inputs = config.depth * config.num_tokens * config.width
    return Part(parameters=blocks.parameters, macs=blocks.macs, saved=inputs + block.saved, peak=block.peak)


def count_block(config: ViTConfig, num_lines: int, line_length: int) -> Part:
    """Count an encoder block whose attention runs within `num_lines` lines of tokens: one line unless it is axial."""
    d, h, t = config.width, config.num_heads, num_lines * line_length
    scales = 0 if config.layer_scale is None else 2 * d
    norms = Part(parameters=4 * d + scales, saved=2 * (t * d + 2 * t) + t * scales)
    # Held all the time: patch tokens, the block's input, the branch's normed input and, if axial, its copy in lines.
    held = config.num_patches * d + (3 if isinstance(config, AxialConfig) else 2) * t * d
    mlp = count_mlp(config, t, held + t * d)
    attention = Part(
        parameters=4 * d * d + (4 * d if config.qkv_bias else d),
        macs=4 * t * d * d + 2 * t * line_length * d,
        saved=5 * t * d + h * t,  # normed input, q, k, v, output, and the logarithm of each softmax's sum
        peak=held + 5 * t * d,
    )
    return norms + attention + mlp + (count_relative_logits(config, held) if config.position == "relative" else Part())


def count_mlp(config: ViTConfig, num_tokens: int, held: int) -> Part:
    """Count an MLP; `held` numbers are in memory while it runs."""
    t, d, m = num_tokens, config.width, config.mlp_dim
    if config.mlp == "swiglu":
        return Part(parameters=3 * d * m + 2 * m + d, macs=3 * t * d * m, saved=t * (d + 4 * m), peak=held + 4 * t * m)
    num_held = 3 if config.gelu == "quick" else 2  # input and output of the GELU; the quick one is two operations
    return Part(parameters=2 * d * m + m + d, macs=2 * t * d * m, saved=t * (d + 2 * m), peak=held + num_held * t * m)


def count_relative_logits(config: ViTConfig, held: int) -> Part:
    """Count what relative positions add: attention with a bias is not fused, so its maps, quadratic in tokens, are held."""
    t, d, h = config.num_tokens, config.width, config.num_heads
    embeddings = 2 * config.num_positions - 1
    logits = h * t * (embeddings + 1)  # one more, always zero, for pairs without an embedding
    maps = h * t * t
    return Part(
        parameters=embeddings * (d // h),
        macs=logits * (d // h),
        saved=t * d + logits + maps - h * t,
        peak=held + 4 * t * d + logits + maps,
    )


def count_pool(config: ViTConfig) -> Part:
    """Count the last norm and the pool, or the readout of several layers."""
    t, n, d = config.num_tokens, config.num_patches, config.width
    normed = d if config.norm_after_pool else t * d
    if config.readout_layers:
        # Each norm saves two statistics per token; its input is saved by the next block's first norm, except after the mean.
        each = {"class": 2, "mean": d + 2 if config.norm_after_pool else 2 * n}
        features = len(config.readout_layers) * sum(each[part] for part in config.readout_parts) + config.feature_dim
        last = 0 if config.norm_after_pool else normed + 2 * t
        return Part(parameters=2 * d, saved=last + features)
    norm = Part(parameters=2 * d, saved=normed + 2 * normed // d + (t * d if config.pool in ("class", "first") else d))
    if config.pool != "map":
        return norm
    attention = Part(parameters=d + 4 * (d * d + d), macs=2 * d * d + 2 * n * d * d + 2 * n * d, saved=3 * n * d)
    return norm + attention + Part(parameters=2 * d) + count_mlp(config, 1, 0)


def count_heads(config: ViTConfig) -> Part:
    """Count the hidden layer of the head, if any, and one or two linear heads."""
    sizes = config.width, config.feature_dim
    hidden = Part(parameters=(sizes[0] + 1) * sizes[1], macs=sizes[0] * sizes[1]) if config.hidden_head else Part()
    return hidden + count_linear_head(config) * (1 + int(config.distillation_token))


def count_linear_head(config: ModelConfig) -> Part:
    """Count the linear layer from features to classes."""
    return Part(parameters=(config.feature_dim + 1) * config.num_classes, macs=config.feature_dim * config.num_classes)


def count_resnet(config: ResNetConfig) -> Part:
    """Count a ResNet, which is a model by itself and the stem of a hybrid."""
    root_output = config.root_dim * cells(config.root_grid)
    grid, units, unit_inputs, largest = config.root_grid, Part(), 0, 0
    for stage in range(len(config.stages)):
        for in_dim, mid_dim, stride in config.unit_shapes(stage):
            unit = count_unit(in_dim, mid_dim, grid, stride, config.style)
            units += replace(unit, peak=root_output + unit.peak)  # `encode` still holds the output of `embed`
            unit_inputs, largest = unit_inputs + in_dim * cells(grid), max(largest, unit.saved)
            grid = halve(grid, stride // 2)
    if config.gradient_checkpointing:
        units = replace(units, saved=unit_inputs + largest, saved_weights=0)
    total = count_root(config) + units + count_linear_head(config)
    if config.style == "post-activation":
        return total
    features = config.feature_dim * cells(config.grid)  # of the norm and ReLU after the last stage, which only BiT has
    return total + Part(parameters=2 * config.feature_dim, saved=2 * features, peak=root_output + 3 * features)


def count_root(config: ResNetConfig) -> Part:
    """Count the first convolution, its norm and the max pool."""
    grid = halve(config.image_size)
    features, pooled = config.root_dim * cells(grid), config.root_dim * cells(config.root_grid)
    conv = count_conv(config.num_channels, config.root_dim, 7, grid)
    pool_saved = 2 * pooled  # the index of each maximum, in 8 bytes
    if config.style == "pre-activation":
        image = config.num_channels * cells(config.image_size)
        padded = config.root_dim * (grid[0] + 2) * (grid[1] + 2)
        return conv + Part(saved=image + padded + pool_saved, peak=features + padded + pooled)
    image = config.num_channels * same_padded(config.image_size, 7, 2)
    padded = config.root_dim * same_padded(grid, 3, 2)
    return conv + Part(
        parameters=2 * config.root_dim,
        saved=image + 2 * features + (padded if padded > features else 0) + pool_saved + (pooled if config.stages else 0),
        peak=max(3 * features, features + padded + pooled),
    )


def count_unit(in_dim: int, mid_dim: int, grid: Grid, stride: int, style: str) -> Part:
    """Count a residual unit of either style.

    BiT: each norm saves its input, each ReLU its output, which the next convolution needs too. A hybrid's stem: the input was
    saved by the ReLU before; strided convolutions save a padded copy.
    """
    out_dim, grid_after = 4 * mid_dim, halve(grid, stride // 2)
    before, after = cells(grid), cells(grid_after)
    x, narrow, narrow_after, out = in_dim * before, mid_dim * before, mid_dim * after, out_dim * after
    projects = needs_projection(in_dim, mid_dim, stride)
    shortcut = out if projects else 0
    convs = count_conv(in_dim, mid_dim, 1, grid) + count_conv(mid_dim, mid_dim, 3, grid_after)
    convs += count_conv(mid_dim, out_dim, 1, grid_after)
    convs += count_conv(in_dim, out_dim, 1, grid_after) if projects else Part()
    peak = max(x + shortcut + 3 * narrow, x + shortcut + narrow_after + 2 * out)
    if style == "pre-activation":
        return convs + Part(
            parameters=2 * (in_dim + 2 * mid_dim),
            saved=2 * x + 2 * narrow + 2 * narrow_after,
            peak=max(peak, 3 * x, 2 * x + shortcut + narrow, x + shortcut + 2 * narrow + narrow_after),
        )
    padded_cells = same_padded(grid, 3, stride) if stride == 2 else before
    padded = mid_dim * padded_cells if padded_cells > before else 0
    return convs + Part(
        parameters=2 * (2 * mid_dim + out_dim) + (2 * out_dim if projects else 0),
        saved=2 * narrow + padded + 2 * narrow_after + 2 * out + shortcut,
        peak=max(peak, x + 2 * shortcut, x + shortcut + narrow + max(padded + narrow_after, 3 * narrow_after)),
    )


def count_conv(in_dim: int, out_dim: int, kernel: int, output_grid: Grid) -> Part:
    """Count a standardised convolution."""
    weights = kernel * kernel * in_dim * out_dim
    # Standardising holds the kernel minus its mean and the result, beside the kernel itself.
    return Part(parameters=weights, macs=weights * cells(output_grid), saved_weights=2 * weights, peak_weights=2 * weights)


def cells(grid: Grid) -> int:
    """Return the number of cells of a grid."""
    return grid[0] * grid[1]


def same_padded(grid: Grid, kernel: int, stride: int) -> int:
    """Return the number of cells of a feature map after TF's SAME padding."""
    rows, columns = ((size - 1) * stride + kernel for size in halve(grid))
    return max(rows, grid[0]) * max(columns, grid[1])

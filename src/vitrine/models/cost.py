"""What a model costs, from its configuration alone: no torch, no weights, so that ViT-G/14 is counted at once.

Counts are of eager float32 execution with fused attention: parameters, multiply-accumulates of matrix products and
convolutions (norms, activations and sums are not counted, as usual), and the numbers that the backward pass or the widest
moment of the forward pass holds. Processors leave fused attention aside for few tokens and then hold the maps too. The
tests hold each count against torch: its parameters, FLOP counter, saved tensors, allocator.

Shapes: T tokens, N patches, D width, M MLP width, H heads.
"""

from dataclasses import dataclass
from typing import Any

from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.cost_parts import Part, count_linear_head
from vitrine.models.cost_resnet import count_resnet
from vitrine.models.registry import resolve_config

BYTES_PER_NUMBER = 4
# Weights, gradients and Adam's two averages.
TRAINED_NUMBERS_PER_PARAMETER = 4
# Backpropagation costs twice the forward pass, and a multiply-accumulate is two operations: table 6 counts so.
FLOPS_PER_TRAINED_MAC = 6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one image; activations scale with the batch, weights do not."""

    num_parameters: int
    num_tokens: int
    """Tokens of the encoder, or places of a ResNet's last map."""
    macs: int
    """Multiply-accumulates of one forward pass."""
    inference_weight_bytes: int
    """Weights, and the largest kernel while it is standardised."""
    inference_activation_bytes: int
    """The widest moment of the forward pass."""
    training_weight_bytes: int
    """Weights, gradients, Adam's two averages, and what standardised convolutions keep of their kernels."""
    training_activation_bytes: int
    """What the backward pass needs, dropout masks apart."""

    def compute_exaflops(self, num_images: float, num_epochs: float) -> float:
        """Training compute in 1e18 operations, counted as table 6 of the paper does."""
        return FLOPS_PER_TRAINED_MAC * self.macs * num_images * num_epochs / 1e18


def compute_cost(name: str | ModelConfig, image_size: int | tuple[int, int] | None = None, **changes: Any) -> Cost:
    """Parameters, tokens, MACs and bytes of a model by name or configuration, with any of its fields changed."""
    config = resolve_config(name, image_size=image_size, **changes)
    if isinstance(config, ViTConfig):
        whole, num_tokens = count_vit(config), config.num_tokens
    else:
        assert isinstance(config, ResNetConfig)
        whole, num_tokens = count_resnet(config), config.grid[0] * config.grid[1]
    return Cost(
        num_parameters=whole.parameters,
        num_tokens=num_tokens,
        macs=whole.macs,
        inference_weight_bytes=BYTES_PER_NUMBER * (whole.parameters + whole.peak_weights),
        inference_activation_bytes=BYTES_PER_NUMBER * whole.peak,
        training_weight_bytes=BYTES_PER_NUMBER * (TRAINED_NUMBERS_PER_PARAMETER * whole.parameters + whole.saved_weights),
        training_activation_bytes=BYTES_PER_NUMBER * whole.saved,
    )


def count_vit(config: ViTConfig) -> Part:
    stem = count_resnet(config.stem) if isinstance(config, HybridConfig) else Part()
    return stem + count_embedding(config) + count_blocks(config) + count_pool(config) + count_heads(config)


def count_embedding(config: ViTConfig) -> Part:
    patches = config.num_patches
    positions = count_position_parameters(config)
    return Part(
        parameters=(config.patch_dim + 1 + config.num_prefix_tokens) * config.width + positions,
        macs=patches * config.patch_dim * config.width,
        saved=patches * config.patch_dim,
        peak=patches * (config.patch_dim + config.width),
    )


def count_position_parameters(config: ViTConfig) -> int:
    rows, columns = config.grid
    tables = {"stem": 1, "every-layer": config.depth, "shared": 1}[config.position_insertion]
    readout = config.num_position_rows
    if config.position == "learned-1d":
        return tables * (readout + config.num_patches) * config.width
    if config.position == "learned-2d":
        return tables * (readout * config.width + (rows + columns) * config.width // 2)
    return 0  # relative positions are the attention's


def count_blocks(config: ViTConfig) -> Part:
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
    """An encoder block whose attention runs within `num_lines` lines of tokens: one line unless it is axial."""
    d, h, t = config.width, config.num_heads, num_lines * line_length
    scales = 0 if config.layer_scale is None else 2 * d
    norms = Part(parameters=4 * d + scales, saved=2 * (t * d + 2 * t) + t * scales)
    # Held all the while: the patch tokens, the block's input, the branch's normed input, and its copy in lines of the grid.
    held = config.num_patches * d + (3 if isinstance(config, AxialConfig) else 2) * t * d
    mlp = count_mlp(config, t, held + t * d)
    attention = Part(
        parameters=4 * (d * d + d),
        macs=4 * t * d * d + 2 * t * line_length * d,
        saved=5 * t * d + h * t,  # normed input, q, k, v, output, and the logarithm of each softmax's sum
        peak=held + 5 * t * d,
    )
    return norms + attention + mlp + (count_relative_logits(config, held) if config.position == "relative" else Part())


def count_mlp(config: ViTConfig, num_tokens: int, held: int) -> Part:
    t, d, m = num_tokens, config.width, config.mlp_dim
    if config.mlp == "swiglu":
        return Part(parameters=3 * d * m + 2 * m + d, macs=3 * t * d * m, saved=t * (d + 4 * m), peak=held + 4 * t * m)
    return Part(parameters=2 * d * m + m + d, macs=2 * t * d * m, saved=t * (d + 2 * m), peak=held + 2 * t * m)


def count_relative_logits(config: ViTConfig, held: int) -> Part:
    """What relative positions add: attention with a bias is not fused, so its maps, quadratic in the tokens, are held."""
    t, d, h = config.num_tokens, config.width, config.num_heads
    embeddings = 2 * (config.num_patches + config.num_position_rows) - 1
    logits = h * t * (embeddings + 1)  # one more, always zero, serves pairs without an embedding
    maps = h * t * t
    return Part(
        parameters=embeddings * (d // h),
        macs=logits * (d // h),
        saved=t * d + logits + maps - h * t,
        peak=held + 4 * t * d + logits + maps,
    )


def count_pool(config: ViTConfig) -> Part:
    t, n, d = config.num_tokens, config.num_patches, config.width
    normed = d if config.norm_after_pool else t * d
    norm = Part(parameters=2 * d, saved=normed + 2 * normed // d + (t * d if config.pool == "class" else d))
    if config.pool != "map":
        return norm
    attention = Part(
        parameters=d + 4 * (d * d + d),
        macs=2 * d * d + 2 * n * d * d + 2 * n * d,
        saved=3 * n * d,
    )
    return norm + attention + Part(parameters=2 * d) + count_mlp(config, 1, 0)


def count_heads(config: ViTConfig) -> Part:
    hidden = Part(parameters=config.width * (config.width + 1), macs=config.width**2) if config.hidden_head else Part()
    return hidden + count_linear_head(config) * (1 + int(config.distillation_token))

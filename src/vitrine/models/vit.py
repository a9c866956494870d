"""The Vision Transformer (arXiv:2010.11929, section 3.1).

Shapes: B batch, N patches, T tokens (prefix and patches), D width.
"""

from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from vitrine.models.blocks import EncoderBlock, build_norm
from vitrine.models.config import ResizeMethod, ViTConfig, as_image_size
from vitrine.models.heads import AttentionPool, HiddenHead
from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.model import Encoded, Model
from vitrine.models.patches import PatchEmbedding
from vitrine.models.positions import AddedPositions, build_positions
from vitrine.models.weight_init import init_positions


class ResizableBlock(Protocol):
    """A block that may have parameters or settings that depend on the grid."""

    def resize(self, grid: tuple[int, int]) -> None: ...


class VisionTransformer(Model[ViTConfig]):
    """Patches, prefix tokens and positions, encoder blocks, a pool and a linear head."""

    block_intermediates: tuple[str, ...] = EncoderBlock.intermediates
    before_blocks = ("patches", "positions", "class_token", "distillation_token", "registers", "pre_norm")
    heads = ("head", "head_distillation")

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patches = PatchEmbedding(config.patch_channels, config.patch_size, config.width, config.patch_bias)
        self.class_token = nn.Parameter(torch.zeros(1, config.width)) if config.has_class_token else None
        # Random, unlike the class token: registers that start equal and have no position would stay equal.
        self.distillation_token = build_random_tokens(int(config.distillation_token), config.width)
        self.registers = build_random_tokens(config.num_registers, config.width)
        self.positions = build_positions(config)
        self.dropout = nn.Dropout(config.dropout_rate)
        self.pre_norm = build_norm(config) if config.pre_norm else None
        self.blocks = nn.ModuleList(self.build_block(index) for index in range(config.depth))
        self.norm = build_norm(config)
        self.attention_pool = AttentionPool(config) if config.pool == "map" else None
        self.hidden_head = HiddenHead(config.width, config.feature_dim) if config.hidden_head else None
        self.head = self.build_head()
        self.head_distillation = self.build_head() if config.distillation_token else None

    def build_block(self, index: int) -> nn.Module:
        """Build the encoder block of a layer; families with other blocks override this."""
        return EncoderBlock(self.config, index)

    @property
    def intermediates(self) -> tuple[str, ...]:
        names = (f"blocks.{index}.{name}" for index in range(self.config.depth) for name in self.block_intermediates)
        return ("embedding", *names)

    def embed_images(self, images: Tensor, recorder: IntermediateRecorder | None) -> tuple[Tensor, tuple[int, int]]:
        return self.patches(images), self.config.grid

    def encode_tokens(self, tokens: Tensor, patch_indices: Tensor | None, recorder: IntermediateRecorder | None) -> Encoded:
        """Add prefix tokens and positions, run the blocks, read `readout_layers`, apply the last norm."""
        config = self.config
        prefix = [t for t in (self.class_token, self.distillation_token, self.registers) if t is not None]
        tokens = torch.cat([*(t.expand(tokens.shape[0], -1, -1) for t in prefix), tokens], dim=1)  # (B, T, D)
        in_every_layer = config.position_insertion != "stem"
        if len(self.positions) > 0 and not in_every_layer:
            tokens = self.positions[0](tokens, patch_indices)  # eq. 1
        tokens = self.dropout(tokens)
        tokens = tokens if self.pre_norm is None else self.pre_norm(tokens)
        if recorder is not None:
            recorder("embedding", tokens)
        readout: list[Tensor] = []
        for index, block in enumerate(self.blocks):
            if in_every_layer:
                # One table for each layer, or one for all.
                tokens = self.positions[index % len(self.positions)](tokens, patch_indices)
            tokens = self.run_block(block, tokens) if recorder is None else block(tokens, recorder.under(f"blocks.{index}"))
            if index in config.readout_layers:
                readout.append(self.read_layer(tokens))
        tokens = tokens if config.norm_after_pool else self.norm(tokens)
        return Encoded(tokens, config.grid, {} if recorder is None else recorder.kept, patch_indices, tuple(readout))

    def read_layer(self, tokens: Tensor) -> Tensor:
        """Compute the features (B, D or 2 D) of one of `readout_layers` from its output tokens, with the last norm."""
        features: list[Tensor] = []
        for part in self.config.readout_parts:
            patches = tokens[:, self.config.num_prefix_tokens :]
            if part == "class":
                features.append(self.norm(tokens[:, 0]))
            elif self.config.norm_after_pool:
                features.append(self.norm(patches.mean(dim=1)))
            else:
                features.append(self.norm(patches).mean(dim=1))
        return torch.cat(features, dim=1)

    def pool(self, encoded: Encoded) -> Tensor:
        """Compute the features that the linear head reads; with a distillation token, the mean of both tokens."""
        if self.config.readout_layers:
            return torch.cat(encoded.readout, dim=1)
        if self.config.pool == "class":
            tokens = encoded.tokens[:, : self.config.num_readout_tokens]
            features = tokens[:, 0] if tokens.shape[1] == 1 else tokens.mean(dim=1)
        elif self.attention_pool is not None:
            features = self.attention_pool(encoded.patches)
        elif self.config.pool == "first":
            features = encoded.patches[:, 0]
        else:
            features = encoded.patches.mean(dim=1)
            features = self.norm(features) if self.config.norm_after_pool else features
        return features if self.hidden_head is None else self.hidden_head(features)

    def forward_heads(self, encoded: Encoded) -> tuple[Tensor, ...]:
        """Return the logits of the class head and, where there is one, of the distillation head."""
        if self.head_distillation is None:
            return super().forward_heads(encoded)
        return self.head(encoded.tokens[:, 0]), self.head_distillation(encoded.tokens[:, 1])

    def affects_tokens(self, name: str) -> bool:
        """Return whether the tokens depend on a parameter: not on what pools them, nor on a norm that comes after that."""
        after = ("attention_pool", "hidden_head", *(("norm",) if self.config.norm_after_pool else ()), *self.heads)
        return name.partition(".")[0] not in after

    def reset_head(self, num_classes: int, head_bias: float = 0.0, **changes: Any) -> None:
        """Replace all heads by one zero-initialised linear layer, for fine-tuning."""
        if num_classes > 0:  # without a head, features stay what the head would read
            changes |= {"hidden_head": False, "hidden_head_dim": None}
        super().reset_head(num_classes, head_bias, **changes)
        self.hidden_head = self.hidden_head if self.config.hidden_head else None
        self.head_distillation = None if self.head_distillation is None else self.build_head()

    def resize(self, image_size: int | tuple[int, int], method: ResizeMethod = "paper") -> None:
        """Interpolate position embeddings for another image size."""
        config = replace(self.config, image_size=as_image_size(image_size))
        if method != "paper" and config.position != "learned-1d":
            raise ValueError(f"Only learned-1d positions can be resized by method={method!r}, not {config.position}.")
        if config.grid != self.config.grid:
            for positions in cast("list[AddedPositions]", [*self.positions]):
                positions.resize(config.grid, method)
            for block in cast("list[ResizableBlock]", [*self.blocks]):
                block.resize(config.grid)
        self.config = config


def build_random_tokens(count: int, width: int) -> nn.Parameter | None:
    """Build learned tokens with random initial values (registers, distillation token); None for a count of 0."""
    if count == 0:
        return None
    tokens = nn.Parameter(torch.empty(count, width))
    init_positions(tokens)
    return tokens

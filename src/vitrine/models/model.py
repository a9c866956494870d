"""The contract of every model family: what training, evaluation, inspection and export may call.

Shapes: B batch, C channels, R rows and S columns of the grid, N patches, T tokens (patches and prefix), D width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.models.config import ModelConfig, ResizeMethod
from vitrine.models.heads import build_linear_head
from vitrine.models.intermediates import IntermediateRecorder, Observe, check_known_names

ConfigT = TypeVar("ConfigT", bound=ModelConfig)


@dataclass(frozen=True)
class PatchSubset:
    """Patch tokens left after dropping some: what an `edit` of `encode` returns instead of all tokens."""

    tokens: Tensor
    """(B, N', D)."""
    indices: Tensor
    """int64 (B, N'): the raster index of each token's patch, so that it gets the position of that patch."""


Edit = Callable[[Tensor], Tensor | PatchSubset]


@dataclass(frozen=True)
class Encoded:
    """Output of `Model.encode`."""

    tokens: Tensor
    """(B, T, D): prefix tokens first (class, distillation, registers), then patches in raster order."""
    grid: tuple[int, int]
    """Rows and columns of the patches of a whole image."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The intermediates that `keep` asked for, by name."""
    patch_indices: Tensor | None = None
    """(B, N'): which patches the patch tokens are, where `edit` dropped some; None: all of the grid."""
    readout: tuple[Tensor, ...] = ()
    """Features (B, D or 2 D) of each layer in `readout_layers`, which `pool` concatenates."""

    @property
    def patches(self) -> Tensor:
        """Patch tokens (B, N, D); where some were dropped, those that are left, in the order of `patch_indices`."""
        rows, columns = self.grid
        num_patches = rows * columns if self.patch_indices is None else self.patch_indices.shape[1]
        return self.tokens[:, self.tokens.shape[1] - num_patches :]

    @property
    def grid_patches(self) -> Tensor:
        """Patch tokens (B, R, S, D) on the grid of the image; a ValueError where some were dropped."""
        if self.patch_indices is not None:
            rows, columns = self.grid
            left = f"{self.patch_indices.shape[1]} patch tokens do not fill the {rows} x {columns} grid"
            raise ValueError(f"{left}: encode without dropping patches, or read `patches` and `patch_indices`.")
        return self.patches.unflatten(1, self.grid)


class Model(nn.Module, Generic[ConfigT]):
    """Base class of all networks: images in, logits out, with names for the intermediates."""

    config: ConfigT
    blocks: nn.ModuleList
    head: nn.Module
    before_blocks: tuple[str, ...] = ()
    """Names of the submodules and parameters that come before the first block."""
    heads: tuple[str, ...] = ("head",)
    """Names of the linear heads."""

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Every name that `keep` can ask for and `observe` will see, in order."""
        raise NotImplementedError

    def embed_images(self, images: Tensor, recorder: IntermediateRecorder | None) -> tuple[Tensor, tuple[int, int]]:
        """Compute patch tokens and grid, as `embed` does, from images that were checked."""
        raise NotImplementedError

    def encode_tokens(self, tokens: Tensor, patch_indices: Tensor | None, recorder: IntermediateRecorder | None) -> Encoded:
        """Run the network on the patch tokens of `embed`, possibly edited; `patch_indices` where some were dropped."""
        raise NotImplementedError

    def pool(self, encoded: Encoded) -> Tensor:
        """Compute the features (B, feature_dim) that the head reads."""
        raise NotImplementedError

    def resize(self, image_size: int | tuple[int, int], method: ResizeMethod = "paper") -> None:
        """Change the image size that the model takes, interpolating its positions if it has any (section 3.2)."""
        raise NotImplementedError

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Compute patch tokens (B, N, D) before positions, and their grid: the first part of `encode`, for users of a model."""
        self.check_images(images)
        return self.embed_images(images, None)

    def encode(
        self,
        images: Tensor,
        *,
        keep: Iterable[str] = (),
        edit: Edit | None = None,
        observe: Observe | None = None,
    ) -> Encoded:
        """Compute the tokens after the last block and norm.

        `keep` names intermediates to return, with `*` as a wildcard. `observe(name, tensor)` is called with every
        intermediate, attention maps included, and keeps nothing. `edit` changes the patch tokens before positions are added,
        or drops some and returns a `PatchSubset`. Attention maps are computed beside the attention itself, so asking for them
        does not change the tokens. Blocks are not checkpointed while intermediates are recorded.
        """
        self.check_images(images)
        patterns = (keep,) if isinstance(keep, str) else tuple(keep)
        recorder = None
        if patterns or observe is not None:
            check_known_names(patterns, self.intermediates)
            recorder = IntermediateRecorder(patterns, observe)
        tokens, _ = self.embed_images(images, recorder)
        patch_indices = None
        if edit is not None:
            tokens, patch_indices = self.check_edited(edit(tokens), tokens)
        return self.encode_tokens(tokens, patch_indices, recorder)

    def forward_heads(self, encoded: Encoded) -> tuple[Tensor, ...]:
        """Compute the logits (B, classes) of each head; the features if the model has no head."""
        return (self.head(self.pool(encoded)),)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.forward_heads(self.encode(images))
        return logits[0] if len(logits) == 1 else torch.stack(logits).mean(dim=0)

    def reset_head(self, num_classes: int, head_bias: float = 0.0, **changes: Any) -> None:
        """Replace the whole head by one zero-initialised linear layer, as fine-tuning does (section 3.2).

        `changes` are config fields that say what the new head reads: `readout_layers`, `readout`.
        """
        unknown = [name for name in changes if not hasattr(self.config, name)]
        if unknown:
            raise ValueError(f"{type(self.config).__name__} has no field {unknown[0]}: leave it out.")
        self.config = replace(self.config, num_classes=num_classes, head_bias=head_bias, **changes)
        self.head = self.build_head()

    def build_head(self) -> nn.Module:
        """Build a new head from the config, on the device and in the dtype of the model."""
        head = build_linear_head(self.config.feature_dim, self.config.num_classes, self.config.head_bias)
        return head.to(next(self.parameters()))

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay leaves out: everything but kernels of linear and conv layers."""
        return names_without_decay(self)

    def block_index(self, name: str) -> int:
        """Return the layer of a parameter: 0 before the blocks, 1..depth in them, depth + 1 in the last norm, pool and head."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return 0 if part in self.before_blocks else len(self.blocks) + 1

    def is_head(self, name: str) -> bool:
        """Return whether a parameter belongs to a linear head, which fine-tuning replaces and a linear probe trains."""
        return name.partition(".")[0] in self.heads

    def affects_tokens(self, name: str) -> bool:
        """Return whether the tokens that `encode` returns depend on a parameter."""
        return not self.is_head(name)

    def run_block(self, block: nn.Module, *inputs: Any) -> Tensor:
        """Run one block of the network, recomputed in the backward pass with gradient checkpointing."""
        if self.config.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def check_images(self, images: Tensor) -> None:
        """Raise a ValueError unless images are float (B, C, H, W) of the model's channels and size."""
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}; expected (batch, channels, height, width).")
        if not images.is_floating_point():
            raise ValueError(f"images are of {images.dtype}; normalise them to floating point first.")
        channels, *size = images.shape[1:]
        if channels != self.config.num_channels:
            advice = f"convert them, or build the model with num_channels={channels}"
            raise ValueError(f"images have {channels} channels, the model takes {self.config.num_channels}: {advice}.")
        if tuple(size) != self.config.image_size:
            height, width = self.config.image_size
            advice = f"resize them, or call model.resize(({size[0]}, {size[1]})) first"
            raise ValueError(f"images are {size[0]} x {size[1]} pixels, the model takes {height} x {width}: {advice}.")

    def check_edited(self, edited: Tensor | PatchSubset, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Check what `edit` made of the patch tokens; return the tokens and, where some were dropped, their indices."""
        if not isinstance(edited, PatchSubset):
            if edited.shape != tokens.shape:
                found = f"edit returned tokens of shape {tuple(edited.shape)}, expected {tuple(tokens.shape)}"
                raise ValueError(f"{found}: to drop patches, return PatchSubset(tokens, indices).")
            return edited, None
        if not self.config.can_drop_patches:
            needed = f"{type(self).__name__} needs every patch of the grid, so edit cannot drop any"
            raise ValueError(f"{needed}: take a ViT with learned, sin-cos or no positions.")
        (b, n, d), left = tokens.shape, edited.tokens.shape[1]
        if edited.tokens.shape != (b, left, d) or edited.indices.shape != (b, left) or not 0 < left <= n:
            found = f"edit returned tokens {tuple(edited.tokens.shape)} with indices {tuple(edited.indices.shape)}"
            raise ValueError(f"{found}; expected shapes ({b}, N', {d}) and ({b}, N'), N' from 1 to {n}.")
        if edited.indices.dtype != torch.int64:
            raise ValueError(f"edit returned indices of {edited.indices.dtype}, expected torch.int64.")
        return edited.tokens, edited.indices


def names_without_decay(module: nn.Module) -> set[str]:
    """Return the names of all parameters of a module but the kernels of its linear and convolution layers."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    kernels = {f"{name}.weight" if name else "weight" for name in layers}
    return {name for name, _ in module.named_parameters()} - kernels

"""The contract of every model family: what training, evaluation, inspection and export may call.

Shapes: B batch, C channels, N patches, T tokens (patches and prefix), D width.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrine.models.config import ModelConfig, ResizeMethod
from vitrine.models.heads import build_linear_head
from vitrine.models.intermediates import IntermediateRecorder, Observe, require_known_names

ConfigT = TypeVar("ConfigT", bound=ModelConfig)
Edit = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Encoded:
    """What `encode` returns."""

    tokens: Tensor
    """(B, T, D): prefix tokens first (class, distillation, registers), then patches in raster order."""
    grid: tuple[int, int]
    """Rows and columns of the patches."""
    kept: dict[str, Tensor] = field(default_factory=dict)
    """The intermediates that `keep` asked for, by name."""

    @property
    def patches(self) -> Tensor:
        """(B, N, D): the tokens that lie on the grid."""
        rows, columns = self.grid
        return self.tokens[:, self.tokens.shape[1] - rows * columns :]


class Model(nn.Module, Generic[ConfigT]):
    """Images in, logits out, with names for what lies between."""

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
        """What `embed` returns, for images of the right size."""
        raise NotImplementedError

    def encode_tokens(self, tokens: Tensor, recorder: IntermediateRecorder | None) -> Tensor:
        """From the patch tokens of `embed`, possibly edited, to the tokens of `Encoded`."""
        raise NotImplementedError

    def pool(self, encoded: Encoded) -> Tensor:
        """(B, feature_dim): what the head reads."""
        raise NotImplementedError

    def resize(self, image_size: int | tuple[int, int], method: ResizeMethod = "paper") -> None:
        """Take images of another size from now on; positions, where there are any, are interpolated (section 3.2)."""
        raise NotImplementedError

    def embed(self, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Patch tokens (B, N, D) before positions and prefix, and their grid."""
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
        """Tokens after the last block and norm.

        `keep` names intermediates to return, with `*` as a wildcard; `observe(name, tensor)` sees every one as it is made,
        attention maps too, without anything being kept; `edit` changes the patch tokens before positions are added. Maps are
        computed beside the attention itself, so asking for them does not change the tokens. Encoder blocks are not
        checkpointed while intermediates are asked for.
        """
        self.check_images(images)
        patterns = (keep,) if isinstance(keep, str) else tuple(keep)
        recorder = None
        if patterns or observe is not None:
            require_known_names(patterns, self.intermediates)
            recorder = IntermediateRecorder(patterns, observe)
        tokens, _ = self.embed_images(images, recorder)
        if edit is not None:
            tokens = require_same_shape(edit(tokens), tokens)
        tokens = self.encode_tokens(tokens, recorder)
        return Encoded(tokens, self.config.grid, {} if recorder is None else recorder.kept)

    def forward_heads(self, encoded: Encoded) -> tuple[Tensor, ...]:
        """The logits (B, classes) of each head; the features where the model has no head."""
        return (self.head(self.pool(encoded)),)

    def forward(self, images: Tensor) -> Tensor:
        logits = self.forward_heads(self.encode(images))
        return logits[0] if len(logits) == 1 else torch.stack(logits).mean(dim=0)

    def reset_head(self, num_classes: int, head_bias: float = 0.0) -> None:
        """Replace the whole head by one zero-initialised linear layer, as fine-tuning does (section 3.2)."""
        self.config = replace(self.config, num_classes=num_classes, head_bias=head_bias)
        self.head = self.build_head()

    def build_head(self) -> nn.Module:
        """A new head after the configuration, where the rest of the model is."""
        head = build_linear_head(self.config.feature_dim, self.config.num_classes, self.config.head_bias)
        return head.to(next(self.parameters()))

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay leaves out: everything but kernels of linear and conv layers."""
        return names_without_decay(self)

    def block_index(self, name: str) -> int:
        """Return the depth of a parameter: 0 before the blocks, 1..depth in them, depth + 1 for the last norm, pool and head."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return int(rest.partition(".")[0]) + 1
        return 0 if part in self.before_blocks else len(self.blocks) + 1

    def is_head(self, name: str) -> bool:
        """Return whether a parameter belongs to a linear head, which fine-tuning replaces and a linear probe trains."""
        return name.partition(".")[0] in self.heads

    def run_block(self, block: nn.Module, *inputs: Any) -> Tensor:
        """One block of the network, recomputed in the backward pass where the configuration says so."""
        if self.config.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def check_images(self, images: Tensor) -> None:
        if images.ndim != 4:
            raise ValueError(f"images have shape {tuple(images.shape)}; needed is (batch, channels, height, width).")
        if not images.is_floating_point():
            raise ValueError(f"images are of {images.dtype}; normalise them to floating point first.")
        channels, *size = images.shape[1:]
        if channels != self.config.num_channels:
            raise ValueError(
                f"images have {channels} channels, the model takes {self.config.num_channels}: "
                f"convert them, or build the model with num_channels={channels}."
            )
        if tuple(size) != self.config.image_size:
            height, width = self.config.image_size
            raise ValueError(
                f"images are {size[0]} x {size[1]} pixels, the model takes {height} x {width}: "
                f"resize them, or call model.resize(({size[0]}, {size[1]})) first."
            )


def require_same_shape(edited: Tensor, tokens: Tensor) -> Tensor:
    if edited.shape != tokens.shape:
        raise ValueError(
            f"edit returned tokens of shape {tuple(edited.shape)}; it must keep the shape {tuple(tokens.shape)} it was given."
        )
    return edited


def names_without_decay(module: nn.Module) -> set[str]:
    """Return the names of all parameters of a module but the kernels of its linear and convolution layers."""
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    kernels = {f"{name}.weight" if name else "weight" for name in layers}
    return {name for name, _ in module.named_parameters()} - kernels

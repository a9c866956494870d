"""Masked patch prediction, the paper's self-supervision (appendix B.1.2 of arXiv:2010.11929), whose code was never released.

Some patch embeddings are corrupted before positions are added. The model predicts from the output tokens at these patches
what they looked like. Letters: B images, N patches of each, M corrupted ones, C channels, P patch size, D width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.data.batch import Batch, Draw, Draws
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, hash_keys
from vitrine.models.config import HybridConfig, ResNetConfig
from vitrine.models.heads import build_linear_head
from vitrine.models.model import Model
from vitrine.models.patches import cut_patches
from vitrine.models.weight_init import init_positions
from vitrine.objectives.config import MaskedPatchesConfig, PatchTarget
from vitrine.objectives.objective import LossOutput, Objective, at_least_float32

LEVELS = 8  # per channel: 3 bits
SMALL_SIDE = 4  # of a shrunk patch, target small-colours


@dataclass(frozen=True)
class Corruption:
    """Corrupted patches of each image of a batch, equally many in every image."""

    index: Tensor
    """int64 (B, M): the corrupted patches. First the masked ones, then the replaced ones, then those left unchanged."""
    num_masked: int
    replacements: Tensor
    """int64 (B, R): the uncorrupted patches whose embeddings the replaced ones get."""

    def apply(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Corrupt patch embeddings (B, N, D): masked ones become `mask` (D), replaced ones another patch's embedding."""
        num_replaced = self.replacements.shape[1]
        masked, replaced = self.index[:, : self.num_masked], self.index[:, self.num_masked : self.num_masked + num_replaced]
        others = take(tokens, self.replacements)
        tokens = tokens.scatter(1, expand(masked, tokens), mask.to(tokens.dtype).expand(*masked.shape, -1))
        return tokens.scatter(1, expand(replaced, tokens), others)


def draw_corruption(config: MaskedPatchesConfig, num_patches: int, seed: int, index: Tensor, step: int) -> Draws:
    """Draw the corrupted patches of the images `index` (B): a function of seed, step and image, so a resumed run repeats it.

    Returns `corrupted` (B, M) and `replacements` (B, R), which `Corruption` explains.
    """
    num_corrupted, _, num_replaced = config.count(num_patches)
    samples = hash_keys(seed, RngStream.MASKING, step, index.numpy())[:, None]  # (B, 1)
    order = np.argsort(hash_keys(samples, np.arange(num_patches)), axis=1, kind="stable")  # (B, N)
    chosen = hash_keys(samples, num_patches + np.arange(num_replaced)) % np.uint64(num_patches - num_corrupted)
    replacements = np.take_along_axis(order[:, num_corrupted:], chosen.astype(np.int64), axis=1)
    return {"corrupted": torch.from_numpy(order[:, :num_corrupted].copy()), "replacements": torch.from_numpy(replacements)}


class Target(Protocol):
    """What is predicted for a patch."""

    num_outputs: int
    metric_name: str

    def compute(self, patches: Tensor) -> Tensor:
        """Return the targets of patches (B, M, C * P * P)."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        """Compare outputs (B, M, num_outputs) of the model with the targets."""
        ...

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the predicted targets, in the form that `compute` gives."""
        ...

    def render(self, targets: Tensor) -> Tensor:
        """Return patches (B, M, C * P * P) that show targets or predictions."""
        ...


class ColourTarget:
    """3-bit colours of the patch shrunk to side x side, each a class; side 1 is the mean colour."""

    metric_name = "accuracy"

    def __init__(self, num_channels: int, patch_size: int, side: int) -> None:
        if patch_size < side:
            raise ValueError(
                f"Patches of {patch_size} pixels cannot be shrunk to {side} x {side}: use e.g. target mean-colour."
            )
        self.num_channels, self.patch_size, self.side = num_channels, patch_size, side
        self.num_colours = LEVELS**num_channels
        self.num_outputs = side * side * self.num_colours

    def compute(self, patches: Tensor) -> Tensor:
        """Return colour classes int64 (B, M, side * side) of patches with values in 0..255."""
        b, m, _ = patches.shape
        pixels = patches.reshape(b * m, self.num_channels, self.patch_size, self.patch_size)
        means = F.adaptive_avg_pool2d(pixels, self.side)  # (B * M, C, side, side)
        levels = (means * (LEVELS / 256)).long().clamp_(0, LEVELS - 1)
        weights = LEVELS ** torch.arange(self.num_channels - 1, -1, -1, device=patches.device)  # first channel: highest digit
        return (levels * weights[:, None, None]).sum(dim=1).reshape(b, m, -1)

    def loss(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        """Return the cross-entropy of predicted colour classes, for `MaskedPatches.forward`."""
        logits = at_least_float32(outputs).reshape(-1, self.num_colours)
        classes = targets.reshape(-1)
        hits = (logits.argmax(dim=1) == classes).float().mean()
        return LossOutput(F.cross_entropy(logits, classes), {self.metric_name: hits.detach()})

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(-1, (-1, self.num_colours)).argmax(dim=-1)

    def render(self, targets: Tensor) -> Tensor:
        """Return the middle of each level, in 0..255."""
        b, m, _ = targets.shape
        digits = range(self.num_channels - 1, -1, -1)
        levels = torch.stack([targets // LEVELS**digit % LEVELS for digit in digits], dim=2)
        small = ((levels + 0.5) * (256 / LEVELS)).reshape(b * m, self.num_channels, self.side, self.side)
        return F.interpolate(small, size=self.patch_size, mode="nearest").reshape(b, m, -1)


class PixelTarget:
    """All pixels of the patch, normalised like the model's input, by squared distance."""

    metric_name = "explained"  # fraction of the variance

    def __init__(self, num_channels: int, patch_size: int) -> None:
        self.num_outputs = num_channels * patch_size * patch_size

    def compute(self, patches: Tensor) -> Tensor:
        return patches

    def loss(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        """Return the squared error of predicted pixels, for `MaskedPatches.forward`."""
        outputs, targets = at_least_float32(outputs), at_least_float32(targets)
        loss = F.mse_loss(outputs, targets)
        explained = 1 - loss.detach() / targets.var(correction=0).clamp(min=1e-12)
        return LossOutput(loss, {self.metric_name: explained})

    def predict(self, outputs: Tensor) -> Tensor:
        return outputs

    def render(self, targets: Tensor) -> Tensor:
        return targets


def build_target(target: PatchTarget, num_channels: int, patch_size: int) -> Target:
    """Build the target that a config names."""
    if target == "pixels":
        return PixelTarget(num_channels, patch_size)
    return ColourTarget(num_channels, patch_size, side=1 if target == "mean-colour" else SMALL_SIDE)


class MaskedPatches(Objective):
    """Cross-entropy of the colours of corrupted patches, or the squared distance of their pixels."""

    def __init__(self, model: Model[Any], preprocessing: Preprocessing, config: MaskedPatchesConfig, seed: int = 0) -> None:
        super().__init__(model, preprocessing)
        if isinstance(model.config, HybridConfig | ResNetConfig):
            raise ValueError(
                "Masked patch prediction needs patches cut from the image, and this model has a ResNet: use a ViT."
            )
        self.config, self.seed = config, seed
        self.patch_size: int = model.config.patch_size
        self.target = build_target(config.target, model.config.num_channels, self.patch_size)
        self.metric_names = (self.target.metric_name,)
        self.mask = nn.Parameter(torch.empty(model.config.width))
        init_positions(self.mask)
        config.count(self.num_patches)  # raises if all patches or none would be corrupted
        self.prediction = build_linear_head(model.config.width, self.target.num_outputs, bias=0.0)

    @classmethod
    def build(cls, model: Model[Any], preprocessing: Preprocessing, settings: Mapping[str, Any], seed: int) -> Self:
        return cls(model, preprocessing, settings["masked_patches"], seed)

    def forward(self, batch: Batch) -> LossOutput:
        """Corrupt the patches of a batch, predict them and return the loss, for the training loop."""
        corruption = self.read_corruption(batch)
        outputs = self.predict(batch.image, corruption)
        return self.target.loss(outputs, self.compute_targets(batch.image, corruption.index))

    @property
    def num_patches(self) -> int:
        rows, columns = self.encoder.config.grid
        return rows * columns

    def trains(self, name: str) -> bool:
        return self.encoder.affects_tokens(name)

    def build_draw(self) -> Draw:
        return partial(draw_corruption, self.config, self.num_patches, self.seed)

    def read_corruption(self, batch: Batch) -> Corruption:
        """Return the patches to corrupt, which were drawn for the batch."""
        draws, (_, num_masked, _) = self.require_draws(batch), self.config.count(self.num_patches)
        return Corruption(draws["corrupted"], num_masked, draws["replacements"])

    def predict(self, images: Tensor, corruption: Corruption) -> Tensor:
        """Return the outputs (B, M, num_outputs) at the corrupted patches; nothing is computed for the others."""
        encoded = self.encoder.encode(self.normalise(images), edit=partial(corruption.apply, mask=self.mask))
        return self.prediction(take(encoded.patches, corruption.index))

    def compute_targets(self, images: Tensor, index: Tensor) -> Tensor:
        """Return the targets of the patches `index` (B, M) of raw images."""
        patches = take(cut_patches(images, self.patch_size), index)
        if self.config.target == "pixels":
            cells = patches.unflatten(-1, (-1, self.patch_size, self.patch_size))
            return self.target.compute(self.normalise(cells).flatten(2))
        return self.target.compute(to_byte_range(patches))

    def render(self, targets: Tensor) -> Tensor:
        """Return patches (B, M, C * P * P) in 0..255 that show targets or predictions."""
        patches = self.target.render(targets)
        if self.config.target == "pixels":
            cells = patches.unflatten(-1, (-1, self.patch_size, self.patch_size))
            patches = ((cells * self.std + self.mean) * 255).flatten(2)
        return patches.clamp(0, 255)


def to_byte_range(images: Tensor) -> Tensor:
    """Convert uint8 images, or floats in 0..1, to floats in 0..255."""
    return images.float() if images.dtype == torch.uint8 else images.float() * 255


def take(rows: Tensor, index: Tensor) -> Tensor:
    """Return the rows (B, M, D) of `rows` (B, N, D) at `index` (B, M)."""
    return rows.gather(1, expand(index, rows))


def expand(index: Tensor, rows: Tensor) -> Tensor:
    """Repeat `index` (B, M) along the last axis of `rows` (B, N, D), as gather and scatter need it."""
    return index[:, :, None].expand(-1, -1, rows.shape[2])

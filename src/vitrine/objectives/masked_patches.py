"""Masked patch prediction, the paper's self-supervision (appendix B.1.2 of arXiv:2010.11929), whose code was never released.

Some patch embeddings are corrupted before positions are added, and what the patches looked like is predicted from the tokens
at these places. Letters: B images, N patches of each, M corrupted ones, C channels, P patch size, D width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.sampling import RngStream, hash_keys
from vitrine.models.config import HybridConfig, ResNetConfig
from vitrine.models.heads import build_linear_head
from vitrine.models.model import Model
from vitrine.models.patches import cut_patches
from vitrine.models.weight_init import init_positions
from vitrine.objectives.config import MaskedPatchesConfig, PatchTarget
from vitrine.objectives.objective import LossOutput, Objective

LEVELS = 8  # of each channel: 3 bits
SMALL_SIDE = 4  # of a patch that is shrunk


@dataclass(frozen=True)
class Corruption:
    """Which patches of each image of a batch are corrupted, and how; the same number in every image."""

    places: Tensor
    """int64 (B, M): the corrupted patches; first those that become [mask], then those replaced, then those that stay."""
    num_masked: int
    replacements: Tensor
    """int64 (B, R): the uncorrupted patches whose embeddings the replaced ones get."""

    def to(self, device: torch.device) -> "Corruption":
        return Corruption(self.places.to(device), self.num_masked, self.replacements.to(device))

    def apply(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Patch embeddings (B, N, D), of which the corrupted are the mask's (D), another patch's, or their own."""
        num_replaced = self.replacements.shape[1]
        masked, replaced = self.places[:, : self.num_masked], self.places[:, self.num_masked : self.num_masked + num_replaced]
        others = take(tokens, self.replacements)
        tokens = tokens.scatter(1, expand(masked, tokens), mask.to(tokens.dtype).expand(*masked.shape, -1))
        return tokens.scatter(1, expand(replaced, tokens), others)


def draw_corruption(config: MaskedPatchesConfig, index: Tensor, step: int, num_patches: int, seed: int) -> Corruption:
    """A function of the seed, the step and each image's number `index` (B), so that a resumed run draws the same."""
    num_corrupted, num_masked, num_replaced = config.count(num_patches)
    samples = hash_keys(seed, RngStream.MASKING, step, index.numpy())[:, None]  # (B, 1)
    order = np.argsort(hash_keys(samples, np.arange(num_patches)), axis=1, kind="stable")  # (B, N)
    chosen = hash_keys(samples, num_patches + np.arange(num_replaced)) % np.uint64(num_patches - num_corrupted)
    replacements = np.take_along_axis(order[:, num_corrupted:], chosen.astype(np.int64), axis=1)
    return Corruption(torch.from_numpy(order[:, :num_corrupted].copy()), num_masked, torch.from_numpy(replacements))


class Target(Protocol):
    """What is predicted of a patch."""

    num_outputs: int
    metric_name: str

    def read(self, patches: Tensor) -> Tensor:
        """From patches (B, M, C * P * P) to what `compare` takes."""
        ...

    def compare(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        """Of outputs (B, M, num_outputs)."""
        ...

    def answer(self, outputs: Tensor) -> Tensor:
        """The prediction, in the form that `read` gives."""
        ...

    def render(self, targets: Tensor) -> Tensor:
        """Patches (B, M, C * P * P) that look like what `read` or `answer` gave, as far as it says."""
        ...


class ColourTarget:
    """3-bit colours of the patch shrunk to side x side, a class for each: the mean colour for a side of 1."""

    metric_name = "accuracy"

    def __init__(self, num_channels: int, patch_size: int, side: int) -> None:
        if patch_size < side:
            raise ValueError(
                f"Patches of {patch_size} pixels cannot be shrunk to {side} x {side}: take another target, as mean-colour."
            )
        self.num_channels, self.patch_size, self.side = num_channels, patch_size, side
        self.num_colours = LEVELS**num_channels
        self.num_outputs = side * side * self.num_colours

    def read(self, patches: Tensor) -> Tensor:
        """int64 (B, M, side * side), of values in 0..255."""
        b, m, _ = patches.shape
        pixels = patches.reshape(b * m, self.num_channels, self.patch_size, self.patch_size)
        means = F.adaptive_avg_pool2d(pixels, self.side)  # (B * M, C, side, side)
        levels = (means * (LEVELS / 256)).long().clamp_(0, LEVELS - 1)
        weights = LEVELS ** torch.arange(self.num_channels - 1, -1, -1, device=patches.device)  # the first channel counts most
        return (levels * weights[:, None, None]).sum(dim=1).reshape(b, m, -1)

    def compare(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        logits = outputs.float().reshape(-1, self.num_colours)
        classes = targets.reshape(-1)
        hits = (logits.argmax(dim=1) == classes).float().mean()
        return LossOutput(F.cross_entropy(logits, classes), {"accuracy": hits.detach()})

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs.unflatten(-1, (-1, self.num_colours)).argmax(dim=-1)

    def render(self, targets: Tensor) -> Tensor:
        """The middle of each level, in 0..255."""
        b, m, _ = targets.shape
        levels = torch.stack([targets // LEVELS**place % LEVELS for place in range(self.num_channels - 1, -1, -1)], dim=2)
        small = ((levels + 0.5) * (256 / LEVELS)).reshape(b * m, self.num_channels, self.side, self.side)
        return F.interpolate(small, size=self.patch_size, mode="nearest").reshape(b, m, -1)


class PixelTarget:
    """All values of the patch as the model sees them, mean and std of its preprocessing taken off, by squared distance."""

    metric_name = "explained"  # share of the variance

    def __init__(self, num_channels: int, patch_size: int) -> None:
        self.num_outputs = num_channels * patch_size * patch_size

    def read(self, patches: Tensor) -> Tensor:
        return patches

    def compare(self, outputs: Tensor, targets: Tensor) -> LossOutput:
        loss = F.mse_loss(outputs.float(), targets.float())
        return LossOutput(loss, {"explained": 1 - loss.detach() / targets.float().var(correction=0).clamp(min=1e-12)})

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs

    def render(self, targets: Tensor) -> Tensor:
        return targets


def build_target(target: PatchTarget, num_channels: int, patch_size: int) -> Target:
    if target == "pixels":
        return PixelTarget(num_channels, patch_size)
    return ColourTarget(num_channels, patch_size, side=1 if target == "mean-colour" else SMALL_SIDE)


class MaskedPatches(Objective):
    """Cross-entropy of the colours of corrupted patches, or the squared distance of their pixels."""

    def __init__(self, model: Model[Any], preprocessing: Preprocessing, config: MaskedPatchesConfig, seed: int = 0) -> None:
        super().__init__(model, preprocessing)
        if isinstance(model.config, HybridConfig | ResNetConfig):
            raise ValueError(
                "Masked patch prediction needs patches that are cut from the image, as a ViT's, and this model has a ResNet "
                "before them or instead of them: take a ViT."
            )
        self.config, self.seed = config, seed
        self.patch_size: int = model.config.patch_size
        rows, columns = model.config.grid
        config.count(rows * columns)  # which refuses what leaves nothing to predict, or from
        self.target = build_target(config.target, model.config.num_channels, self.patch_size)
        self.metric_names = (self.target.metric_name,)
        self.mask = nn.Parameter(torch.empty(model.config.width))
        init_positions(self.mask)
        self.prediction = build_linear_head(model.config.width, self.target.num_outputs, bias=0.0)

    def forward(self, batch: Batch) -> LossOutput:
        corruption = self.draw(batch)
        return self.target.compare(self.predict(batch.image, corruption), self.read_targets(batch.image, corruption.places))

    def draw(self, batch: Batch) -> Corruption:
        rows, columns = self.encoder.config.grid
        return draw_corruption(self.config, batch.index, batch.step, rows * columns, self.seed).to(batch.image.device)

    def predict(self, images: Tensor, corruption: Corruption) -> Tensor:
        """What is predicted at the corrupted places (B, M, outputs): nothing is computed for the others."""
        encoded = self.encoder.encode(self.normalise(images), edit=partial(corruption.apply, mask=self.mask))
        return self.prediction(take(encoded.patches, corruption.places))

    def read_targets(self, images: Tensor, places: Tensor) -> Tensor:
        """What is to be predicted at the places, from raw pixels."""
        patches = take(cut_patches(images, self.patch_size), places)
        if self.config.target == "pixels":
            cells = patches.unflatten(-1, (-1, self.patch_size, self.patch_size))
            return self.target.read(self.normalise(cells).flatten(2))
        return self.target.read(to_byte_range(patches))

    def render(self, targets: Tensor) -> Tensor:
        """Patches (B, M, C * P * P) in 0..255 that look like targets, or like answers to them."""
        patches = self.target.render(targets)
        if self.config.target == "pixels":
            cells = patches.unflatten(-1, (-1, self.patch_size, self.patch_size))
            patches = ((cells * self.std + self.mean) * 255).flatten(2)
        return patches.clamp(0, 255)


def to_byte_range(images: Tensor) -> Tensor:
    """Floats in 0..255, of bytes, or of floats in 0..1."""
    return images.float() if images.dtype == torch.uint8 else images.float() * 255


def take(rows: Tensor, places: Tensor) -> Tensor:
    """(B, M, ..) of rows (B, N, ..) at places (B, M)."""
    return rows.gather(1, expand(places, rows))


def expand(places: Tensor, rows: Tensor) -> Tensor:
    return places[:, :, None].expand(-1, -1, rows.shape[2])

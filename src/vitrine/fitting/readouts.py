"""Readouts: which layers of a model a linear head reads, and their features, all from one pass through the network.

Letters: N images, D features.
"""

import hashlib
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrine.data.preprocessing import Preprocessing
from vitrine.engines.engine import Engine, TorchEngine
from vitrine.formats.checkpoint import NO_CALIBRATION, Checkpoint
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.config import Readout as Parts
from vitrine.models.model import Model

RESNET_FEATURES = 2048  # of a ResNet of width 1
MAX_FEATURES = 6144  # of a readout; a head on more takes minutes to choose


@dataclass(frozen=True)
class Readout:
    """Layers of a network, and what is read of each; no layers: the features of the model's own pool."""

    layers: tuple[int, ...] = ()
    parts: Parts | None = None

    @property
    def changes(self) -> dict[str, Any]:
        """Config fields of a head that reads this."""
        return {"readout_layers": self.layers, "readout": self.parts} if self.layers else {}

    def count_features(self, config: ModelConfig) -> int:
        """Return the number of features that the head reads; about, for the model's own."""
        if isinstance(config, ResNetConfig):
            return round(RESNET_FEATURES * config.width_factor)
        assert isinstance(config, ViTConfig)
        return config.width * max(1, len(self.layers)) * (2 if self.parts == "both" else 1)

    def describe(self) -> str:
        """Return the readout in words, e.g. "class tokens of blocks 9 to 11"."""
        if not self.layers:
            return "the model's own features"
        first, last = self.layers[0], self.layers[-1]
        is_range = len(self.layers) == last - first + 1
        blocks = f"{first} to {last}" if is_range else f"{', '.join(map(str, self.layers[:-1]))} and {last}"
        parts = {"class": "class token", "mean": "patch mean", "both": "class token and patch mean"}[self.parts or "class"]
        return f"{parts} of block {last}" if len(self.layers) == 1 else f"{parts} of blocks {blocks}"


def list_readouts(config: ModelConfig) -> list[Readout]:
    """List the readouts to choose from, the most promising first, so that little time is spent well.

    Middle layers serve data unlike the pre-training data: every other block of the upper two thirds, the upper half, the last
    quarter, the last block. Heads that read them cannot follow attention pooling, a hidden layer or a distillation token.
    """
    if not isinstance(config, ViTConfig) or config.pool in ("map", "first") or config.distillation_token:
        return [Readout()]
    depth, last = config.depth, config.depth - 1
    spread = tuple(sorted(range(last, max(-1, depth // 3), -2)))
    half, quarter = (tuple(range(depth - max(1, round(depth * part)), depth)) for part in (0.5, 0.25))
    parts: tuple[Parts, ...] = ("class", "both") if config.has_class_token else ("mean",)
    ordered = [Readout(spread, parts[-1]), Readout(half, parts[0])]
    ordered += [Readout(layers, parts[-1]) for layers in (half, quarter, (last,))]
    ordered += [Readout(layers, parts[0]) for layers in (spread, quarter, (last,))]
    ordered = [each for each in dict.fromkeys(ordered) if each.layers]
    return [each for each in ordered if each.count_features(config) <= MAX_FEATURES or each == Readout((last,), parts[0])]


def join_readouts(readouts: list[Readout]) -> Readout:
    """Return the readout that contains all others."""
    layers = tuple(sorted({layer for readout in readouts for layer in readout.layers}))
    parts: set[Parts | None] = {readout.parts for readout in readouts if readout.layers}
    return Readout(layers, parts.pop() if len(parts) == 1 else "both") if parts else Readout()


def select_columns(part: Readout, whole: Readout, width: int) -> np.ndarray:
    """Return the columns of a readout among the features of a larger one, of which each layer has class token and mean."""
    if not part.layers:
        return np.arange(width)
    names = {"class": ("class",), "mean": ("mean",), "both": ("class", "mean")}
    have, want = names[whole.parts or "class"], names[part.parts or "class"]
    starts = [(whole.layers.index(layer) * len(have) + have.index(name)) * width for layer in part.layers for name in want]
    return np.concatenate([np.arange(start, start + width) for start in starts])


def build_reader(
    checkpoint: Checkpoint, readout: Readout, num_classes: int, preprocessing: Preprocessing | None = None
) -> Checkpoint:
    """Return a copy of a checkpoint with a new head of zeros that has `num_classes` classes and reads the given layers."""
    model: Model[Any] = deepcopy(checkpoint.model)
    model.reset_head(num_classes, **readout.changes)
    preprocessing = preprocessing or checkpoint.preprocessing
    return replace(checkpoint, model=model, preprocessing=preprocessing, class_names=None, calibration=NO_CALIBRATION)


def set_head(model: Model[Any], weight: Tensor, bias: Tensor) -> None:
    """Copy a linear layer into every head of a model."""
    with torch.no_grad():
        for name in model.heads:
            head = getattr(model, name, None)
            if isinstance(head, torch.nn.Linear):
                head.weight.copy_(weight)
                head.bias.copy_(bias)


class FlippedEngine:
    """An engine that sees every image flipped left to right."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def features(self, images: Tensor) -> Tensor:
        """Compute the features (B, D) of flipped images."""
        return self.engine.features(images.flip(-1))

    def fingerprint(self) -> str:
        """Return a key of cached features of its own."""
        return hashlib.blake2b(f"flipped {self.engine.fingerprint()}".encode(), digest_size=16).hexdigest()


def flip_engine(engine: TorchEngine) -> Engine:
    """Return an engine that sees every image flipped left to right."""
    return FlippedEngine(engine)  # type: ignore[return-value]  # it has the rest by __getattr__

"""What computes a model: the `Engine` contract, and PyTorch's engine.

An engine takes raw images (uint8, or floats in 0..1) of the model's input size and normalises them itself.
Shapes: B images, C channels, K classes, D features, H heads, T tokens.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.checkpoint import Checkpoint, compute_checksum
from vitrine.models.model import Encoded, Model
from vitrine.models.registry import config_to_json

ATTENTION_NAME = re.compile(r"blocks\.(\d+)\.attention")
FEATURE_VERSION = 1  # raise it when the same model and images give other features: cached features are then recomputed

OnAttention = Callable[[int, Tensor], None]
"""Receives a layer's number and its attention maps (B, H, T, T), from query to key."""


class Engine(Protocol):
    """A loaded model that computes logits, features and attention maps of raw image batches."""

    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    num_classes: int
    """0: the model has no head."""
    device: torch.device
    """Where images must be."""

    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, H, W)."""
        ...

    def features(self, images: Tensor) -> Tensor:
        """Compute the features (B, D) that the head reads."""
        ...

    def stream_attention(self, images: Tensor, on_attention: OnAttention) -> None:
        """Call `on_attention` with each layer's attention maps while the images pass through the model."""
        ...

    def fingerprint(self) -> str:
        """Hash everything that determines the features of an image: the key of cached features."""
        ...


class TorchEngine:
    """A checkpoint on a device, computed by PyTorch in evaluation mode."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu") -> None:
        self.model = checkpoint.model.to(device).eval()
        self.preprocessing = checkpoint.preprocessing
        self.class_names = checkpoint.class_names
        self.num_classes = checkpoint.model.config.num_classes
        self.device = torch.device(device)

    # Not inference_mode: a sharded model would keep its tensors for the next training step.
    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, H, W)."""
        return self.model(self.preprocessing.normalise(images))

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the features (B, D) that the head reads (`pre_logits` in the released code)."""
        return self.model.pool(self.model.encode(self.preprocessing.normalise(images)))

    def stream_attention(self, images: Tensor, on_attention: OnAttention) -> None:
        """Call `on_attention` with each layer's attention maps while the images pass through the model."""
        stream_attention(self.model, self.preprocessing.normalise(images), on_attention)

    def fingerprint(self) -> str:
        """Hash config, preprocessing and weights: the key of cached features."""
        config, weights = config_to_json(self.model.config), compute_checksum(dict(self.model.state_dict()))
        parts = (FEATURE_VERSION, config, self.preprocessing.to_json(), weights)
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


@torch.no_grad()
def stream_attention(model: Model[Any], images: Tensor, on_attention: OnAttention) -> Encoded:
    """Encode normalised images; `on_attention` gets each layer's maps as they are computed, and none is kept."""

    def observe(name: str, tensor: Tensor) -> None:
        """Pass the attention maps of a layer on to the caller of `stream_attention`."""
        match = ATTENTION_NAME.fullmatch(name)
        if match is not None:
            on_attention(int(match[1]), tensor)

    return model.encode(images, observe=observe)

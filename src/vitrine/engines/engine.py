"""What computes a model: the `Engine` contract, and PyTorch's engine.

An engine takes raw images (uint8, or floats in 0..1) of the model's input size and normalises them itself.
Shapes: B images, C channels, K classes, D features, H heads, T tokens.
"""

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrine.core.precision import Precision, choose_dtype, computing_in
from vitrine.data.preprocessing import Preprocessing
from vitrine.formats.checkpoint import Calibration, Checkpoint, compute_checksum
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
    calibration: Calibration
    """How logits become probabilities; `logits` are divided by its temperature already."""
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
    """A checkpoint on a device, computed by PyTorch in evaluation mode and in a precision."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str = "cpu", precision: Precision = "auto") -> None:
        self.device = torch.device(device)
        self.dtype = choose_dtype(precision, self.device)
        """What products and convolutions are computed in; the weights stay as they are."""
        self.model = checkpoint.model.to(self.device).eval()
        self.preprocessing = checkpoint.preprocessing
        # Kept on the device: building them for each batch would make device and host wait for each other.
        self.constants = self.preprocessing.build_constants(device=self.device)
        self.class_names = checkpoint.class_names
        self.num_classes = checkpoint.model.config.num_classes
        self.calibration = checkpoint.calibration

    # Not inference_mode: a sharded model would keep its tensors for the next training step.
    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Compute logits (B, K) of images (B, C, H, W), divided by the temperature."""
        with self.computing():
            logits = self.model(self.normalise(images))
        return logits if self.calibration.temperature == 1 else logits / self.calibration.temperature

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Compute the features (B, D) that the head reads (`pre_logits` in the released code)."""
        with self.computing():
            return self.model.pool(self.model.encode(self.normalise(images)))

    def stream_attention(self, images: Tensor, on_attention: OnAttention) -> None:
        """Call `on_attention` with each layer's attention maps while the images pass through the model."""

        def receive(layer: int, attention: Tensor) -> None:
            with torch.autocast(self.device.type, enabled=False):  # what is made of the maps keeps their precision
                on_attention(layer, attention.float())

        with self.computing():
            stream_attention(self.model, self.normalise(images), receive)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise raw images on the device, as the model takes them."""
        return self.preprocessing.normalise(images, self.constants)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context that computes in the engine's precision."""
        return computing_in(self.dtype, self.device)

    def fingerprint(self) -> str:
        """Hash config, preprocessing, weights and precision: the key of cached features."""
        config, weights = config_to_json(self.model.config), compute_checksum(dict(self.model.state_dict()))
        # float32 is left out: it was the only precision when the first features were cached, and these are still found.
        precision = () if self.dtype == torch.float32 else (str(self.dtype),)
        parts = (FEATURE_VERSION, config, self.preprocessing.to_json(), weights, *precision)
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

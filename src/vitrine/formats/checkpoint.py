"""A checkpoint: a model with all that is needed to use it, and its description in JSON.

The description lies in our folder's config.json, in the metadata of safetensors, or in a side file; the same in each.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitrine.data.preprocessing import Preprocessing
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import config_from_json, config_to_json

FORMAT = 1  # Raise it when a reader of the old layout would misread the new one.
DESCRIPTION_KEY, SEAL_KEY = "vitrine", "vitrine_checksum"  # in the metadata of safetensors
SIDE_FILE_ENDING = ".vitrine.json"


@dataclass(frozen=True)
class Checkpoint:
    model: Model[Any]
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where it came from: source, format and what its numbers were stored as."""

    def __post_init__(self) -> None:
        config = self.model.config
        require_class_names(self.class_names, config)
        if self.preprocessing.crop != config.image_size or self.preprocessing.num_channels != config.num_channels:
            height, width = self.preprocessing.crop
            raise ValueError(
                f"The preprocessing makes images of {self.preprocessing.num_channels} x {height} x {width}, and the model "
                f"takes {config.num_channels} x {config.image_size[0]} x {config.image_size[1]}: "
                "give one for that size."
            )


@dataclass(frozen=True)
class CheckpointMetadata:
    """All of a checkpoint but its weights."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    provenance: dict[str, Any]
    checksum: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": config_to_json(self.config),
            "preprocessing": self.preprocessing.to_json(),
            "class_names": self.class_names,
            "provenance": self.provenance,
            "checksum": self.checksum,
        }


def is_description(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("format"), int) and isinstance(content.get("model"), dict)


def parse_description(content: Mapping[str, Any], name: str) -> CheckpointMetadata:
    if content.get("format") != FORMAT:
        raise ValueError(
            f"{name} is of format {content.get('format')!r}; this version reads format {FORMAT}: install a newer one."
        )
    try:
        config = config_from_json(content.get("model"))
        preprocessing = Preprocessing.from_json(content.get("preprocessing"))
        names = parse_class_names(content.get("class_names"))
        require_class_names(names, config)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    provenance, checksum = content.get("provenance"), content.get("checksum")
    if not isinstance(provenance, dict) or not isinstance(checksum, str | None):
        raise ValueError(f"{name} must have provenance, an object, and checksum, a text.")
    return CheckpointMetadata(config, preprocessing, names, provenance, checksum)


def parse_class_names(content: object) -> tuple[str, ...] | None:
    if content is None:
        return None
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ValueError("class_names must be a list of texts, or null.")
    return tuple(content)


def require_class_names(names: tuple[str, ...] | None, config: ModelConfig) -> None:
    if names is not None and len(names) != config.num_classes:
        raise ValueError(f"{len(names)} class names do not fit a model of {config.num_classes} classes: give one for each.")


def seal(description: CheckpointMetadata) -> dict[str, str]:
    """A description as metadata of safetensors, where nobody edits it; so, unlike JSON files, it has a checksum of its own."""
    text = json.dumps(description.to_json())
    return {DESCRIPTION_KEY: text, SEAL_KEY: hashlib.sha256(text.encode()).hexdigest()}


def open_sealed(metadata: Mapping[str, str], name: str) -> str:
    text = metadata.get(DESCRIPTION_KEY, "")
    if hashlib.sha256(text.encode()).hexdigest() != metadata.get(SEAL_KEY):
        raise ValueError(
            f"{name} was damaged: the description in its metadata does not fit its checksum; fetch or copy it again."
        )
    return text


class Checksum:
    """SHA-256 over name, kind, shape and numbers of every tensor, in whatever order they come."""

    def __init__(self, *, is_needed: bool = True) -> None:
        self.is_needed = is_needed
        self.digests: list[str] = []

    def watch(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself, taken into account."""
        if self.is_needed:
            head = f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode()
            numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self.digests.append(hashlib.sha256(head).hexdigest() + hashlib.sha256(numbers.data).hexdigest())
        return tensor

    def value(self) -> str:
        return "sha256:" + hashlib.sha256("\n".join(sorted(self.digests)).encode()).hexdigest()


def compute_checksum(tensors: Mapping[str, Tensor]) -> str:
    checksum = Checksum()
    for name, tensor in tensors.items():
        checksum.watch(name, tensor)
    return checksum.value()

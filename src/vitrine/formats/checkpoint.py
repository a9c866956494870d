"""Checkpoint: a model with everything needed to use it, and its metadata as JSON.

The same JSON is the config.json of our folders, an entry in the metadata of safetensors files, or a side file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from vitrine.core.checksums import hash_bytes
from vitrine.core.console import warn_user
from vitrine.data.preprocessing import Preprocessing, is_number
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import config_from_json, config_to_json

# The version is raised when a reader of the one before would misread the checkpoint. Version 2 has readout layers, a letterbox
# or a calibration; checkpoints without them are written as version 1, which older programs read.
FORMAT_VERSION, FIRST_FORMAT_VERSION = 2, 1
METADATA_KEY, METADATA_CHECKSUM_KEY = "vitrine", "vitrine_checksum"  # in the metadata of safetensors
SIDE_FILE_ENDING = ".vitrine.json"
OWN_CHECKSUM_KEY = "metadata_checksum"  # in config.json and in side files
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3


@dataclass(frozen=True)
class Calibration:
    """How logits become probabilities and answers, fitted on images that the head was not fitted to."""

    temperature: float = 1.0
    """Logits are divided by it (arXiv:1706.04599)."""
    thresholds: tuple[float, ...] | None = None
    """Sigmoid probability from which each class is a label of the image; None: one class per image, by softmax."""
    reject_below: float | None = None
    """Probability of the first class below which the answer is "unsure"; None: never."""

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE:
            expected = f"a number from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            raise ValueError(f"calibration: temperature={self.temperature!r} must be {expected}.")
        limits = [] if self.reject_below is None else [self.reject_below]
        if not all(is_number(limit) and 0 <= limit <= 1 for limit in (*limits, *(self.thresholds or ()))):
            raise ValueError("calibration: thresholds and reject_below must be probabilities, from 0 to 1.")
        if self.thresholds is not None and self.reject_below is not None:
            raise ValueError(
                "calibration: reject_below is for one class per image, thresholds for several labels: leave one out."
            )

    @property
    def has_several_labels(self) -> bool:
        """Whether images may have several labels, or none: probabilities are sigmoids."""
        return self.thresholds is not None

    def to_probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities of logits (N, K), which an engine has divided by the temperature already."""
        return logits.sigmoid() if self.has_several_labels else logits.softmax(dim=1)

    def find_labels(self, probabilities: Tensor) -> Tensor:
        """Return which classes are labels of the images, bool (N, K): those at or above their threshold."""
        assert self.thresholds is not None
        return probabilities >= torch.tensor(self.thresholds, dtype=torch.float64, device=probabilities.device)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "thresholds": None if self.thresholds is None else list(self.thresholds)}

    @classmethod
    def from_json(cls, content: object) -> "Calibration":
        """Read what `to_json` wrote; raise ValueError for anything else."""
        names = [each.name for each in fields(cls)]
        if not isinstance(content, dict) or sorted(content) != sorted(names):
            raise ValueError(f"calibration must be an object with the fields {', '.join(names)}.")
        thresholds = content["thresholds"]
        if not isinstance(thresholds, list | None):
            raise ValueError("calibration: thresholds must be a list of probabilities or null.")
        return cls(**{**content, "thresholds": None if thresholds is None else tuple(thresholds)})


NO_CALIBRATION = Calibration()


@dataclass(frozen=True)
class Checkpoint:
    """A model with its preprocessing, class names, calibration and origin."""

    model: Model[Any]
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where the weights came from: source, format, dtypes on disk."""
    calibration: Calibration = NO_CALIBRATION

    def __post_init__(self) -> None:
        config = self.model.config
        check_class_names(self.class_names, config)
        check_thresholds(self.calibration, config)
        if self.preprocessing.crop != config.image_size or self.preprocessing.num_channels != config.num_channels:
            (height, width), channels = self.preprocessing.crop, self.preprocessing.num_channels
            expected = f"the model expects {config.num_channels} x {config.image_size[0]} x {config.image_size[1]}"
            raise ValueError(f"The preprocessing makes images of {channels} x {height} x {width}; {expected}.")


@dataclass(frozen=True)
class CheckpointMetadata:
    """A checkpoint without its weights."""

    config: ModelConfig
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    provenance: dict[str, Any]
    checksum: str | None
    calibration: Calibration = NO_CALIBRATION

    @property
    def format_version(self) -> int:
        """The oldest format that can hold the checkpoint."""
        has_readout = bool(getattr(self.config, "readout_layers", ()))
        is_new = has_readout or self.preprocessing.letterbox or self.calibration != NO_CALIBRATION
        return FORMAT_VERSION if is_new else FIRST_FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        """Return the content of config.json, of the side file and of safetensors metadata."""
        content = {
            "format": self.format_version,
            "model": config_to_json(self.config),
            "preprocessing": self.preprocessing.to_json(),
            "class_names": self.class_names,
            "provenance": self.provenance,
            "checksum": self.checksum,
        }
        return content if self.calibration == NO_CALIBRATION else {**content, "calibration": self.calibration.to_json()}


def add_own_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file of ours with its checksum."""
    return {**content, OWN_CHECKSUM_KEY: hash_json(content)}


def hash_json(content: Mapping[str, Any]) -> str:
    return hash_bytes(json.dumps(content, sort_keys=True).encode())


def warn_if_edited(content: Mapping[str, Any], name: str) -> None:
    """Warn if a JSON file of ours was changed after it was written. People may edit it, so that is not an error."""
    if OWN_CHECKSUM_KEY not in content:
        return  # from before there were checksums, or removed by whoever edited it
    try:
        is_intact = hash_json({key: content[key] for key in content if key != OWN_CHECKSUM_KEY}) == content[OWN_CHECKSUM_KEY]
    except RecursionError:  # nested too deeply for anything of ours
        is_intact = False
    if not is_intact:
        edited = f"{name} was edited or damaged after it was written: using it as it is"
        warn_user(f"{edited}. If you edited it, remove {OWN_CHECKSUM_KEY!r} from it to end this warning.")


def is_metadata(content: Mapping[str, Any]) -> bool:
    """Return whether a config.json is ours and not a foreign one."""
    return isinstance(content.get("format"), int) and isinstance(content.get("model"), dict)


def parse_metadata(content: Mapping[str, Any], name: str) -> CheckpointMetadata:
    """Build CheckpointMetadata from its JSON; `name` is the file for error messages."""
    warn_if_edited(content, name)
    if content.get("format") not in (FIRST_FORMAT_VERSION, FORMAT_VERSION):
        found = f"{name} has format version {content.get('format')!r}"
        raise ValueError(f"{found}; this version of Vitrine reads up to {FORMAT_VERSION}: install a newer one.")
    try:
        config = config_from_json(content.get("model"))
        preprocessing = Preprocessing.from_json(content.get("preprocessing"))
        class_names = content.get("class_names")
        if class_names is not None:
            if not isinstance(class_names, list) or not all(isinstance(class_name, str) for class_name in class_names):
                raise ValueError("class_names must be a list of strings or null.")
            class_names = tuple(class_names)
        check_class_names(class_names, config)
        calibration = Calibration.from_json(content["calibration"]) if "calibration" in content else NO_CALIBRATION
        check_thresholds(calibration, config)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    provenance, checksum = content.get("provenance"), content.get("checksum")
    if not isinstance(provenance, dict) or not isinstance(checksum, str | None):
        raise ValueError(f"{name}: provenance must be an object and checksum a string.")
    return CheckpointMetadata(config, preprocessing, class_names, provenance, checksum, calibration)


def check_class_names(names: tuple[str, ...] | None, config: ModelConfig) -> None:
    """Raise a ValueError unless there is one name for each class of the model."""
    if names is not None and len(names) != config.num_classes:
        raise ValueError(f"{len(names)} class names were given for a model with {config.num_classes} classes.")


def check_thresholds(calibration: Calibration, config: ModelConfig) -> None:
    """Raise a ValueError unless there is one threshold for each class of a model for several labels."""
    if calibration.thresholds is not None and len(calibration.thresholds) != config.num_classes:
        found = f"{len(calibration.thresholds)} thresholds were given for a model with {config.num_classes} classes"
        raise ValueError(f"calibration: {found}.")


def embed_metadata(metadata: CheckpointMetadata) -> dict[str, str]:
    """Return metadata as string entries for a safetensors file.

    Nobody edits these by hand, so unlike JSON files they carry a checksum of their own text.
    """
    text = json.dumps(metadata.to_json())
    return {METADATA_KEY: text, METADATA_CHECKSUM_KEY: hashlib.sha256(text.encode()).hexdigest()}


def read_embedded_metadata(entries: Mapping[str, str], name: str) -> str:
    """Return the JSON text that `embed_metadata` wrote; raise a ValueError if it was damaged."""
    text = entries.get(METADATA_KEY, "")
    if hashlib.sha256(text.encode()).hexdigest() != entries.get(METADATA_CHECKSUM_KEY):
        raise ValueError(f"{name} is damaged: its metadata does not match its checksum; download or copy it again.")
    return text


class Checksum:
    """SHA-256 over name, dtype, shape and values of tensors, independent of their order."""

    def __init__(self, *, is_needed: bool = True) -> None:
        self.is_needed = is_needed
        self.digests: list[str] = []

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Add a tensor to the checksum, and return the tensor."""
        if self.is_needed:
            header = f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode()
            values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self.digests.append(hashlib.sha256(header).hexdigest() + hashlib.sha256(values.data).hexdigest())
        return tensor

    def value(self) -> str:
        return "sha256:" + hashlib.sha256("\n".join(sorted(self.digests)).encode()).hexdigest()


def compute_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the checksum of a state dict, as stored in a checkpoint's metadata."""
    checksum = Checksum()
    for name, tensor in tensors.items():
        checksum.add(name, tensor)
    return checksum.value()

"""save_checkpoint and save_model: write a checkpoint as a file or folder in any format."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrine.core.console import summarise_error, warn_user
from vitrine.core.files import atomic_file, atomic_folder, write_json
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat
from vitrine.formats.checkpoint import (
    NO_CALIBRATION,
    SIDE_FILE_ENDING,
    Checkpoint,
    CheckpointMetadata,
    add_own_checksum,
    compute_checksum,
    embed_metadata,
)
from vitrine.formats.config import FORMAT_NAMES, FormatName
from vitrine.formats.huggingface_config import config_to_huggingface, preprocessing_to_huggingface
from vitrine.formats.registry import FORMATS
from vitrine.formats.timm import PORTED_STANDARDISE_EPS
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.version import __version__

ForeignTensors = Mapping[str, Tensor]
FOLDER_FILES = ("model.safetensors", "config.json", "preprocessor_config.json", "training.safetensors", "recipe.json")


def save_model(
    model: Model[Any],
    path: str | Path,
    format: FormatName = "vitrine",
    *,
    preprocessing: Preprocessing | None = None,
    class_names: tuple[str, ...] | None = None,
) -> None:
    """Write a model in one of the formats; without `preprocessing` the paper's is recorded, with a warning."""
    if preprocessing is None:
        preprocessing = build_inception_preprocessing(model.config.image_size, model.config.num_channels)
        warn_user(
            f"{path} records the paper's preprocessing (resize to the input size, values in [-1, 1]), because none was given: "
            "pass preprocessing=, or use save_checkpoint with the Checkpoint of load_checkpoint."
        )
    save_checkpoint(Checkpoint(model, preprocessing, class_names), path, format)


def save_checkpoint(
    checkpoint: Checkpoint,
    path: str | Path,
    format: FormatName = "vitrine",
    *,
    write_extra_files: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint atomically in one of the formats: a folder for vitrine and hf, a file for the others.

    timm and torchvision are written as safetensors unless the path ends in .pth or .pt. What a format cannot hold goes to
    safetensors metadata or `<file>.vitrine.json`, so that reading it back gives the same model. `write_extra_files` is called
    with the temporary folder, to add the other files of a run: `training.safetensors`, `recipe.json`.
    """
    if format not in FORMAT_NAMES:
        raise ValueError(f"Unknown format {format!r}; expected one of {', '.join(FORMAT_NAMES)}.")
    fmt, path = FORMATS[format], Path(path)
    check_format_path(format, path)
    config, state = fmt.to_storable(checkpoint.model)
    tensors = {name: part for mapping in fmt.tensor_mappings(config) for name, part in mapping.write(state[mapping.name])}
    if path.suffix == ".npz":  # NumPy has no bfloat16; float32 holds it exactly
        tensors = {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor for name, tensor in tensors.items()}
    provenance = {**checkpoint.provenance, "written_by": f"vitrine {__version__}"}
    metadata = CheckpointMetadata(
        config, checkpoint.preprocessing, checkpoint.class_names, provenance, compute_checksum(tensors), checkpoint.calibration
    )
    try:
        if fmt.container == "folder":
            write_folder(fmt, path, tensors, metadata, write_extra_files)
        else:
            write_file(path, tensors, metadata)
    except (SafetensorError, RuntimeError) as error:  # what safetensors and torch raise for a full disk or no permission
        raise OSError(f"Cannot write {path}: {summarise_error(error)}. Check free space and write permission.") from None
    warn_about_other_readers(fmt, config, path)
    warn_about_lost_settings(fmt, metadata, path)


def check_format_path(format: FormatName, path: Path) -> None:
    """Raise a ValueError if the path's ending does not suit the format."""
    endings = {"npz": (".npz",), "torch": (".safetensors", ".pth", ".pt"), "folder": ()}[FORMATS[format].container]
    if endings and path.suffix not in endings:
        raise ValueError(f"The format {format} is written to a file ending in {' or '.join(endings)}, not to {path}.")
    if not endings and path.suffix in (".npz", ".safetensors", ".pth", ".pt"):
        raise ValueError(f"The format {format} is written as a folder, not as a file like {path}: leave the ending out.")


def write_folder(
    fmt: CheckpointFormat,
    path: Path,
    tensors: ForeignTensors,
    metadata: CheckpointMetadata,
    write_extra_files: Callable[[Path], None] | None,
) -> None:
    """Write weights and JSON files of a folder format."""
    with atomic_folder(path, FOLDER_FILES) as folder:
        if write_extra_files is not None:
            write_extra_files(folder)
        if fmt.name == "vitrine":
            save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
            write_json(folder / "config.json", add_own_checksum(metadata.to_json()))
            return
        save_safetensors(tensors, folder / "model.safetensors", metadata)
        write_json(folder / "config.json", config_to_huggingface(metadata.config, metadata.class_names))
        write_json(folder / "preprocessor_config.json", preprocessing_to_huggingface(metadata.preprocessing, metadata.config))


def write_file(path: Path, tensors: ForeignTensors, metadata: CheckpointMetadata) -> None:
    """Write a single-file format, with our metadata inside a safetensors file or in a side file."""
    side = path.with_name(path.name + SIDE_FILE_ENDING)
    with atomic_file(path) as partial:
        if path.suffix == ".safetensors":
            save_safetensors(tensors, partial, metadata)
        else:
            with partial.open("wb") as file:
                if path.suffix == ".npz":
                    arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
                    np.savez(file, allow_pickle=False, **arrays)
                else:
                    torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, file)
            # A reader that comes between the two renames finds a checksum that does not match, not a wrong model.
            write_json(side, add_own_checksum(metadata.to_json()))
    if path.suffix == ".safetensors":
        side.unlink(missing_ok=True)  # of an older file; the reader would prefer it


def save_safetensors(tensors: ForeignTensors, path: Path, metadata: CheckpointMetadata) -> None:
    # transformers rejects safetensors whose metadata lack the framework's name.
    save_file(dict(tensors), path, metadata={"format": "pt", **embed_metadata(metadata)})


def warn_about_lost_settings(fmt: CheckpointFormat, metadata: CheckpointMetadata, path: Path) -> None:
    """Warn if other programs would frame images differently, or give other probabilities; our reader has them from us."""
    lost = ["the letterbox around images"] if metadata.preprocessing.letterbox else []
    lost += ["the calibration of probabilities"] if metadata.calibration != NO_CALIBRATION else []
    if lost and fmt.name != "vitrine":
        warn_user(
            f"{path}: the format {fmt.name} cannot hold {' and '.join(lost)}; only Vitrine will use what is stored of it."
        )


def warn_about_other_readers(fmt: CheckpointFormat, config: ModelConfig, path: Path) -> None:
    """Warn if other programs would run the model with another GELU or epsilon; our reader finds them in the metadata."""
    states_them = fmt.name in ("vitrine", "hf")
    unusual: list[str] = []
    if isinstance(config, ViTConfig) and not states_them:
        if config.mlp == "gelu" and config.gelu != fmt.gelu:
            unusual.append(f"{config.gelu} GELU (default: {fmt.gelu})")
        if config.norm_eps != fmt.norm_eps:
            unusual.append(f"LayerNorm epsilon {config.norm_eps:g} (default: {fmt.norm_eps:g})")
    if isinstance(config, ResNetConfig) and fmt.name != "vitrine":
        default = replace(config, norm_eps=None, standardise_eps=None if fmt.name == "bit" else PORTED_STANDARDISE_EPS)
        if config.epsilons != default.epsilons:
            unusual.append(f"epsilons {config.epsilons[0]:g} and {config.epsilons[1]:g} (default: {default.epsilons})")
    if fmt.name == "hf" and isinstance(config, ViTConfig) and config.num_classes == 0 and not config.hidden_head:
        warn_user(f"{path} has neither head nor pooler: load it in transformers with add_pooling_layer=False.")
    if unusual:
        warn_user(
            f"{path} holds a model with {' and '.join(unusual)}, which {fmt.name} cannot state: set it in other programs."
        )

"""From a checkpoint to a file or folder in anyone's format."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from vitrine.core.console import summarise, warn_user
from vitrine.core.files import atomic_file, atomic_folder, write_json
from vitrine.data.preprocessing import Preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat
from vitrine.formats.checkpoint import SIDE_FILE_ENDING, Checkpoint, CheckpointMetadata, compute_checksum, seal
from vitrine.formats.config import FORMAT_NAMES, FormatName
from vitrine.formats.huggingface_config import describe_for_transformers, describe_processor
from vitrine.formats.registry import FORMATS
from vitrine.formats.timm import PORTED_STANDARDISE_EPS
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitrine.models.model import Model
from vitrine.version import __version__

Written = Mapping[str, Tensor]
FOLDER_FILES = ("model.safetensors", "config.json", "preprocessor_config.json", "training.safetensors", "recipe.json")


def save_model(
    model: Model[Any],
    path: str | Path,
    format: FormatName = "vitrine",
    *,
    preprocessing: Preprocessing | None = None,
    class_names: tuple[str, ...] | None = None,
) -> None:
    """Write a model in one of the formats; without `preprocessing` the paper's is recorded, and that is said."""
    if preprocessing is None:
        preprocessing = build_inception_preprocessing(model.config.image_size, model.config.num_channels)
        warn_user(
            f"{path} records the paper's preprocessing (straight to the model's size, values in [-1, 1]), since no other was "
            "given: pass preprocessing=, or save the Checkpoint of load_checkpoint by save_checkpoint."
        )
    save_checkpoint(Checkpoint(model, preprocessing, class_names), path, format)


def save_checkpoint(
    checkpoint: Checkpoint,
    path: str | Path,
    format: FormatName = "vitrine",
    *,
    write_beside: Callable[[Path], None] | None = None,
) -> None:
    """Write a checkpoint in one of the formats, whole or not at all: a folder for vitrine and hf, a file for the others.

    timm's and torchvision's are safetensors unless the path ends in .pth or .pt. What a format has no place for lies in
    safetensors metadata or in `<file>.vitrine.json`, so that what is read back computes the same. `write_beside` is called with
    the folder before it gets its name, to write the other files of a run: `training.safetensors`, `recipe.json`.
    """
    if format not in FORMAT_NAMES:
        raise ValueError(f"Unknown format {format!r}; there are {', '.join(FORMAT_NAMES)}.")
    form, path = FORMATS[format], Path(path)
    require_path(format, path)
    config, state = form.adapt(checkpoint.model)
    tensors = {name: part for entry in form.layout(config) for name, part in entry.write(state[entry.ours])}
    if path.suffix == ".npz":
        tensors = {name: as_numpy_kind(tensor) for name, tensor in tensors.items()}
    provenance = {**checkpoint.provenance, "written_by": f"vitrine {__version__}"}
    description = CheckpointMetadata(
        config, checkpoint.preprocessing, checkpoint.class_names, provenance, compute_checksum(tensors)
    )
    try:
        if form.container == "folder":
            write_folder(form, path, tensors, description, write_beside)
        else:
            write_file(path, tensors, description)
    except (SafetensorError, RuntimeError) as error:  # how safetensors and torch speak of a full disk or a forbidden place
        raise OSError(
            f"Cannot write {path}: {summarise(error)}. See whether there is room, and whether you may write."
        ) from None
    warn_of_other_readers(form, config, path)


def require_path(format: FormatName, path: Path) -> None:
    endings = {"npz": (".npz",), "torch": (".safetensors", ".pth", ".pt"), "folder": ()}[FORMATS[format].container]
    if endings and path.suffix not in endings:
        raise ValueError(f"The format {format} is written to a file ending in {' or '.join(endings)}, not to {path}.")
    if not endings and path.suffix in (".npz", ".safetensors", ".pth", ".pt"):
        raise ValueError(f"The format {format} is written as a folder, not to a file such as {path}: leave the ending out.")


def as_numpy_kind(tensor: Tensor) -> Tensor:
    """NumPy has no bfloat16; float32 holds it exactly."""
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def write_folder(
    form: CheckpointFormat,
    path: Path,
    tensors: Written,
    description: CheckpointMetadata,
    write_beside: Callable[[Path], None] | None,
) -> None:
    with atomic_folder(path, FOLDER_FILES) as folder:
        if write_beside is not None:
            write_beside(folder)
        if form.name == "vitrine":
            save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
            write_json(folder / "config.json", description.to_json())
            return
        save_file(dict(tensors), folder / "model.safetensors", metadata=describe_in_metadata(description))
        write_json(folder / "config.json", describe_for_transformers(description.config, description.class_names))
        write_json(folder / "preprocessor_config.json", describe_processor(description.preprocessing, description.config))


def write_file(path: Path, tensors: Written, description: CheckpointMetadata) -> None:
    side = path.with_name(path.name + SIDE_FILE_ENDING)
    with atomic_file(path) as partial:
        if path.suffix == ".safetensors":
            save_file(dict(tensors), partial, metadata=describe_in_metadata(description))
        else:
            with partial.open("wb") as file:
                write_numbers(file, path.suffix, tensors)
            # A reader that comes between the two renames finds a checksum that does not fit, not a wrong model.
            write_json(side, description.to_json())
    if path.suffix == ".safetensors":
        side.unlink(missing_ok=True)  # an older file's, which the reader would prefer


def write_numbers(file: BinaryIO, suffix: str, tensors: Written) -> None:
    if suffix == ".npz":
        arrays: dict[str, Any] = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        np.savez(file, allow_pickle=False, **arrays)
    else:
        torch.save({name: tensor.cpu() for name, tensor in tensors.items()}, file)


def describe_in_metadata(description: CheckpointMetadata) -> dict[str, str]:
    # transformers refuses safetensors whose metadata lack the framework's name.
    return {"format": "pt", **seal(description)}


def warn_of_other_readers(form: CheckpointFormat, config: ModelConfig, path: Path) -> None:
    """Our own reader finds GELU and epsilon beside the weights; other programs take their usual ones, if not told."""
    told = form.name in ("vitrine", "hf")
    others: list[str] = []
    if isinstance(config, ViTConfig) and not told:
        if config.mlp == "gelu" and config.gelu != form.gelu:
            others.append(f"{config.gelu} GELU, where {form.gelu} is usual")
        if config.norm_eps != form.norm_eps:
            others.append(f"LayerNorm epsilon {config.norm_eps:g}, where {form.norm_eps:g} is usual")
    if isinstance(config, ResNetConfig) and form.name != "vitrine":
        usual = replace(config, norm_eps=None, standardise_eps=None if form.name == "bit" else PORTED_STANDARDISE_EPS)
        if config.epsilons != usual.epsilons:
            others.append(f"epsilons {config.epsilons[0]:g} and {config.epsilons[1]:g}, where {usual.epsilons} are usual")
    if form.name == "hf" and isinstance(config, ViTConfig) and config.num_classes == 0 and not config.hidden_head:
        warn_user(f"{path} has neither head nor pooler: load it in transformers with add_pooling_layer=False.")
    if others:
        warn_user(f"{path} was written for a model with {' and '.join(others)} for {form.name}: set that in other programs.")

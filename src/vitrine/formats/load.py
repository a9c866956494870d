"""load_checkpoint and load_model: a checkpoint in any known format, loaded completely or not at all."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrine.core.console import join_names, name_setting, summarise_error, warn_user
from vitrine.core.files import parse_json, read_json
from vitrine.core.hub import INDEX, PICKLED, SINGLE, download_model, is_hub_reference
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, describe_assumption
from vitrine.formats.checkpoint import (
    METADATA_CHECKSUM_KEY,
    METADATA_KEY,
    NO_CALIBRATION,
    SIDE_FILE_ENDING,
    Checkpoint,
    CheckpointMetadata,
    Checksum,
    is_metadata,
    parse_metadata,
    read_embedded_metadata,
)
from vitrine.formats.config import Overrides
from vitrine.formats.huggingface_config import (
    config_to_huggingface,
    preprocessing_from_huggingface,
    preprocessing_to_huggingface,
)
from vitrine.formats.registry import detect_format, select_image_tower, strip_prefixes
from vitrine.formats.tensor_files import TensorFile, Tensors, open_tensors
from vitrine.formats.tensor_mapping import check_tensors
from vitrine.models.config import ModelConfig, ResizeMethod, ViTConfig, as_image_size
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model
from vitrine.version import __version__

# Weights that a folder may hold, in order of preference.
WEIGHT_FILES = (SINGLE, INDEX, PICKLED)
WEIGHT_ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


def load_model(
    source: str | Path | Checkpoint,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    overrides: Overrides | None = None,
    resize_method: ResizeMethod = "paper",
) -> Model[Any]:
    """Load a model in evaluation mode; use `load_checkpoint` to get preprocessing and class names as well."""
    return load_checkpoint(source, num_classes, image_size, overrides=overrides, resize_method=resize_method).model


def load_checkpoint(
    source: str | Path | Checkpoint,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    overrides: Overrides | None = None,
    resize_method: ResizeMethod = "paper",
) -> Checkpoint:
    """Load a checkpoint from a folder, a file or `hf://org/name[@revision]`, in float32 on the CPU.

    Every tensor must fit, or nothing is loaded. Another `num_classes` than the checkpoint's replaces its head by one of zeros,
    with a warning; `image_size` resizes the position embeddings. `overrides` set what weights do not show; anything that
    neither they nor the checkpoint state is the format's default, which one `VitrineWarning` reports. A Checkpoint is returned
    as it is, or as a changed copy.
    """
    overrides = overrides or Overrides()
    if isinstance(source, Checkpoint):
        name, checkpoint = "the checkpoint", source
        warn_of_replaced_preprocessing(checkpoint.preprocessing, overrides, checkpoint.model.config, name)
        if overrides != Overrides(preprocess=overrides.preprocess):
            raise ValueError(f"{overrides} applies to files; a loaded checkpoint takes only preprocess.")
        if num_classes is not None or image_size is not None:
            checkpoint = replace(source, model=deepcopy(source.model))
    else:
        name = str(source)
        with name_source_in_errors(name), open_tensors(find_weights_file(source)) as file:
            checkpoint = read_checkpoint(file, name, overrides)
    if num_classes is not None and num_classes != checkpoint.model.config.num_classes:
        checkpoint = replace_head(checkpoint, num_classes, name)
    if image_size is not None:
        checkpoint = resize_checkpoint(checkpoint, as_image_size(image_size), resize_method)
    if overrides.preprocess is not None:
        chosen = choose_preprocessing(overrides.preprocess, checkpoint.model.config)
        checkpoint = replace(checkpoint, preprocessing=chosen)
    return checkpoint


def replace_class_names(checkpoint: Checkpoint, class_names: tuple[str, ...] | None) -> Checkpoint:
    """Return a checkpoint with other class names, with a warning if it had some; None leaves them as they are."""
    if class_names is None:
        return checkpoint
    changed = replace(checkpoint, class_names=class_names)
    if checkpoint.class_names not in (None, class_names):
        warn_user(f"The {len(class_names)} class names that were given replace the checkpoint's own.")
    return changed


@contextmanager
def name_source_in_errors(source: str) -> Iterator[None]:
    """Put the source before the text of a ValueError that does not mention it."""
    try:
        yield
    except ValueError as error:
        if source in str(error):
            raise
        raise ValueError(f"{source}: {error}") from None


def find_weights_file(source: str | Path) -> Path:
    """Return the weights file of a source, or the index of several; a model on the hub is downloaded."""
    if is_hub_reference(str(source)):
        return find_weights_in(download_model(str(source)))
    path = Path(source)
    if path.is_dir():
        return find_weights_in(path)
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        found = f"No checkpoint at {path}; {path.parent} contains: {join_names(beside) or 'nothing'}"
        raise FileNotFoundError(f"{found}. Pass a folder, a file, or hf://org/name for a model on the hub.")
    return path


def find_weights_in(folder: Path) -> Path:
    """Return the weights file of a folder, or the index of several."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    candidates = sorted(path for path in folder.iterdir() if path.name.endswith(WEIGHT_ENDINGS) and path.is_file())
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = join_names([path.name for path in candidates])
        raise ValueError(f"{folder} contains several weights files ({names}): pass one of them.")
    beside = join_names(sorted(path.name for path in folder.iterdir())) or "nothing"
    raise FileNotFoundError(f"{folder} contains no weights ({', '.join(WEIGHT_FILES)}); it contains: {beside}.")


@dataclass(frozen=True)
class SideFiles:
    """Our own metadata and a foreign format's JSON files, None where absent."""

    own: CheckpointMetadata | None
    config: dict[str, Any] | None
    processor: dict[str, Any] | None


def read_side_files(file: TensorFile) -> SideFiles:
    """Read what lies beside the weights: our side file, metadata within safetensors, config.json, preprocessor_config.json."""
    config, processor = read_beside(file.path, "config.json"), read_beside(file.path, "preprocessor_config.json")
    own: CheckpointMetadata | None = None
    side = file.path.with_name(file.path.name + SIDE_FILE_ENDING)
    if side.is_file():
        own = parse_metadata(read_json(side), str(side))
    elif {METADATA_KEY, METADATA_CHECKSUM_KEY} & file.metadata.keys():
        text = read_embedded_metadata(file.metadata, str(file.path))
        own = parse_metadata(parse_json(text, str(file.path)), str(file.path))
        own = None if was_edited(own, config, processor, str(file.path)) else own
    elif config is not None and is_metadata(config):
        own = parse_metadata(config, str(file.path.with_name("config.json")))
    return SideFiles(own, config, processor)


def read_beside(path: Path, name: str) -> dict[str, Any] | None:
    """Read a JSON file beside the weights; None if it is absent, or if the weights' name is not one of WEIGHT_FILES."""
    belongs = path.name in WEIGHT_FILES
    return read_json(path.with_name(name)) if belongs and path.with_name(name).is_file() else None


def was_edited(own: CheckpointMetadata, config: dict[str, Any] | None, processor: dict[str, Any] | None, name: str) -> bool:
    """Return whether the JSON files of a Hugging Face folder that we wrote were edited: then they count, as in transformers."""
    if config is None or "model_type" not in config:
        return False
    written = config_to_huggingface(own.config, own.class_names), preprocessing_to_huggingface(own.preprocessing, own.config)
    if json.loads(json.dumps(written)) == [config, processor]:
        return False
    warn_user(f"The JSON files beside {name} were edited after it was written: using them, not the metadata within it.")
    return True


def read_checkpoint(file: TensorFile, source: str, overrides: Overrides) -> Checkpoint:
    """Build the checkpoint of an open file: detect its format, infer the model, load the weights."""
    side_files = read_side_files(file)
    own = side_files.own
    tensors = select_image_tower(strip_prefixes(file.tensors))
    fmt = detect_format(tensors, source)
    tensors = fmt.normalise_names(tensors)
    inferred = resolve_model(fmt, tensors, source, overrides, side_files)
    tensors = tensors if inferred.tensors is None else inferred.tensors
    model = load_weights(fmt, inferred.config, tensors, source, None if own is None else own.checksum)
    dtypes = sorted({tensor.dtype.removeprefix("torch.") for tensor in tensors.values()})
    origin = {"source": source, "format": fmt.name, "dtypes": dtypes, "read_by": f"vitrine {__version__}"}
    provenance = origin if own is None else own.provenance
    calibration = NO_CALIBRATION if own is None else own.calibration
    return Checkpoint(model, inferred.preprocessing, inferred.class_names, provenance, calibration)


def resolve_model(
    fmt: CheckpointFormat, tensors: Tensors, source: str, overrides: Overrides, side_files: SideFiles
) -> InferredModel:
    """Return the model of our own metadata, else what the format infers with the help of overrides."""
    own, assumed = side_files.own, dict[str, Any]()
    if own is not None:
        inferred = InferredModel(own.config, own.preprocessing, own.class_names)
    else:
        foreign = ForeignCheckpoint(source, tensors, overrides, side_files.config, side_files.processor, assumed)
        inferred = fmt.infer_model(foreign)
    reject_unused_overrides(inferred.config, overrides)
    if "preprocess" not in assumed:
        warn_of_replaced_preprocessing(inferred.preprocessing, overrides, inferred.config, source)
    assumptions = [describe_assumption(name, value) for name, value in assumed.items() if getattr(overrides, name) is None]
    if assumptions:
        stated = f"{source} does not specify these settings; assuming the defaults of {fmt.name}"
        warn_user(f"{stated}: {'; '.join(assumptions)}.")
    return inferred


def warn_of_replaced_preprocessing(stated: Preprocessing, overrides: Overrides, config: ModelConfig, source: str) -> None:
    """Warn if the user's preprocessing replaces another one that a checkpoint states."""
    if overrides.preprocess is not None and choose_preprocessing(overrides.preprocess, config) != stated:
        warn_user(f"The preprocessing that was given replaces the one that {source} specifies.")


def reject_unused_overrides(config: ModelConfig, overrides: Overrides) -> None:
    """Raise a ValueError for overrides that the checkpoint contradicts, or that were meant for another model."""
    names = [field.name for field in fields(overrides) if field.name != "preprocess"]
    given = [name for name in names if getattr(overrides, name) is not None]
    if not isinstance(config, ViTConfig):
        if given:
            raise ValueError(f"{', '.join(given)} does not apply to a ResNet: leave it out.")
        return
    if overrides.gelu is not None and config.mlp == "swiglu":
        raise ValueError(f"gelu={overrides.gelu} does not apply to a model with SwiGLU: leave it out.")
    for name in given:
        value, stated = getattr(overrides, name), getattr(config, name)
        if value != stated and not (name == "norm_eps" and math.isclose(value, stated, rel_tol=1e-6)):
            raise ValueError(f"{name}={value} contradicts the checkpoint, which has {stated}: leave it out.")


def choose_preprocessing(choice: Preprocessing | str | Path, config: ModelConfig) -> Preprocessing:
    """Return the preprocessing that the user named, for the model's final image size."""
    if isinstance(choice, Preprocessing):
        return choice
    if choice in ("imagenet", "inception"):
        build = build_imagenet_preprocessing if choice == "imagenet" else build_inception_preprocessing
        return build(config.image_size, config.num_channels)
    path = Path(choice)
    if not path.is_file():
        raise FileNotFoundError(f"{name_setting('preprocess', str(choice))} is not imagenet, inception or a JSON file.")
    content = read_json(path)
    if {"image_processor_type", "feature_extractor_type", "do_resize"} & content.keys():
        return preprocessing_from_huggingface(content, config)
    try:
        return Preprocessing.from_json(content.get("preprocessing", content))
    except ValueError as error:
        raise ValueError(f"{path} does not describe a preprocessing: {error}") from None


def load_weights(fmt: CheckpointFormat, config: ModelConfig, tensors: Tensors, source: str, checksum: str | None) -> Model[Any]:
    """Build the model and load its weights, one tensor at a time, so that memory stays close to the model's own size."""
    check_depth(config, tensors, source)
    try:
        model = build_meta_model(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # what torch raises for sizes beyond 64 bits
        raise ValueError(f"{source} describes an impossible model: {summarise_error(error)}.") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    mappings = list(fmt.tensor_mappings(config))
    check_tensors(mappings, tensors, shapes, source)
    loaded = Checksum(is_needed=checksum is not None)
    state: dict[str, Tensor] = {}
    for mapping in mappings:
        parts = (loaded.add(name, tensors[name].read()) for name in mapping.foreign_names)
        state[mapping.name] = mapping.read(parts, shapes[mapping.name])
    if checksum is not None and loaded.value() != checksum:
        found = f"The weights of {source} were damaged or replaced: they do not match the checksum of their metadata"
        raise ValueError(f"{found}; download or copy them again, or remove the metadata.")
    model.load_state_dict(state, assign=True)
    return model.eval()


def check_depth(config: ModelConfig, tensors: Mapping[str, Any], source: str) -> None:
    """Raise a ValueError if metadata claims more blocks than there are tensors, before a huge model is built."""
    stages: tuple[int, ...] = getattr(config, "stem_stages", getattr(config, "stages", ()))
    depth = max(sum(stages), getattr(config, "depth", 0))
    if max(depth, len(stages)) > len(tensors):
        raise ValueError(f"{source} describes {depth:,} blocks but has {len(tensors)} tensors, so nothing was loaded.")


def replace_head(checkpoint: Checkpoint, num_classes: int, source: str) -> Checkpoint:
    """Replace the head by one of zeros for `num_classes` classes (none for 0), with a warning."""
    model = checkpoint.model
    old = model.config.num_classes
    had_hidden_layer = getattr(model.config, "hidden_head", False)
    model.reset_head(num_classes)
    if num_classes == 0:
        warn_user(f"The head of {source} ({old} classes) was removed: the model returns its features.")
    else:
        replaced = "its head and the hidden layer before it were" if had_hidden_layer else "its head was"
        warn_user(f"{source} has {old} classes, not {num_classes}: {replaced} replaced by a new head of zeros.")
    return replace(checkpoint, class_names=None, calibration=NO_CALIBRATION)


def resize_checkpoint(checkpoint: Checkpoint, size: tuple[int, int], method: ResizeMethod) -> Checkpoint:
    """Resize a model and its preprocessing to another image size."""
    preprocessing = checkpoint.preprocessing.resized(size)  # first, because it rejects impossible sizes
    try:
        checkpoint.model.resize(size, method)
    except RuntimeError as error:  # what torch raises when memory runs out
        raise ValueError(f"image_size={size} is too large for this machine: {summarise_error(error)}.") from None
    return replace(checkpoint, preprocessing=preprocessing)

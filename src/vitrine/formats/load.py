"""From a checkpoint in anyone's format to a model, whole or not at all."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrine.core.console import join_names, summarise, warn_user
from vitrine.core.files import parse_json, read_json
from vitrine.core.hub import INDEX, PICKLED, SINGLE, fetch_repository, is_hub_reference
from vitrine.data.preprocessing import Preprocessing, build_imagenet_preprocessing, build_inception_preprocessing
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel
from vitrine.formats.checkpoint import (
    DESCRIPTION_KEY,
    SEAL_KEY,
    SIDE_FILE_ENDING,
    Checkpoint,
    CheckpointMetadata,
    Checksum,
    is_description,
    open_sealed,
    parse_description,
)
from vitrine.formats.config import Overrides
from vitrine.formats.huggingface_config import describe_for_transformers, describe_processor, parse_processor
from vitrine.formats.registry import recognise, strip_prefixes
from vitrine.formats.tensor_files import TensorFile, Tensors, open_tensors
from vitrine.formats.tensor_mapping import require_fit
from vitrine.models.config import HybridConfig, ModelConfig, ResizeMethod, ResNetConfig, ViTConfig, as_image_size
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model
from vitrine.version import __version__

# What a folder may keep its weights as, in the order of preference.
WEIGHT_FILES = (SINGLE, INDEX, PICKLED)
WEIGHT_ENDINGS = (".safetensors", ".npz", ".pth", ".pt", ".bin")


def load_model(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    facts: Overrides | None = None,
    resize_method: ResizeMethod = "paper",
) -> Model[Any]:
    """The model of `load_checkpoint`, in evaluation mode. Take that one where preprocessing and class names matter too."""
    return load_checkpoint(source, num_classes, image_size, facts=facts, resize_method=resize_method).model


def load_checkpoint(
    source: str | Path,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    facts: Overrides | None = None,
    resize_method: ResizeMethod = "paper",
) -> Checkpoint:
    """A checkpoint from a folder, a file or `hf://org/name[@revision]`, in float32 and on the processor.

    Every tensor must fit or nothing is loaded. `num_classes` other than the checkpoint's puts a new head of zeros in place of
    its own, and says so; `image_size` resizes the positions. `facts` are the caller's word on what weights do not tell; what
    then nobody says is taken as usual for the format, with one `Notice` that names it.
    """
    facts = facts or Overrides()
    path = locate(source)
    with naming(str(source)), open_tensors(path) as file:
        checkpoint = read_checkpoint(file, str(source), facts)
    if num_classes is not None and num_classes != checkpoint.model.config.num_classes:
        checkpoint = with_new_head(checkpoint, num_classes, str(source))
    if image_size is not None:
        checkpoint = with_image_size(checkpoint, as_image_size(image_size), resize_method)
    if facts.preprocess is not None:
        chosen = choose_preprocessing(facts.preprocess, checkpoint.model.config)
        checkpoint = replace(checkpoint, preprocessing=chosen)
    return checkpoint


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Errors of whatever depth begin with the source, where they do not name it."""
    try:
        yield
    except ValueError as error:
        if source in str(error):
            raise
        raise ValueError(f"{source}: {error}") from None


def locate(source: str | Path) -> Path:
    """The file of weights, or the index of several."""
    if is_hub_reference(str(source)):
        return find_weights(fetch_repository(str(source)))
    path = Path(source)
    if path.is_dir():
        return find_weights(path)
    if not path.is_file():
        beside = sorted(p.name for p in path.parent.iterdir()) if path.parent.is_dir() else []
        raise FileNotFoundError(
            f"No checkpoint at {path}; in that place: {join_names(beside) or 'nothing'}. "
            "Give a folder, a file, or hf://org/name for one on the hub."
        )
    return path


def find_weights(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(path for path in folder.iterdir() if path.name.endswith(WEIGHT_ENDINGS) and path.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{folder} holds several files of weights, {join_names([p.name for p in found])}: give one of them.")
    beside = sorted(path.name for path in folder.iterdir())
    raise FileNotFoundError(
        f"{folder} holds no weights ({', '.join(WEIGHT_FILES)}); it holds: {join_names(beside) or 'nothing'}."
    )


@dataclass(frozen=True)
class SideFiles:
    """What lies beside the weights, as far as there is any."""

    own: CheckpointMetadata | None
    config: dict[str, Any] | None
    processor: dict[str, Any] | None


def read_side_files(file: TensorFile) -> SideFiles:
    config, processor = read_beside(file.path, "config.json"), read_beside(file.path, "preprocessor_config.json")
    own: CheckpointMetadata | None = None
    side = file.path.with_name(file.path.name + SIDE_FILE_ENDING)
    if side.is_file():
        own = parse_description(read_json(side), str(side))
    elif {DESCRIPTION_KEY, SEAL_KEY} & file.metadata.keys():
        text = open_sealed(file.metadata, str(file.path))
        own = parse_description(parse_json(text, str(file.path)), str(file.path))
        own = None if was_edited(own, config, processor, str(file.path)) else own
    elif config is not None and is_description(config):
        own = parse_description(config, str(file.path.with_name("config.json")))
    return SideFiles(own, config, processor)


def was_edited(own: CheckpointMetadata, config: dict[str, Any] | None, processor: dict[str, Any] | None, name: str) -> bool:
    """Whether someone changed the JSON of a Hugging Face folder that we wrote: transformers follows it, so we do too."""
    if config is None or "model_type" not in config:
        return False
    written = describe_for_transformers(own.config, own.class_names), describe_processor(own.preprocessing, own.config)
    if json.loads(json.dumps(written)) == [config, processor]:
        return False
    warn_user(f"The JSON files beside {name} were changed since it was written: they count, not the description within it.")
    return True


def read_beside(path: Path, name: str) -> dict[str, Any] | None:
    """A JSON file in the folder of the weights, if these are the folder's weights."""
    belongs = path.name in WEIGHT_FILES
    return read_json(path.with_name(name)) if belongs and path.with_name(name).is_file() else None


def read_checkpoint(file: TensorFile, source: str, facts: Overrides) -> Checkpoint:
    surroundings = read_side_files(file)
    tensors = strip_prefixes(file.tensors)
    form = recognise(tensors, source)
    tensors = form.tidy(tensors)
    described = resolve_model(form, tensors, source, facts, surroundings)
    own = surroundings.own
    model = load_weights(form, described.config, tensors, source, None if own is None else own.checksum)
    provenance = describe_origin(form, tensors, source) if own is None else own.provenance
    return Checkpoint(model, described.preprocessing, described.class_names, provenance)


def describe_origin(form: CheckpointFormat, tensors: Tensors, source: str) -> dict[str, Any]:
    return {
        "source": source,
        "format": form.name,
        "dtypes": sorted({stored.dtype.removeprefix("torch.") for stored in tensors.values()}),
        "read_by": f"vitrine {__version__}",
    }


def resolve_model(
    form: CheckpointFormat, tensors: Tensors, source: str, facts: Overrides, surroundings: SideFiles
) -> InferredModel:
    """Our own description where there is one, else what the format makes of the tensors; the user's word above both."""
    own = surroundings.own
    if own is not None:
        described = InferredModel(apply_overrides(own.config, facts), own.preprocessing, own.class_names)
    else:
        given = ForeignCheckpoint(source, tensors, facts, surroundings.config, surroundings.processor)
        described = form.describe(given)
        if given.assumed:
            warn_user(f"{source} does not say, and was taken as usual for {form.name}: {'; '.join(given.assumed)}.")
        reject_unused_overrides(described.config, facts)
    return described


def apply_overrides(config: ModelConfig, facts: Overrides) -> ModelConfig:
    reject_unused_overrides(config, facts)
    if facts.grid is not None and facts.grid != config.grid:
        raise ValueError(
            f"grid={facts.grid} contradicts the checkpoint, which knows its grid to be {config.grid}: leave it out."
        )
    said = {name: getattr(facts, name) for name in ("gelu", "norm_eps", "num_heads")}
    return replace(config, **{name: value for name, value in said.items() if value is not None})


def reject_unused_overrides(config: ModelConfig, facts: Overrides) -> None:
    """A word that changes nothing was meant for another model."""
    said = [field.name for field in fields(facts) if field.name != "preprocess" and getattr(facts, field.name) is not None]
    if not isinstance(config, ViTConfig):
        if said:
            raise ValueError(f"{', '.join(said)} is said of a ResNet, which has no such thing: leave it out.")
        return
    if facts.gelu is not None and config.mlp == "swiglu":
        raise ValueError(f"gelu={facts.gelu} is said of a model with SwiGLU, which has none: leave it out.")


def choose_preprocessing(wish: Preprocessing | str | Path, config: ModelConfig) -> Preprocessing:
    """The user's, for the size that the model has in the end."""
    if isinstance(wish, Preprocessing):
        return wish
    if wish == "imagenet":
        return build_imagenet_preprocessing(config.image_size, config.num_channels)
    if wish == "inception":
        return build_inception_preprocessing(config.image_size, config.num_channels)
    path = Path(wish)
    if not path.is_file():
        raise FileNotFoundError(f"--preprocess {wish} is neither imagenet, inception nor a file of JSON.")
    content = read_json(path)
    if {"image_processor_type", "feature_extractor_type", "do_resize"} & content.keys():
        return parse_processor(content, config)
    try:
        return Preprocessing.from_json(content.get("preprocessing", content))
    except ValueError as error:
        raise ValueError(f"{path} does not describe a preprocessing: {error}") from None


def load_weights(
    form: CheckpointFormat, config: ModelConfig, tensors: Tensors, source: str, checksum: str | None
) -> Model[Any]:
    """The model with the file's numbers. Each tensor is read once and alone, so little more than the model is in memory."""
    require_depth(config, tensors, source)
    try:
        model = build_meta_model(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # torch's words on sizes beyond 64 bits
        raise ValueError(f"{source} describes a model that cannot be: {summarise(error)}.") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    layout = form.layout(config)
    require_fit(layout, tensors, shapes, source)
    seen = Checksum(is_needed=checksum is not None)
    state: dict[str, Tensor] = {}
    for entry in layout:
        parts = (seen.watch(name, tensors[name].read()) for name in entry.theirs)
        state[entry.ours] = entry.read(parts, shapes[entry.ours])
    if checksum is not None and seen.value() != checksum:
        raise ValueError(
            f"The weights of {source} are not the ones that its description was written for (checksum): "
            "they were damaged or exchanged; fetch or copy them again, or remove the description."
        )
    model.load_state_dict(state, assign=True)
    return model.eval()


def require_depth(config: ModelConfig, tensors: Mapping[str, Any], source: str) -> None:
    """A description may claim any number of blocks; there are no more than tensors."""
    stages = (
        config.stem_stages if isinstance(config, HybridConfig) else config.stages if isinstance(config, ResNetConfig) else ()
    )
    depth = max(sum(stages), config.depth if isinstance(config, ViTConfig) else 0)
    if max(depth, len(stages)) > len(tensors):
        raise ValueError(f"{source} describes {depth:,} blocks and has {len(tensors)} tensors, so nothing was loaded.")


def with_new_head(checkpoint: Checkpoint, num_classes: int, source: str) -> Checkpoint:
    model = checkpoint.model
    old = model.config.num_classes
    had_hidden_layer = getattr(model.config, "hidden_head", False)
    model.reset_head(num_classes)
    if num_classes == 0:
        warn_user(f"The head of {source}, of {old} classes, was left out, as asked for: the model returns its features.")
    else:
        lost = "its head and the hidden layer before it were" if had_hidden_layer else "its head was"
        warn_user(f"{source} has {old} classes and {num_classes} were asked for: {lost} replaced by a new one of zeros.")
    return replace(checkpoint, class_names=None)


def with_image_size(checkpoint: Checkpoint, size: tuple[int, int], method: ResizeMethod) -> Checkpoint:
    preprocessing = checkpoint.preprocessing.resized(size)  # first: it knows what no image can be
    try:
        checkpoint.model.resize(size, method)
    except RuntimeError as error:  # torch's word for too little memory
        raise ValueError(f"image_size={size} is too much for this machine: {summarise(error)}.") from None
    return replace(checkpoint, preprocessing=preprocessing)

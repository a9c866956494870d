"""FORMATS, the table of checkpoint formats; detection of a file's format; our own format."""

from collections.abc import Iterable, Iterator
from typing import Any

from vitrine.core.console import join_names, warn_user
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel, Stored
from vitrine.formats.bit import BIT
from vitrine.formats.config import FormatName
from vitrine.formats.families import recognise_family
from vitrine.formats.google import BIG_VISION, GOOGLE_2020, GOOGLE_LINEN
from vitrine.formats.huggingface import HUGGING_FACE
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import TensorMapping
from vitrine.formats.timm import TIMM
from vitrine.formats.torchvision import TORCHVISION
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model


class Vitrine(CheckpointFormat):
    """Our own format: every model, under its own tensor names, described by config.json."""

    name = "vitrine"
    container = "folder"

    def matches(self, names: Iterable[str]) -> bool:
        return bool({"patches.projection.weight", "root.conv.weight"} & set(names))

    def infer_model(self, foreign: ForeignCheckpoint) -> InferredModel:
        raise ValueError(f"{foreign.source} holds weights of Vitrine without their config.json: copy it beside them.")

    def to_storable(self, model: Model[Any]) -> Stored:
        return model.config, dict(model.state_dict())

    def tensor_mappings(self, config: ModelConfig) -> Iterator[TensorMapping]:
        return (TensorMapping(name, (name,)) for name in build_meta_model(config).state_dict())


FORMATS: dict[FormatName, CheckpointFormat] = {
    fmt.name: fmt for fmt in (Vitrine(), GOOGLE_2020, GOOGLE_LINEN, BIG_VISION, BIT, TIMM, HUGGING_FACE, TORCHVISION)
}

# Prefixes that training programs put before a network's tensors: optimizer target, parameters, DataParallel, torch.compile.
PREFIXES = ("opt/target/", "params/", "module.", "_orig_mod.")
# Training state that lies beside a prefixed network. Anything else is kept, and reported as unexpected.
TRAINING_STATE = ("opt/", "step", "epoch", "extra/", "n_averaged")


def strip_prefixes(tensors: Tensors) -> Tensors:
    """Return a training checkpoint's network under its own names, without the training state beside it."""
    for prefix in PREFIXES:
        inside = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        if inside:
            beside = {name: tensor for name, tensor in tensors.items() if not name.startswith((prefix, *TRAINING_STATE))}
            return {**strip_prefixes(inside), **beside}
    return tensors


def select_image_tower(tensors: Tensors) -> Tensors:
    """Return the image tower of big_vision's two-tower models (SigLIP, LiT); one warning if there is a text tower beside it."""
    image_tower = {name.removeprefix("img/"): tensor for name, tensor in tensors.items() if name.startswith("img/")}
    text_tower = [name for name in tensors if name.startswith("txt/") or name in ("t", "b")]
    if not image_tower:
        return tensors
    if text_tower:
        count = f"{len(text_tower)} tensors of the text tower and its temperature"
        warn_user(f"{count} were left out: the image tower is read, whose output is the embedding before normalisation.")
    beside = {name: tensor for name, tensor in tensors.items() if not name.startswith("img/") and name not in text_tower}
    return {**image_tower, **beside}


def detect_format(names: Iterable[str], source: str) -> CheckpointFormat:
    """Return the format of a checkpoint from its tensor names; the file name does not matter."""
    names = list(names)
    family = recognise_family(names)
    if family is not None:
        expected = f"expected a ViT, a hybrid or a ResNet of BiT in one of the formats {', '.join(FORMATS)}"
        raise ValueError(f"{source} has the tensors of {family}, which is not supported: {expected}.")
    for fmt in FORMATS.values():
        if fmt.matches(names):
            return fmt
    found = f"{len(names)} tensors named {join_names(sorted(names), 4)}"
    raise ValueError(f"{source} is not in a known format ({', '.join(FORMATS)}): it has {found}.")

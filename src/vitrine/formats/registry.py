"""FORMATS, detection by tensor names, our own format.

Our own format: our own names. Only the folder's config.json can say which of all models it is.
The table of formats, and which of them a file is in.
"""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from vitrine.core.console import join_names
from vitrine.formats.base import CheckpointFormat, ForeignCheckpoint, InferredModel
from vitrine.formats.bit import BIT
from vitrine.formats.config import FormatName
from vitrine.formats.google import BIG_VISION, GOOGLE_2020, GOOGLE_LINEN
from vitrine.formats.huggingface import HUGGING_FACE
from vitrine.formats.tensor_files import Tensors
from vitrine.formats.tensor_mapping import Layout, TensorMapping
from vitrine.formats.timm import TIMM
from vitrine.formats.torchvision import TORCHVISION
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_meta_model


class Own(CheckpointFormat):
    name = "vitrine"
    container = "folder"

    def matches(self, names: Iterable[str]) -> bool:
        return bool({"patches.projection.weight", "root.conv.weight"} & set(names))

    def describe(self, given: ForeignCheckpoint) -> InferredModel:
        raise ValueError(
            f"{given.source} holds weights of Vitrine without the config.json that describes them: "
            "give the whole folder, or copy config.json beside model.safetensors."
        )

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        return model.config, dict(model.state_dict())

    def layout(self, config: ModelConfig) -> Layout:
        return [TensorMapping(name, (name,)) for name in build_meta_model(config).state_dict()]


OWN = Own()

FORMATS: dict[FormatName, CheckpointFormat] = {
    form.name: form for form in (OWN, GOOGLE_2020, GOOGLE_LINEN, BIG_VISION, BIT, TIMM, HUGGING_FACE, TORCHVISION)
}

# Where training programs put the network: under the optimiser's target, beside its state, behind what a wrapper is called.
PREFIXES = ("opt/target/", "params/", "module.", "_orig_mod.")
# What they put beside it. Anything else stays, and is named as unexpected.
TRAINING_STATE = ("opt/", "step", "epoch", "extra/", "n_averaged")


def strip_prefixes(tensors: Tensors) -> Tensors:
    """The network's tensors under their own names; training state beside it is left out, and nothing else."""
    for prefix in PREFIXES:
        inside = {name.removeprefix(prefix): stored for name, stored in tensors.items() if name.startswith(prefix)}
        if inside:
            beside = {name: stored for name, stored in tensors.items() if not name.startswith((prefix, *TRAINING_STATE))}
            return {**strip_prefixes(inside), **beside}
    return tensors


def recognise(names: Iterable[str], source: str) -> CheckpointFormat:
    """By the names of the tensors, not of the file."""
    names = list(names)
    for form in FORMATS.values():
        if form.matches(names):
            return form
    raise ValueError(
        f"{source} is in no known format: its {len(names)} tensors are named {join_names(sorted(names), 4)}; "
        f"known are {', '.join(FORMATS)}."
    )

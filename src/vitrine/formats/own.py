"""Our own format: our own names. Only the folder's config.json can say which of all models it is."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from vitrine.formats.format import Described, Format, Given
from vitrine.formats.layout import Entry, Layout
from vitrine.models.config import ModelConfig
from vitrine.models.model import Model
from vitrine.models.registry import build_empty


class Own(Format):
    name = "vitrine"
    container = "folder"

    def recognises(self, names: Iterable[str]) -> bool:
        return bool({"patches.projection.weight", "root.conv.weight"} & set(names))

    def describe(self, given: Given) -> Described:
        raise ValueError(
            f"{given.source} holds weights of Vitrine without the config.json that describes them: "
            "give the whole folder, or copy config.json beside model.safetensors."
        )

    def adapt(self, model: Model[Any]) -> tuple[ModelConfig, dict[str, Tensor]]:
        return model.config, dict(model.state_dict())

    def layout(self, config: ModelConfig) -> Layout:
        return [Entry(name, (name,)) for name in build_empty(config).state_dict()]


OWN = Own()

"""A configuration as JSON and back. What comes back may be from anywhere, so everything about it is checked."""

import difflib
from dataclasses import MISSING, asdict, fields
from typing import Any

from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig

KINDS: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "axial": AxialConfig,
    "hybrid": HybridConfig,
    "resnet": ResNetConfig,
}
# No size of a model comes near; larger numbers would only serve to make a reader compute for ever.
LARGEST = 10_000_000


def describe_config(config: ModelConfig) -> dict[str, Any]:
    kind = next(name for name, known in KINDS.items() if type(config) is known)
    return {"kind": kind, **asdict(config)}


def parse_config(content: object) -> ModelConfig:
    name = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"A model's description must name its kind, one of {', '.join(KINDS)}; it is {content!r:.80}.")
    kind = KINDS[name]
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items() if name != "kind"}
    known = {field.name: field for field in fields(kind)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ValueError(f"A {content['kind']} has no field {name!r}{hint}. A newer version may have written it.")
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int | float) and not -LARGEST <= number <= LARGEST for number in numbers):
            raise ValueError(f"{name}={value!r} is no size of a model.")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise ValueError(f"The description of a {content['kind']} lacks {', '.join(missing)}.")
    return kind(**values)

"""Model names, one table of families, config to JSON and back.

Model names: a table of variants, a grammar for the rest, and the canonical list that tests walk through.

No torch is imported before a model is built.
A configuration as JSON and back. What comes back may be from anywhere, so everything about it is checked.
"""

import difflib
import re
from dataclasses import MISSING, asdict, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vitrine.models.config import AxialConfig, HybridConfig, ModelConfig, ResNetConfig, ViTConfig, as_image_size

if TYPE_CHECKING:
    from vitrine.models.model import Model

# B, L, H: table 1 of arXiv:2010.11929. b: its figure 4, all widths of B halved; the number of heads is not a width, so it
# stays. Ti, g, G: arXiv:2106.04560. S: arXiv:2012.12877.
VARIANTS: dict[str, dict[str, int]] = {
    "Ti": {"width": 192, "depth": 12, "num_heads": 3, "mlp_dim": 768},
    "S": {"width": 384, "depth": 12, "num_heads": 6, "mlp_dim": 1536},
    "b": {"width": 384, "depth": 12, "num_heads": 12, "mlp_dim": 1536},
    "B": {"width": 768, "depth": 12, "num_heads": 12, "mlp_dim": 3072},
    "L": {"width": 1024, "depth": 24, "num_heads": 16, "mlp_dim": 4096},
    "H": {"width": 1280, "depth": 32, "num_heads": 16, "mlp_dim": 5120},
    "g": {"width": 1408, "depth": 40, "num_heads": 16, "mlp_dim": 6144},
    "G": {"width": 1664, "depth": 48, "num_heads": 16, "mlp_dim": 8192},
}

RESNET_STAGES: dict[str, tuple[int, ...]] = {
    "26": (2, 2, 2, 2),
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3),
}

# What the paper and its released code name. Other patch sizes, widths and depths parse too; for these the counts are known.
MODELS = (
    "ViT-Ti/16",
    "ViT-S/32",
    "ViT-S/16",
    "ViT-b/32",
    "ViT-b/16",
    "ViT-B/32",
    "ViT-B/16",
    "ViT-B/8",
    "ViT-L/32",
    "ViT-L/16",
    "ViT-H/14",
    "ViT-g/14",
    "ViT-G/14",
    "R26x1",
    "R50x1",
    "R50x2",
    "R50x3",
    "R101x1",
    "R101x3",
    "R152x1",
    "R152x2",
    "R152x4",
    "R200x3",
    "R+ViT-Ti/16",
    "R26+ViT-S/32",
    "R26+ViT-B/32",
    "R50+ViT-B/32",
    "R50+ViT-B/16",
    "R50+ViT-L/32",
    "R50+ViT-L/16",
    "Axial-ViT-B/32",
    "Axial-ViT-B/16",
)

# Every family: its configuration and where its class lives.
FAMILIES: dict[type[ModelConfig], tuple[str, str]] = {
    ViTConfig: ("vitrine.models.vit", "VisionTransformer"),
    AxialConfig: ("vitrine.models.axial", "AxialTransformer"),
    HybridConfig: ("vitrine.models.hybrid", "Hybrid"),
    ResNetConfig: ("vitrine.models.resnet", "ResNet"),
}

VIT_NAME = re.compile(r"(?P<axial>Axial-)?ViT-(?P<variant>[A-Za-z]+)/(?P<patch>[1-9]\d*)")
RESNET_NAME = re.compile(r"R(?P<depth>\d+)x(?P<factor>\d+(\.\d+)?)")
HYBRID_NAME = re.compile(r"R(?P<depth>\d*)(x(?P<factor>\d+(\.\d+)?))?\+ViT-(?P<variant>[A-Za-z]+)/(?P<stride>\d+)")


def build_model(
    name: str | ModelConfig,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **changes: Any,
) -> "Model[Any]":
    """A model with fresh weights from a name such as `ViT-B/16` or a configuration, with any of its fields changed."""
    config = resolve_config(name, num_classes=num_classes, image_size=image_size, **changes)
    module, class_name = FAMILIES[type(config)]
    return getattr(import_module(module), class_name)(config)


def build_meta_model(config: ModelConfig) -> "Model[Any]":
    """A model without memory for its weights, on the meta device: names and shapes, to be given numbers from a file."""
    import torch

    with torch.device("meta"):
        return build_model(config)


def resolve_config(
    name: str | ModelConfig,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    **changes: Any,
) -> ModelConfig:
    """The configuration behind a name, or the one given, with some fields changed."""
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_image_size(image_size)
    if isinstance(name, str):
        return parse_model_name(name, **changes)
    if type(name) not in FAMILIES:
        raise ValueError(f"{name!r} is no model: give a name such as 'ViT-B/16', or a configuration such as vitrine.ViTConfig.")
    require_known_fields(type(name), changes)
    return replace(name, **changes)


def parse_model_name(name: str, **changes: Any) -> ModelConfig:
    """`ViT-B/16`, `Axial-ViT-B/16`, `R50x1`, `R50+ViT-B/16` -> the configuration, as in the paper."""
    for parse in (parse_vit_name, parse_resnet_name, parse_hybrid_name):
        parsed = parse(name)
        if parsed is not None:
            kind, named = parsed
            require_known_fields(kind, changes)
            return kind(**{**named, **changes})  # made once: a patch of 256 pixels is fine if the images are larger too
    raise ValueError(f"Unknown model {name!r}. Nearest: {', '.join(nearest_names(name))}. All names: `vitrine models`.")


Parsed = tuple[type[ModelConfig], dict[str, Any]]


def parse_vit_name(name: str) -> Parsed | None:
    match = VIT_NAME.fullmatch(name)
    if match is None or match["variant"] not in VARIANTS:
        return None
    kind = AxialConfig if match["axial"] else ViTConfig
    return kind, {"patch_size": int(match["patch"]), **VARIANTS[match["variant"]]}


def parse_resnet_name(name: str) -> Parsed | None:
    match = RESNET_NAME.fullmatch(name)
    if match is None or match["depth"] not in RESNET_STAGES:
        return None
    return ResNetConfig, {"stages": RESNET_STAGES[match["depth"]], "width_factor": float(match["factor"])}


def parse_hybrid_name(name: str) -> Parsed | None:
    """The number at the end is the total stride (section 4.4): 32 after all four stages, 16 after three."""
    match = HYBRID_NAME.fullmatch(name)
    if match is None or match["variant"] not in VARIANTS or match["depth"] not in ("", *RESNET_STAGES):
        return None
    stem = resolve_stem(match["depth"], int(match["stride"]))
    if stem is None:
        return None
    stages, patch_size = stem
    width_factor = float(match["factor"] or 1)
    sizes = VARIANTS[match["variant"]]
    return HybridConfig, {"stem_stages": stages, "stem_width_factor": width_factor, "patch_size": patch_size, **sizes}


def resolve_stem(depth: str, stride: int) -> tuple[tuple[int, ...], int] | None:
    """Stages of the ResNet and size of the patches cut from its map."""
    if depth == "":
        # The released R+ViT-Ti/16 is a root with patches of 8 places. Its comment takes the root's stride for 2, but with
        # the pool it is 4, so "/16" is really /32; the released count has 49 tokens and settles it.
        return ((), stride // 2) if stride > 1 and stride % 2 == 0 else None
    stages = RESNET_STAGES[depth]
    if stride == 32:
        return stages, 1
    if stride == 16:
        return (*stages[:2], stages[2] + stages[3]), 1  # stage 4's units move into stage 3 (section 4.1)
    return None


def require_known_fields(kind: type[ModelConfig], changes: dict[str, Any]) -> None:
    known = [field.name for field in fields(kind)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known
            raise ValueError(f"{kind.__name__} has no field {name!r}; nearest: {', '.join(near)}.")


def nearest_names(name: str) -> list[str]:
    """Up to three names to offer, first without regard to case, as `vit-b16` is meant for `ViT-B/16`."""
    folded = [known.casefold() for known in MODELS]
    near = set(difflib.get_close_matches(name.casefold(), folded, n=3) or ["vit-b/16", "r50x1", "r50+vit-b/16"])
    offered = [known for known in MODELS if known.casefold() in near]
    # `ViT-b/16` and `ViT-B/16` differ only in case: what was typed decides.
    return sorted(offered, key=lambda known: -difflib.SequenceMatcher(None, name, known).ratio())[:3]


KINDS: dict[str, type[ModelConfig]] = {
    "vit": ViTConfig,
    "axial": AxialConfig,
    "hybrid": HybridConfig,
    "resnet": ResNetConfig,
}
# No size of a model comes near; larger numbers would only serve to make a reader compute for ever.
LARGEST = 10_000_000


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    kind = next(name for name, known in KINDS.items() if type(config) is known)
    return {"kind": kind, **asdict(config)}


def config_from_json(content: object) -> ModelConfig:
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

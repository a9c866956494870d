"""Model names, the table of model families, and configs to JSON and back.

A name is one of the paper (`ViT-B/16`, `R50x1`, `R50+ViT-B/16`) or has other patch sizes, widths and depths by the same
grammar. No torch is imported before a model is built.
"""

import difflib
import re
from dataclasses import MISSING, asdict, fields, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

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

# Names in the paper and its released code. Other patch sizes, widths and depths parse too; for these the counts are known.
MODELS = (
    *("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-b/32", "ViT-b/16", "ViT-B/32", "ViT-B/16", "ViT-B/8"),
    *("ViT-L/32", "ViT-L/16", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("R26x1", "R50x1", "R50x2", "R50x3", "R101x1", "R101x3", "R152x1", "R152x2", "R152x4", "R200x3"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32", "R50+ViT-B/32", "R50+ViT-B/16", "R50+ViT-L/32", "R50+ViT-L/16"),
    *("Axial-ViT-B/32", "Axial-ViT-B/16"),
)


class Family(NamedTuple):
    """A kind of network: its config and the module and name of its class, imported when a model is built."""

    config: type[ModelConfig]
    module: str
    class_name: str


FAMILIES = {
    "vit": Family(ViTConfig, "vitrine.models.vit", "VisionTransformer"),
    "axial": Family(AxialConfig, "vitrine.models.axial", "AxialTransformer"),
    "hybrid": Family(HybridConfig, "vitrine.models.hybrid", "Hybrid"),
    "resnet": Family(ResNetConfig, "vitrine.models.resnet", "ResNet"),
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
    """Build a model with fresh weights from a name such as `ViT-B/16` or a config, with any of its fields changed."""
    config = resolve_config(name, num_classes=num_classes, image_size=image_size, **changes)
    family = FAMILIES[find_family(config)]
    return getattr(import_module(family.module), family.class_name)(config)


def build_meta_model(config: ModelConfig) -> "Model[Any]":
    """Build a model on the meta device: names and shapes of its weights without memory for them."""
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
    """Return the config of a model name, or the given config, with some fields changed."""
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_image_size(image_size)
    if isinstance(name, str):
        return parse_model_name(name, **changes)
    find_family(name)
    check_known_fields(type(name), changes)
    return replace(name, **changes)


def find_family(config: ModelConfig) -> str:
    """Return the name in FAMILIES of a config's family, which is its `kind` in JSON."""
    for name, family in FAMILIES.items():
        if type(config) is family.config:
            return name
    raise ValueError(f"{config!r} is not a model: give a name such as 'ViT-B/16', or a config such as vitrine.ViTConfig.")


def parse_model_name(name: str, **changes: Any) -> ModelConfig:
    """Return the config of a name such as `ViT-B/16`, `Axial-ViT-B/16`, `R50x1` or `R50+ViT-B/16`, with changes."""
    for parse in (parse_vit_name, parse_resnet_name, parse_hybrid_name):
        parsed = parse(name)
        if parsed is not None:
            config_class, values = parsed
            check_known_fields(config_class, changes)
            # Built once, with the changes: patches of 256 pixels are valid if the images are larger too.
            return config_class(**{**values, **changes})
    raise ValueError(f"Unknown model {name!r}. Nearest: {', '.join(nearest_names(name))}. All names: `vitrine models`.")


ParsedName = tuple[type[ModelConfig], dict[str, Any]]


def parse_vit_name(name: str) -> ParsedName | None:
    """Parse `ViT-B/16` or `Axial-ViT-B/16`: variant and patch size."""
    match = VIT_NAME.fullmatch(name)
    if match is None or match["variant"] not in VARIANTS:
        return None
    config_class = AxialConfig if match["axial"] else ViTConfig
    return config_class, {"patch_size": int(match["patch"]), **VARIANTS[match["variant"]]}


def parse_resnet_name(name: str) -> ParsedName | None:
    """Parse `R50x1`: depth and width factor."""
    match = RESNET_NAME.fullmatch(name)
    if match is None or match["depth"] not in RESNET_STAGES:
        return None
    return ResNetConfig, {"stages": RESNET_STAGES[match["depth"]], "width_factor": float(match["factor"])}


def parse_hybrid_name(name: str) -> ParsedName | None:
    """Parse `R50+ViT-B/16`, whose last number is the total stride (section 4.4): 32 after four stages, 16 after three."""
    match = HYBRID_NAME.fullmatch(name)
    if match is None or match["variant"] not in VARIANTS or match["depth"] not in ("", *RESNET_STAGES):
        return None
    stride, stages, patch_size = int(match["stride"]), RESNET_STAGES.get(match["depth"], ()), 1
    if stages == ():
        # The released R+ViT-Ti/16 is a root with patches of 8 x 8 cells. Its comment assumes a root of stride 2, but with the
        # pool it is 4, so "/16" is really /32; the released count, 49 tokens, confirms it.
        patch_size = stride // 2
    elif stride == 16:
        stages = (*stages[:2], stages[2] + stages[3])  # stage 4's units move into stage 3 (section 4.1)
    is_valid = stride in (16, 32) if stages else stride > 1 and stride % 2 == 0
    if not is_valid:
        return None
    values = {"stem_stages": stages, "stem_width_factor": float(match["factor"] or 1), "patch_size": patch_size}
    return HybridConfig, {**values, **VARIANTS[match["variant"]]}


def check_known_fields(config_class: type[ModelConfig], changes: dict[str, Any]) -> None:
    """Raise a ValueError if a changed field does not exist in the config."""
    known = [field.name for field in fields(config_class)]
    for name in changes:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3) or known
            raise ValueError(f"{config_class.__name__} has no field {name!r}; nearest: {', '.join(near)}.")


def nearest_names(name: str) -> list[str]:
    """Return up to three model names to suggest for a mistyped one, e.g. `ViT-B/16` for `vit-b16`."""
    folded = [known.casefold() for known in MODELS]
    near = set(difflib.get_close_matches(name.casefold(), folded, n=3) or ["vit-b/16", "r50x1", "r50+vit-b/16"])
    suggestions = [known for known in MODELS if known.casefold() in near]
    # `ViT-b/16` and `ViT-B/16` differ only in case, so the order depends on the case that was typed.
    return sorted(suggestions, key=lambda known: -difflib.SequenceMatcher(None, name, known).ratio())[:3]


# No model has a size near this. Larger numbers in a file could only make its reader compute for ever.
MAX_SIZE = 10_000_000
# Fields that are written only if they are set, so that files of models without them are as before.
OPTIONAL_FIELDS = (
    *("readout_layers", "readout", "hidden_head_dim", "pre_norm", "patch_bias", "qkv_bias", "register_position"),
    "pool_padding",
)


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    """Return a config as JSON values, with its family as `kind`."""
    unset = {name for name in OPTIONAL_FIELDS if getattr(config, name, None) == getattr(type(config), name, None)}
    values = {name: value for name, value in asdict(config).items() if name not in unset}
    return {"kind": find_family(config), **values}


def config_from_json(content: object) -> ModelConfig:
    """Check and rebuild a config from `config_to_json`; the file may be from anywhere, so everything is checked."""
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(f"A model config must have a kind, one of {', '.join(FAMILIES)}; found {content!r:.80}.")
    values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in content.items() if name != "kind"}
    config_class = FAMILIES[kind].config
    known = {field.name: field for field in fields(config_class)}
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise ValueError(f"A {kind} config has no field {name!r}{hint}. A newer version may have written it.")
        numbers = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, int | float) and not -MAX_SIZE <= number <= MAX_SIZE for number in numbers):
            raise ValueError(f"{name}={value!r} is out of range for a model, at most {MAX_SIZE}.")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise ValueError(f"The {kind} config lacks {', '.join(missing)}.")
    return config_class(**values)

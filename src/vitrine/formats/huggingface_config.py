"""The JSON files of a Hugging Face folder: both written from our configurations, the processor's also read."""

import math
from dataclasses import dataclass
from typing import Any

from vitrine.data.preprocessing import Preprocessing
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig, as_image_size

# Pillow's numbers for its filters.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def describe_for_transformers(config: ModelConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """The content of config.json."""
    names = class_names or tuple(f"LABEL_{index}" for index in range(config.num_classes))
    labels = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    described = describe_bit(config) if isinstance(config, ResNetConfig) else describe_vit(config)
    return {**described, "num_channels": config.num_channels, "dtype": "float32", **(labels if config.num_classes > 0 else {})}


def describe_vit(config: ModelConfig) -> dict[str, Any]:
    assert isinstance(config, ViTConfig)
    height, width = config.image_size
    kind = ("deit", "DeiT") if config.distillation_token else ("vit", "ViT")
    classifier = "ForImageClassificationWithTeacher" if config.distillation_token else "ForImageClassification"
    return {
        "architectures": [f"{kind[1]}{classifier if config.num_classes > 0 else 'Model'}"],
        "model_type": kind[0],
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": 0.0,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "encoder_stride": config.patch_size,
        "qkv_bias": True,
        "pooler_act": "tanh",
        "pooler_output_size": config.width,
    }


def describe_bit(config: ResNetConfig) -> dict[str, Any]:
    return {
        "architectures": ["BitForImageClassification" if config.num_classes > 0 else "BitModel"],
        "model_type": "bit",
        "embedding_size": config.root_dim,
        "hidden_sizes": [4 * config.bottleneck_dim(stage) for stage in range(len(config.stages))],
        "depths": list(config.stages),
        "layer_type": "preactivation",
        "hidden_act": "relu",
        "global_padding": None,
        "num_groups": config.num_groups,
        "embedding_dynamic_padding": False,
        "output_stride": 32,
        "width_factor": 1,
    }


def describe_processor(preprocessing: Preprocessing, config: ModelConfig) -> dict[str, Any]:
    """The content of preprocessor_config.json."""
    height, width = preprocessing.crop
    resize = preprocessing.resize
    # Straight to the size of the model is what ViT's processor does; everything else needs one that crops.
    needs_crop = resize != preprocessing.crop
    name = "BitImageProcessor" if needs_crop or isinstance(config, ResNetConfig) else "ViTImageProcessor"
    described: dict[str, Any] = {
        "image_processor_type": name,
        "do_resize": resize is not None,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "resample": next(number for number, name in FILTERS.items() if name == preprocessing.interpolation),
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_center_crop": needs_crop,
    }
    if isinstance(resize, int):
        described["size"] = {"shortest_edge": resize}
    elif resize is not None:
        described["size"] = {"height": resize[0], "width": resize[1]}
    if needs_crop:
        described["crop_size"] = {"height": height, "width": width}
    return described


@dataclass(frozen=True)
class Processor:
    """What one of Hugging Face's image processors does where its file says nothing."""

    size: int | tuple[int, int] = (224, 224)
    crop_size: int | None = None
    resample: int = 2
    number_is_short_side: bool = False
    """What a bare number for the size means, in files of the first years."""


PROCESSORS = {
    "DeiT": Processor(size=(256, 256), crop_size=224, resample=3),
    "Bit": Processor(size=224, crop_size=224, resample=3, number_is_short_side=True),
}


def parse_processor(said: dict[str, Any], config: ModelConfig) -> Preprocessing:
    """A preprocessor_config.json as our preprocessing."""
    name = str(said.get("image_processor_type") or said.get("feature_extractor_type") or "")
    usual = next((processor for family, processor in PROCESSORS.items() if name.startswith(family)), Processor())
    require_bytes_scaled(said)
    resize = parse_size(said.get("size", usual.size)) if said.get("do_resize", True) else None
    crop = None
    if said.get("do_center_crop", usual.crop_size is not None or "crop_size" in said):
        crop = parse_size(said.get("crop_size", usual.crop_size))
    if isinstance(resize, int) and not isinstance(said.get("size"), dict) and not usual.number_is_short_side:
        resize = (resize, resize)
    if crop is None:
        crop = resize if isinstance(resize, tuple) else config.image_size
    crop = as_image_size(crop)
    if crop != config.image_size:
        raise ValueError(
            f"preprocessor_config.json makes images of {crop[0]} x {crop[1]} pixels, and the model takes "
            f"{config.image_size[0]} x {config.image_size[1]}: correct it, or say what to do by --preprocess."
        )
    half, normalised = [0.5] * config.num_channels, said.get("do_normalize", True)
    return Preprocessing.from_json(
        {
            "resize": list(resize) if isinstance(resize, tuple) else resize,
            "crop": list(crop),
            "interpolation": parse_filter(said.get("resample", usual.resample)),
            "mean": said.get("image_mean", half) if normalised else [0.0] * config.num_channels,
            "std": said.get("image_std", half) if normalised else [1.0] * config.num_channels,
        }
    )


def require_bytes_scaled(said: dict[str, Any]) -> None:
    factor = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1
    if not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise ValueError(
            f"preprocessor_config.json scales values by {factor!r}; read is 1/255: say what to do by --preprocess."
        )


def parse_filter(number: object) -> str:
    if not isinstance(number, int) or number not in FILTERS:
        raise ValueError(f"preprocessor_config.json has resample={number!r}; read are Pillow's filters, 0 to 5.")
    return FILTERS[number]


def parse_size(size: object) -> int | tuple[int, int] | None:
    match size:
        case {"height": int() as height, "width": int() as width}:
            return height, width
        case {"shortest_edge": int() as short}:
            return short
        case int():
            return size
        case (int() as height, int() as width):
            return height, width
        case None:
            return None
    raise ValueError(f"preprocessor_config.json has a size of {size!r}; read are height and width, or shortest_edge.")

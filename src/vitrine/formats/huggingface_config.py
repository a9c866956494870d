"""config.json and preprocessor_config.json of a Hugging Face folder: both written, the latter also read."""

import math
from dataclasses import dataclass
from typing import Any

from vitrine.core.console import name_setting
from vitrine.data.preprocessing import Preprocessing
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig, as_image_size

# Pillow's numbers of its resampling filters.
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def config_to_huggingface(config: ModelConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the content of config.json."""
    names = class_names or tuple(f"LABEL_{index}" for index in range(config.num_classes))
    labels = {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    content = bit_to_huggingface(config) if isinstance(config, ResNetConfig) else vit_to_huggingface(config)
    return {**content, "num_channels": config.num_channels, "dtype": "float32", **(labels if config.num_classes > 0 else {})}


def vit_to_huggingface(config: ModelConfig) -> dict[str, Any]:
    """Return the config.json fields of a ViT or distilled DeiT."""
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
        "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}[config.gelu],
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout_rate,
        "attention_probs_dropout_prob": 0.0,
        "image_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "encoder_stride": config.patch_size,
        "qkv_bias": config.qkv_bias,
        "pooler_act": "tanh",
        "pooler_output_size": config.feature_dim,
    }


def bit_to_huggingface(config: ResNetConfig) -> dict[str, Any]:
    """Return the config.json fields of a BiT ResNet."""
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


def preprocessing_to_huggingface(preprocessing: Preprocessing, config: ModelConfig) -> dict[str, Any]:
    """Return the content of preprocessor_config.json."""
    height, width = preprocessing.crop
    resize = preprocessing.resize
    # ViT's processor resizes to the model's input size; any other preprocessing needs a processor that crops.
    needs_crop = resize != preprocessing.crop
    name = "BitImageProcessor" if needs_crop or isinstance(config, ResNetConfig) else "ViTImageProcessor"
    content: dict[str, Any] = {
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
        content["size"] = {"shortest_edge": resize}
    elif resize is not None:
        content["size"] = {"height": resize[0], "width": resize[1]}
    if needs_crop:
        content["crop_size"] = {"height": height, "width": width}
    return content


@dataclass(frozen=True)
class ProcessorDefaults:
    """Defaults of one of Hugging Face's image processors, for fields that its file leaves out."""

    size: int | tuple[int, int] = (224, 224)
    crop_size: int | None = None
    resample: int = 2
    number_is_short_side: bool = False
    """Whether a size of one number (in early files) is the short side, not both."""


PROCESSORS = {
    "DeiT": ProcessorDefaults(size=(256, 256), crop_size=224, resample=3),
    "Bit": ProcessorDefaults(size=224, crop_size=224, resample=3, number_is_short_side=True),
}


def preprocessing_from_huggingface(content: dict[str, Any], config: ModelConfig) -> Preprocessing:
    """Build our preprocessing from the content of a preprocessor_config.json."""
    name = str(content.get("image_processor_type") or content.get("feature_extractor_type") or "")
    default = next((processor for family, processor in PROCESSORS.items() if name.startswith(family)), ProcessorDefaults())
    factor = content.get("rescale_factor", 1 / 255) if content.get("do_rescale", True) else 1
    if not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise ValueError(
            f"preprocessor_config.json scales values by {factor!r}; supported is 1/255: set {name_setting('preprocess')}."
        )
    resample = content.get("resample", default.resample)
    if not isinstance(resample, int) or resample not in FILTERS:
        raise ValueError(f"preprocessor_config.json has resample={resample!r}; supported are Pillow's filters 0 to 5.")
    resize = parse_size(content.get("size", default.size)) if content.get("do_resize", True) else None
    crop = None
    if content.get("do_center_crop", default.crop_size is not None or "crop_size" in content):
        crop = parse_size(content.get("crop_size", default.crop_size))
    if isinstance(resize, int) and not isinstance(content.get("size"), dict) and not default.number_is_short_side:
        resize = (resize, resize)
    if crop is None:
        crop = resize if isinstance(resize, tuple) else config.image_size
    crop = as_image_size(crop)
    if crop != config.image_size:
        size = f"{config.image_size[0]} x {config.image_size[1]}"
        expected = f"the model expects {size}: correct it, or set {name_setting('preprocess')}"
        raise ValueError(f"preprocessor_config.json makes images of {crop[0]} x {crop[1]} pixels, but {expected}.")
    half, is_normalised = [0.5] * config.num_channels, content.get("do_normalize", True)
    return Preprocessing.from_json(
        {
            "resize": list(resize) if isinstance(resize, tuple) else resize,
            "crop": list(crop),
            "interpolation": FILTERS[resample],
            "mean": content.get("image_mean", half) if is_normalised else [0.0] * config.num_channels,
            "std": content.get("image_std", half) if is_normalised else [1.0] * config.num_channels,
        }
    )


def parse_size(size: object) -> int | tuple[int, int] | None:
    """Return (height, width), or one number for the short side, from any of the forms of a size in the file."""
    match size:
        case {"height": int() as height, "width": int() as width} | (int() as height, int() as width):
            return height, width
        case {"shortest_edge": int() as short}:
            return short
        case int() | None:
            return size
    raise ValueError(f"preprocessor_config.json has a size of {size!r}; expected height and width, or shortest_edge.")

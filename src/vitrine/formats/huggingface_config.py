"""The JSON files of a Hugging Face folder, written from our configurations."""

from typing import Any

from vitrine.data.preprocessing import Preprocessing
from vitrine.models.config import ModelConfig, ResNetConfig, ViTConfig

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

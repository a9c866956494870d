"""`vitrine models`: cost of models, computed without building them."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, format_number, parse_image_size, print_table
from vitrine.core.files import write_json
from vitrine.models.cost import ModelInfo, list_models


def models(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = (),
    image_size: str = "224",
    num_classes: int = 1000,
    images: float = 0.0,
    epochs: float = 1.0,
    json: Path | None = None,
) -> None:
    """List parameters, tokens, GMACs and memory of models, computed without building them.

    Bytes are for float32. Inference: weights, and the peak of one image's activations. Training: weights, gradients and Adam's
    averages, and the activations of one image that are saved for the backward pass.

    Args:
        names: Model names, e.g. ViT-B/16, ViT-S/8, R50x1, R50+ViT-B/16, Axial-ViT-B/32 (default: all listed models).
        image_size: Side of the images in pixels, or height and width, e.g. 224x320.
        num_classes: Number of classes; 0 for no head.
        images: Number of training images; adds the exaFLOPs of a training run.
        epochs: Number of passes over the training images.
        json: JSON file for the same figures.
    """
    size = parse_image_size(image_size, "--image-size")
    infos = list_models(names, image_size=size, num_classes=num_classes, images=images, epochs=epochs)
    columns = ["model", "parameters", "tokens", "GMACs", "inference", "+ per image", "training", "+ per image"]
    print_table(columns + ["exaFLOPs"] * (images > 0), [format_row(info) for info in infos])
    if json is not None:
        write_json(json, [info.to_json() for info in infos])


def format_row(info: ModelInfo) -> list[str]:
    """Format a model's figures as a row of the table."""
    cost = info.cost
    sizes = (
        cost.inference_weight_bytes,
        cost.inference_activation_bytes,
        cost.training_weight_bytes,
        cost.training_activation_bytes,
    )
    counts = [f"{cost.num_parameters:,}", str(cost.num_tokens), format_number(cost.macs / 1e9)]
    exaflops = [] if info.exaflops is None else [format_number(info.exaflops)]
    return [info.name, *counts, *map(format_bytes, sizes), *exaflops]

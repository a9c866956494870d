"""`vitrine models`: cost of models, computed without building them; pretrained models on the hub."""

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, format_number, parse_image_size, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.formats.pretrained import StartingPoint, list_starting_points
from vitrine.models.cost import ModelInfo, list_models


def models(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = (),
    image_size: str = "224",
    num_classes: int = 1000,
    images: float = 0.0,
    epochs: float = 1.0,
    pretrained: bool = False,
    json: Path | None = None,
) -> None:
    """List parameters, tokens, GMACs and memory of models, computed without building them.

    Bytes are for float32. Inference: weights, and the peak of one image's activations. Training: weights, gradients and Adam's
    averages, and the activations of one image that are saved for the backward pass.

    Args:
        names: Model names, e.g. ViT-B/16, ViT-S/8, R50x1, R50+ViT-B/16, Axial-ViT-B/32 (default: all listed models). With
            --pretrained, parts of names, e.g. dinov2 or ViT-B/16.
        image_size: Side of the images in pixels, or height and width, e.g. 224x320.
        num_classes: Number of classes; 0 for no head.
        images: Number of training images; adds the exaFLOPs of a training run.
        epochs: Number of passes over the training images.
        pretrained: List pretrained models on the Hugging Face hub to fine-tune, with licence and published accuracy.
        json: JSON file for the same figures.
    """
    check_output_files(json)
    if pretrained:
        reject_cost_options(image_size=image_size, num_classes=num_classes, images=images, epochs=epochs)
        points = list_starting_points(names)
        print_starting_points(points)
        if json is not None:
            write_json(json, [point.to_json() for point in points])
        return
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


def reject_cost_options(**options: object) -> None:
    """Raise ValueError if an option was set that has no effect with --pretrained."""
    parameters = signature(models).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} {value} has no effect with --pretrained: leave out one of the two.")


def print_starting_points(points: Sequence[StartingPoint]) -> None:
    """Print the table of pretrained models."""
    columns = ["name", "licence", "image size", "parameters", "GMACs", "ImageNet top-1", "source"]
    print_table(columns, [format_starting_point(point) for point in points])


def format_starting_point(point: StartingPoint) -> list[str]:
    """Format a pretrained model as a row of the table; cells without a published accuracy are empty."""
    top1 = "" if point.imagenet_top1 is None else f"{point.imagenet_top1:.2f} %"
    counts = [str(point.image_size), f"{point.num_parameters:,}", format_number(point.macs / 1e9)]
    return [point.name, point.licence, *counts, top1, point.source]

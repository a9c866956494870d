"""`vitrine models`: what each model costs, before anything is built."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, print_table
from vitrine.core.files import write_json
from vitrine.models.cost import Cost, compute_cost
from vitrine.models.registry import MODELS


def models(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = (),
    image_size: tuple[int, ...] = (224,),
    num_classes: int = 1000,
    images: float = 0.0,
    epochs: float = 1.0,
    json: Path | None = None,
) -> None:
    """Parameters, tokens, GMACs and memory of models, computed without building them.

    Bytes are of float32: for inference the weights and one image's widest moment, for training weights with gradients and
    Adam's averages, and what one image keeps for the backward pass.

    Args:
        names: Such as ViT-B/16, ViT-S/8, R50x1, R50+ViT-B/16, Axial-ViT-B/32; all listed models if none is given.
        image_size: Pixels of the side, or height and width.
        num_classes: 0 leaves the head out.
        images: Number of training images; if given, the exaFLOPs of a training run are added.
        epochs: How often the run sees each image.
        json: Write the same figures to this file.
    """
    costs = {name: compute_cost(name, parse_image_size(image_size), num_classes=num_classes) for name in names or MODELS}
    if images < 0 or epochs <= 0:
        raise ValueError(f"--images {images:g} and --epochs {epochs:g} must be above 0: they count what a run trains on.")
    columns = ["model", "parameters", "tokens", "GMACs", "inference", "+ per image", "training", "+ per image"]
    rows = [format_row(name, cost) for name, cost in costs.items()]
    if images > 0:
        columns.append("exaFLOPs")
        rows = [[*row, f"{cost.compute_exaflops(images, epochs):.4g}"] for row, cost in zip(rows, costs.values(), strict=True)]
    print_table(columns, rows)
    if json is not None:
        write_json(json, [describe(name, cost, images, epochs) for name, cost in costs.items()])


def parse_image_size(sides: tuple[int, ...]) -> tuple[int, int]:
    if len(sides) not in (1, 2):
        raise ValueError(f"--image-size takes one number, or height and width; {len(sides)} were given.")
    return sides[0], sides[-1]


def format_row(name: str, cost: Cost) -> list[str]:
    sizes = (
        cost.inference_weight_bytes,
        cost.inference_activation_bytes,
        cost.training_weight_bytes,
        cost.training_activation_bytes,
    )
    return [name, f"{cost.num_parameters:,}", str(cost.num_tokens), f"{cost.macs / 1e9:.4g}", *map(format_bytes, sizes)]


def describe(name: str, cost: Cost, images: float, epochs: float) -> dict[str, Any]:
    exaflops = {"exaflops": cost.compute_exaflops(images, epochs)} if images > 0 else {}
    return {"name": name, **asdict(cost), **exaflops}

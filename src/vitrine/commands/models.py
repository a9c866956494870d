"""`vitrine models`: what each model costs, before anything is built."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from vitrine.core.console import format_bytes, format_figure, parse_image_size, print_table
from vitrine.core.files import write_json
from vitrine.models.cost import Cost, compute_cost
from vitrine.models.registry import MODELS


def models(
    names: Annotated[Positional[tuple[str, ...]], arg(metavar="[NAME ...]")] = (),
    image_size: str = "224",
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
        image_size: Pixels of the side, or height and width as 224x320.
        num_classes: 0 leaves the head out.
        images: Number of training images; adds the exaFLOPs of a training run.
        epochs: How often the run sees each image.
        json: Write the same figures to this file.
    """
    size = parse_image_size(image_size, "--image-size")
    check_run(images, epochs)
    costs = {name: compute_cost(name, size, num_classes=num_classes) for name in names or MODELS}
    columns = ["model", "parameters", "tokens", "GMACs", "inference", "+ per image", "training", "+ per image"]
    rows = [format_row(name, cost) for name, cost in costs.items()]
    if images > 0:
        columns.append("exaFLOPs")
        for row, cost in zip(rows, costs.values(), strict=True):
            row.append(format_figure(cost.compute_exaflops(images, epochs)))
    print_table(columns, rows)
    if json is not None:
        run = {"images": images, "epochs": epochs} if images > 0 else {}
        settings = {"image_size": size, "num_classes": num_classes, **run}
        write_json(json, [cost_to_json(name, cost, settings) for name, cost in costs.items()])


def check_run(images: float, epochs: float) -> None:
    if not (0 <= images < math.inf and 0 < epochs < math.inf):
        raise ValueError(f"--images {images:g} and --epochs {epochs:g} must be above 0: they say what a run trains on.")
    if images == 0 and epochs != 1:
        raise ValueError(f"--epochs {epochs:g} counts only with --images: say how many there are, as --images 1.28e6.")


def format_row(name: str, cost: Cost) -> list[str]:
    sizes = (
        cost.inference_weight_bytes,
        cost.inference_activation_bytes,
        cost.training_weight_bytes,
        cost.training_activation_bytes,
    )
    return [name, f"{cost.num_parameters:,}", str(cost.num_tokens), format_figure(cost.macs / 1e9), *map(format_bytes, sizes)]


def cost_to_json(name: str, cost: Cost, settings: dict[str, Any]) -> dict[str, Any]:
    """A model's figures with what they were computed for."""
    figures = asdict(cost)
    if "images" in settings:
        figures["exaflops"] = cost.compute_exaflops(settings["images"], settings["epochs"])
    return {"name": name, **settings, **figures}

"""`vitrine inspect`: the paper's figures for any checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions, format_percent
from vitrine.core.arguments import format_own_command
from vitrine.core.console import print_error, print_lines, print_table
from vitrine.core.files import make_folder
from vitrine.core.precision import Precision, choose_dtype, computing_in
from vitrine.inspection.config import InspectConfig, RolloutConfig

if TYPE_CHECKING:
    from vitrine.inspection.distance import Distances
    from vitrine.inspection.inspect_model import Inspection


def inspect(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGE|FOLDER ...")],
    out: Path,
    device: str | None = None,
    precision: Precision = "auto",
    *,
    config: Annotated[InspectConfig, arg(name="")],
    rollout: RolloutConfig,
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Predict images; draw attention rollout and maps, attention distance, features, position embeddings and filters.

    The report is OUT/index.html, with the figures beside it and the numbers in numbers.json and arrays.npz. For the model of a
    run of masked patch prediction (RUN/model) it also shows masked images and the predicted patches.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        images: Image files, and folders of images (searched recursively).
        out: Folder for the report.
        device: Device, e.g. cuda (default: GPU if available).
        precision: Precision of products and convolutions (auto: bfloat16 or float16 on NVIDIA GPUs, else float32).
    """
    if not images:
        raise ValueError("vitrine inspect MODEL IMAGE ...: no images given; expected image files or folders.")
    make_folder(out)

    import torch

    from vitrine.core.runtime import choose_device
    from vitrine.inspection.inspect_model import inspect as inspect_model
    from vitrine.inspection.report import load_masked_objective, write_inspection

    device = choose_device(device)
    masked = load_masked_objective(model)
    inspection = inspect_model(checkpoint.load(model), images, config, rollout, device=device, precision=precision)
    with computing_in(choose_dtype(precision, torch.device(device)), torch.device(device)):
        page = write_inspection(inspection, out, model, None if masked is None else masked.to(device), format_own_command())
    if inspection.attention is not None:
        print_distances(inspection.attention.distances)
    print_predictions(inspection)
    for reason in inspection.unreadable.values():
        print_error(reason)
    print_lines(f"Report: {page}")


def print_predictions(inspection: "Inspection") -> None:
    """Print the most likely class of each image, if the model has a head."""
    rows = [(each.image, each.classes[0], format_percent(each.probabilities[0])) for each in inspection.predictions]
    if rows:
        print_lines("")
        print_table(("image", "prediction", "probability"), rows)
        print_lines("")


def print_distances(distances: "Distances") -> None:
    """Print the attention distance of each layer: mean, smallest and largest over its heads."""
    rows = [
        (f"layer {layer}", f"{row.mean():.1f}", f"{row.min():.1f}", f"{row.max():.1f}")
        for layer, row in enumerate(distances.among_patches)
    ]
    print_table((f"attention distance, {distances.num_images} images", "mean of heads, px", "smallest", "largest"), rows)

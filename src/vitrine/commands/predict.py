"""`vitrine predict`: the most likely classes of images."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_error, print_table
from vitrine.core.files import check_output_files, write_csv, write_json
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.evaluation.predictor import ImagePrediction


def predict(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGE|FOLDER ...")],
    top: int = 5,
    json: Path | None = None,
    csv: Path | None = None,
    device: str | None = None,
    batch_size: int = 64,
    num_workers: int | None = None,
    *,
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Print the most likely classes of images with their probabilities.

    Files that cannot be read are listed at the end, and the exit status is then 1.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        images: Image files, and folders of images (searched recursively).
        top: Number of classes per image.
        json: Write predictions and unreadable files to this JSON file.
        csv: Write predictions to this CSV file, one line for each class.
        device: Device, e.g. cuda (default: GPU if available).
        batch_size: Images per batch.
        num_workers: Worker processes that read images (default: one for each CPU, up to 8; none for a few files).
    """
    if not images:
        raise ValueError("vitrine predict MODEL IMAGE ...: no images given; expected image files or folders.")
    if top < 1:
        raise ValueError(f"--top {top} must be at least 1.")
    check_output_files(json, csv)
    inference = InferenceConfig(batch_size=batch_size, num_workers=num_workers)
    loaded = checkpoint.load(model)

    from vitrine.evaluation.predictor import predict as predict_images

    result = predict_images(loaded, images, top, device=device, inference=inference)
    if not result.predictions:
        reason = next(iter(result.unreadable.values()))
        raise ValueError(f"None of the {len(result.unreadable)} files can be read as an image: {reason}")
    if json is not None:
        write_json(json, {"found": [asdict(each) for each in result.predictions], "unreadable": result.unreadable})
    if csv is not None:
        rows = [
            (each.image, rank, name, probability)
            for each in result.predictions
            for rank, (name, probability) in enumerate(zip(each.classes, each.probabilities, strict=True), start=1)
        ]
        write_csv(csv, ("image", "rank", "class", "probability"), rows)
    print_predictions(result.predictions)
    if result.unreadable:
        print_error(f"Could not read {len(result.unreadable)} of {len(result.predictions) + len(result.unreadable)} files:")
        for reason in result.unreadable.values():
            print_error(reason)
        sys.exit(1)


def print_predictions(predictions: "list[ImagePrediction]") -> None:
    """Print a single image's classes as rows, and several images as a table with a row for each."""
    if len(predictions) == 1:
        rows = zip(predictions[0].classes, predictions[0].probabilities, strict=True)
        print_table((predictions[0].image, ""), ((name, f"{probability:.1%}") for name, probability in rows))
        return
    columns = ("image", *(f"{rank}." for rank in range(1, 1 + len(predictions[0].classes))))
    table = []
    for each in predictions:
        classes = zip(each.classes, each.probabilities, strict=True)
        table.append((each.image, *(f"{name} {probability:.1%}" for name, probability in classes)))
    print_table(columns, table)

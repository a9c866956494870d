"""`vitrine predict`: what a classifier sees in images."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_error, print_table
from vitrine.core.files import check_output_file, write_csv, write_json
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
    """The most likely classes of images, with their probabilities. A file that cannot be read does not stop the rest.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        images: Image files, and folders of them at any depth.
        top: How many classes to name for each image.
        json: Write the answers to this file, with their probabilities and the files that could not be read.
        csv: Write them to this file, one line for each answer.
        device: Where to compute, as cuda; a GPU where there is one, if you do not say.
        batch_size: Images that are computed at once.
        num_workers: Processes that read images; as many as there are processors, up to 8, if you do not say.
    """
    if not images:
        raise ValueError("vitrine predict MODEL IMAGE ..: no image was given, and files or folders of them were needed.")
    if top < 1:
        raise ValueError(f"--top {top} must be at least 1.")
    for path in (json, csv):
        if path is not None:
            check_output_file(path)
    few = len(images) < 8 and not any(path.is_dir() for path in images)  # then starting processes takes longer than reading
    workers = 0 if few and num_workers is None else num_workers
    reading = InferenceConfig(batch_size=batch_size, num_workers=workers, bad_images="skip")

    from vitrine.core.runtime import choose_device
    from vitrine.evaluation.predictor import predict_files

    predictions = predict_files(checkpoint.load(model), images, top, reading, choose_device(device))
    if not predictions.found:
        first = next(iter(predictions.unreadable.values()))
        raise ValueError(f"None of the files ({len(predictions.unreadable)}) is an image that can be read: {first}")
    if json is not None:
        write_json(json, asdict(predictions))
    if csv is not None:
        write_csv(csv, ("image", "rank", "class", "probability"), list_answers(predictions.found))
    print_predictions(predictions.found)
    if predictions.unreadable:
        print_error(f"Not read, of {len(predictions.found) + len(predictions.unreadable)} files:")
        for reason in predictions.unreadable.values():
            print_error(reason)


def print_predictions(found: "list[ImagePrediction]") -> None:
    """One image downwards, several as a table."""
    if len(found) == 1:
        rows = zip(found[0].classes, found[0].probabilities, strict=True)
        print_table((found[0].image, ""), ((name, f"{probability:.1%}") for name, probability in rows))
        return
    columns = ("image", *(f"{rank}." for rank in range(1, 1 + len(found[0].classes))))
    print_table(columns, ((each.image, *format_answers(each)) for each in found))


def format_answers(prediction: "ImagePrediction") -> list[str]:
    return [f"{name} {share:.1%}" for name, share in zip(prediction.classes, prediction.probabilities, strict=True)]


def list_answers(found: "list[ImagePrediction]") -> Iterator[tuple[str, int, str, float]]:
    for each in found:
        for rank, (name, probability) in enumerate(zip(each.classes, each.probabilities, strict=True), start=1):
            yield each.image, rank, name, probability

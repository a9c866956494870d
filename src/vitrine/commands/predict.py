"""`vitrine predict`: the most likely classes of images."""

import csv as csv_format
import json as json_format
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_error, print_table
from vitrine.core.files import check_output_files, open_atomic_text
from vitrine.core.precision import Precision
from vitrine.evaluation.config import InferenceConfig

if TYPE_CHECKING:
    from vitrine.evaluation.predictor import ImagePrediction

Write = Callable[["ImagePrediction"], None]
Answer = Literal["is_unsure", "labels"]
"""Field of a prediction that is shown besides the classes, where the model has a limit for sure answers or thresholds."""

ANSWER_COLUMNS: dict[Answer | None, tuple[str, ...]] = {None: (), "is_unsure": ("",), "labels": ("labels",)}  # of the table
LABEL_SEPARATOR = ";"  # in a cell of a CSV file
ROWS_AT_ONCE = 1000  # of the printed table; columns are as wide as these rows need


def predict(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    images: Annotated[Positional[tuple[Path, ...]], arg(metavar="IMAGE|FOLDER ...")],
    top: int = 5,
    reject_below: float | None = None,
    json: Path | None = None,
    csv: Path | None = None,
    long: bool = False,
    device: str | None = None,
    batch_size: int = 64,
    num_workers: int | None = None,
    precision: Precision = "auto",
    *,
    checkpoint: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Print the most likely classes of images with their probabilities.

    A model for several labels per image gives the probability of each label by itself, and marks those above its thresholds.
    Files that cannot be read are listed at the end, and the exit status is then 1.

    Args:
        model: Checkpoint folder or file in any known format, or hf://org/name[@revision].
        images: Image files, folders of images (searched recursively), patterns in quotes, or - for names from standard input.
        top: Number of classes per image; labels of a model for several are all listed.
        reject_below: Probability of the first class below which the answer is "unsure" (default: the model's own; 0: never).
        json: Write predictions and unreadable files to this JSON file.
        csv: Write predictions to this CSV file, one line for each image.
        long: Write one line for each class of each image to the CSV file instead.
        device: Device, e.g. cuda (default: GPU if available).
        batch_size: Images per batch.
        num_workers: Worker processes that read images (default: one for each CPU, up to 32; none for a few files).
        precision: Precision of products and convolutions (auto: bfloat16 or float16 on NVIDIA GPUs, else float32).
    """
    if not images:
        raise ValueError("vitrine predict MODEL IMAGE ...: no images given; expected image files or folders.")
    if top < 1:
        raise ValueError(f"--top {top} must be at least 1.")
    if long and csv is None:
        raise ValueError("--long has no effect without --csv: leave it out, or add --csv FILE.")
    check_output_files(json, csv)
    inference = InferenceConfig(batch_size=batch_size, num_workers=num_workers, precision=precision)

    from vitrine.data.sources.image_files import expand_paths

    paths = expand_paths(images, sys.stdin)
    if not paths:
        raise ValueError("vitrine predict MODEL -: standard input has no file names; expected one per line.")
    loaded = checkpoint.load(model)

    from vitrine.evaluation.predictor import Predictor

    predictor = Predictor(loaded, device, inference)
    source, predictor.inference = predictor.open_images(paths)
    # On a terminal, the rows of a long table show the progress themselves.
    predictor.show_progress = len(source) <= ROWS_AT_ONCE or not sys.stdout.isatty()
    limit = predictor.resolve_rejection(reject_below)
    answer: Answer | None = "labels" if predictor.engine.calibration.has_several_labels else "is_unsure" if limit > 0 else None
    num_columns = min(top, len(predictor.class_names))
    unreadable: dict[str, str] = {}
    with ExitStack() as stack:  # if something fails, no file is left behind
        outputs = [stack.enter_context(open_table(len(source), num_columns, answer))]
        if json is not None:
            outputs.append(stack.enter_context(open_json(json, unreadable, answer)))
        if csv is not None:
            outputs.append(stack.enter_context(open_csv(csv, num_columns, long, answer)))
        num_found = 0
        for part in predictor.predict_stream(source, top, reject_below):
            unreadable.update(part.unreadable)
            for prediction in part.predictions:
                num_found += 1
                for write in outputs:
                    write(prediction)
        if num_found == 0:
            reason = next(iter(unreadable.values()))
            raise ValueError(f"None of the {len(unreadable)} files can be read as an image: {reason}")
    if unreadable:
        print_error(f"Could not read {len(unreadable)} of {len(source)} files:")
        for reason in unreadable.values():
            print_error(reason)
        sys.exit(1)


@contextmanager
def open_table(num_images: int, top: int, answer: Answer | None) -> Iterator[Write]:
    """Print the classes of a single image as rows, and several images as a table with a row for each, in parts."""
    rows: list[tuple[str, ...]] = []
    columns = ("image", *ANSWER_COLUMNS[answer], *(f"{rank}." for rank in range(1, 1 + top)))

    def write(prediction: "ImagePrediction") -> None:
        classes = [(name, f"{value:.1%}") for name, value in zip(prediction.classes, prediction.probabilities, strict=True)]
        if num_images == 1:
            if prediction.is_label is None:
                print_table((prediction.image, "unsure" if prediction.is_unsure else ""), classes)
            else:
                marks = ("label" if is_label else "" for is_label in prediction.is_label)
                print_table((prediction.image, "", ""), ((*each, mark) for each, mark in zip(classes, marks, strict=True)))
            return
        answers = () if answer is None else (describe_answer(prediction),)
        rows.append((prediction.image, *answers, *(" ".join(each) for each in classes[:top])))
        if len(rows) == ROWS_AT_ONCE:
            print_table(columns, rows)
            rows.clear()

    yield write
    if rows:
        print_table(columns, rows)


def describe_answer(prediction: "ImagePrediction") -> str:
    """Return the labels of an image, or whether its answer is unsure, for the table."""
    if prediction.labels is not None:
        return ", ".join(prediction.labels) or "none"
    return "unsure" if prediction.is_unsure else ""


@contextmanager
def open_json(path: Path, unreadable: dict[str, str], answer: Answer | None) -> Iterator[Write]:
    """Write predictions to a JSON file one by one, and the unreadable files at its end."""
    separator = "\n"
    names = ("image", "classes", "probabilities", *(() if answer is None else (answer,)))

    def write(prediction: "ImagePrediction") -> None:
        nonlocal separator
        content = {name: getattr(prediction, name) for name in names}
        file.write(f"{separator}    {json_format.dumps(content, allow_nan=False)}")
        separator = ",\n"

    with open_atomic_text(path) as file:
        file.write('{\n  "found": [')
        yield write
        file.write(f'\n  ],\n  "unreadable": {json_format.dumps(unreadable)}\n}}\n')


@contextmanager
def open_csv(path: Path, top: int, is_long: bool, answer: Answer | None) -> Iterator[Write]:
    """Write predictions to a CSV file one by one: a row for each image, or for each class of each image.

    The answer is the last column. In a row for each image, its labels are in one cell, as in lists of images.
    """

    def write(prediction: "ImagePrediction") -> None:
        classes = list(zip(prediction.classes, prediction.probabilities, strict=True))
        if is_long:
            marks = prediction.is_label or [prediction.is_unsure] * len(classes)
            for rank, (each, mark) in enumerate(zip(classes, marks, strict=True), start=1):
                writer.writerow((prediction.image, rank, *each, str(mark).lower())[: len(columns)])
        else:
            cells = (cell for each in classes[:top] for cell in each)
            labels = prediction.labels
            mark = str(prediction.is_unsure).lower() if labels is None else LABEL_SEPARATOR.join(labels)
            writer.writerow((prediction.image, *cells, mark)[: len(columns)])

    ranks = (column for rank in range(1, 1 + top) for column in (f"class_{rank}", f"probability_{rank}"))
    columns = ("image", "rank", "class", "probability") if is_long else ("image", *ranks)
    if answer is not None:
        columns += ("is_label" if is_long and answer == "labels" else answer,)
    with open_atomic_text(path) as file:
        writer = csv_format.writer(file)
        writer.writerow(columns)
        yield write

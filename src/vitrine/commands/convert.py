"""`vitrine convert`: a checkpoint from one format to another, and the proof that it is the same."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_table
from vitrine.core.files import require_folder_of, write_json
from vitrine.formats.config import FormatName
from vitrine.models.config import ResizeMethod

if TYPE_CHECKING:
    from torch import Tensor

    from vitrine.formats.checkpoint import Checkpoint
    from vitrine.formats.verify import Comparison

NUM_IMAGES = 8


def convert(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    out: Annotated[Positional[Path], arg(metavar="OUT")],
    format: FormatName,
    num_classes: int | None = None,
    resize_method: ResizeMethod = "paper",
    overwrite: bool = False,
    verify: bool = False,
    images: tuple[Path, ...] = (),
    seed: int = 0,
    device: str = "cpu",
    json: Path | None = None,
    *,
    read: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Write a checkpoint in another format.

    Formats: vitrine and hf are folders; google-2020, google-linen, big-vision and bit are .npz files; timm and torchvision
    .safetensors or .pth. What a format cannot hold lies beside it, so that reading it back gives the same model.

    Args:
        model: A folder or file in any known format, or hf://org/name[@revision].
        out: The folder or file to write.
        format: The format to write.
        num_classes: A new head of zeros for so many classes, if they are not as many; 0 leaves the head out.
        resize_method: How positions are resized: as the paper's code, as timm, or as Hugging Face.
        overwrite: Replace what is at OUT.
        verify: Read it back, run both on the same images and compare; with transformers on its own format, too.
        images: Image files to verify with, instead of eight drawn ones.
        seed: Of the drawn images.
        device: Where to run the models for --verify, as cuda.
        json: Write the comparison to this file.
    """
    if not verify and (images or json is not None or seed != 0 or device != "cpu"):
        raise ValueError("--images, --seed, --device and --json belong to --verify: add it, or leave them out.")
    if read.image_size is None and resize_method != "paper":
        raise ValueError(f"--resize-method {resize_method} belongs to --image-size: say to which size, or leave it out.")
    if not overwrite and (out.exists() or out.is_symlink()):
        raise FileExistsError(f"{out} exists: choose another name, or add --overwrite.")
    facts, size, names = read.facts, read.size, read.names
    check_places(out, images, json)

    from vitrine.core.runtime import require_device
    from vitrine.formats.load import load_checkpoint
    from vitrine.formats.save import require_path, save_checkpoint

    require_path(format, out)
    require_device(device)
    checkpoint = load_checkpoint(model, num_classes, size, facts=facts, resize_method=resize_method)
    checkpoint = checkpoint if names is None else replace(checkpoint, class_names=names)
    shown = read_images(checkpoint, images, seed) if verify else None  # a bad image is found before anything is written
    save_checkpoint(checkpoint, out, format)
    print(f"{out}: {describe_checkpoint(checkpoint)}, {format}")
    if shown is not None:
        report(checkpoint, out, shown, device, json)


def check_places(out: Path, images: tuple[Path, ...], json: Path | None) -> None:
    """Before anything is loaded, which can take minutes."""
    for path in (out, *([] if json is None else [json])):
        require_folder_of(path)
    for path in images:
        if not path.is_file():
            raise FileNotFoundError(f"--images {path} is no file: give the files of images to verify with.")


def describe_checkpoint(checkpoint: "Checkpoint") -> str:
    config = checkpoint.model.config
    num_parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    height, width = config.image_size
    return f"{num_parameters:,} parameters, {height} x {width} pixels, {config.num_classes} classes"


def read_images(checkpoint: "Checkpoint", paths: tuple[Path, ...], seed: int) -> "Tensor":
    from torch import stack

    from vitrine.formats.verify import draw_images

    if not paths:
        return draw_images(checkpoint, NUM_IMAGES, seed)
    return stack([checkpoint.preprocessing.load(path) for path in paths])


def report(checkpoint: "Checkpoint", out: Path, images: "Tensor", device: str, json: Path | None) -> None:
    from vitrine.formats.verify import TOLERANCE, verify_checkpoint

    comparisons = verify_checkpoint(checkpoint, out, images, device)
    columns = ("read by", "largest difference of logits", "of features", "largest logit", "same answer", "")
    print_table(columns, map(format_row, comparisons))
    if json is not None:
        write_json(json, [describe_comparison(comparison) for comparison in comparisons])
    different = [comparison.reader for comparison in comparisons if not comparison.is_equal]
    if different:
        raise ValueError(
            f"{out} is not the same as read by {' and '.join(different)}: logits or features differ by more than {TOLERANCE:g} "
            "of the largest, or preprocessing or class names differ; what was written was left for you to look at."
        )


def format_row(comparison: "Comparison") -> list[str]:
    return [
        comparison.reader,
        f"{comparison.max_difference:.2g}",
        f"{comparison.max_feature_difference:.2g}",
        f"{comparison.max_logit:.4g}",
        f"{comparison.same_answers} of {comparison.num_images}",
        "equal" if comparison.is_equal else "DIFFERENT",
    ]


def describe_comparison(comparison: "Comparison") -> dict[str, Any]:
    return {**asdict(comparison), "is_equal": comparison.is_equal}

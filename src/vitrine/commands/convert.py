"""`vitrine convert`: write a checkpoint in another format, and verify it."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from vitrine.commands.options import CheckpointOptions
from vitrine.core.console import print_lines, print_table
from vitrine.core.files import check_output_files, write_json
from vitrine.formats.config import FormatName
from vitrine.models.config import ResizeMethod

if TYPE_CHECKING:
    from vitrine.formats.verify import Comparison

COLUMNS = ("read by", "max logit difference", "max feature difference", "max logit", "same top-1", "")


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
    options: Annotated[CheckpointOptions, arg(name="")],
) -> None:
    """Write a checkpoint in another format.

    vitrine and hf are folders; google-2020, google-linen, big-vision and bit are .npz files; timm and torchvision are
    .safetensors or .pth files. What a format cannot hold is written beside it, so that reading it back gives the same model.

    Args:
        model: Folder or file in any known format, or hf://org/name[@revision].
        out: Folder or file to write.
        format: Format to write.
        num_classes: Replace the head by one of zeros for this many classes; 0 removes it.
        resize_method: Resampling of position embeddings: the paper's, timm's or Hugging Face's.
        overwrite: Replace OUT if it exists.
        verify: Read OUT back and compare logits and features (for hf, with transformers too).
        images: Image files to verify with (default: eight random images).
        seed: Random seed of the images.
        device: Device to verify on, e.g. cuda.
        json: Write the comparison to this file.
    """
    if json is not None and not verify:
        raise ValueError("--json applies only with --verify: add it, or leave this out.")
    check_output_files(json)
    overrides, size, names = options.overrides, options.size, options.names

    from vitrine.formats.convert import convert as convert_checkpoint
    from vitrine.formats.verify import TOLERANCE

    result = convert_checkpoint(
        model,
        out,
        format,
        num_classes=num_classes,
        image_size=size,
        resize_method=resize_method,
        overrides=overrides,
        class_names=names,
        overwrite=overwrite,
        verify=verify,
        images=images,
        seed=seed,
        device=device,
    )
    height, width = result.config.image_size
    print_lines(
        f"{out}: {result.num_parameters:,} parameters, {height} x {width} pixels, {result.config.num_classes} classes, {format}"
    )
    if verify:
        print_table(COLUMNS, map(format_comparison, result.comparisons))
    if json is not None:
        write_json(json, [{**asdict(comparison), "is_equal": comparison.is_equal} for comparison in result.comparisons])
    if result.different_readers:
        raise ValueError(
            f"{out} differs from its source when read by {' and '.join(result.different_readers)}: logits or features by more "
            f"than {TOLERANCE:g} of the largest, or preprocessing or class names. The output was kept."
        )


def format_comparison(comparison: "Comparison") -> list[str]:
    """Return the table row of one comparison."""
    return [
        comparison.reader,
        f"{comparison.max_difference:.2g}",
        f"{comparison.max_feature_difference:.2g}",
        f"{comparison.max_logit:.4g}",
        f"{comparison.same_answers} of {comparison.num_images}",
        "equal" if comparison.is_equal else "DIFFERENT",
    ]

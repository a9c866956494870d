"""convert: write a checkpoint in another format, and verify on request that it is the same network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitrine.core.console import name_setting
from vitrine.core.files import check_parent_folder
from vitrine.core.runtime import check_device
from vitrine.formats.checkpoint import Checkpoint
from vitrine.formats.config import FormatName, Overrides
from vitrine.formats.load import load_checkpoint, replace_class_names
from vitrine.formats.save import check_format_path, save_checkpoint
from vitrine.formats.verify import Comparison, draw_images, verify_checkpoint
from vitrine.models.config import ModelConfig, ResizeMethod

NUM_IMAGES = 8


@dataclass(frozen=True)
class ConvertResult:
    """The model that was written, and how it compares with its source."""

    path: Path
    format: FormatName
    config: ModelConfig
    num_parameters: int
    comparisons: tuple[Comparison, ...]
    """One for each program that read it back; empty without verification."""

    @property
    def different_readers(self) -> list[str]:
        """Programs that compute something else with the written model."""
        return [comparison.reader for comparison in self.comparisons if not comparison.is_equal]


def convert(
    model: str | Path | Checkpoint,
    out: str | Path,
    format: FormatName,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    resize_method: ResizeMethod = "paper",
    overrides: Overrides | None = None,
    class_names: tuple[str, ...] | None = None,
    overwrite: bool = False,
    verify: bool = False,
    images: Sequence[str | Path] = (),
    seed: int = 0,
    device: str = "cpu",
) -> ConvertResult:
    """Write a checkpoint in another format.

    The first options are those of `load_checkpoint`. `verify` reads the result back, runs both models on the same images
    (`images`, or eight drawn with `seed`) and compares them, with transformers too for its own format. A difference is not an
    error here: see `ConvertResult.different_readers`.
    """
    out = Path(out)
    check_arguments(out, format, overwrite, verify, images, seed, device)
    if image_size is None and resize_method != "paper":
        given = name_setting("resize_method", resize_method)
        raise ValueError(f"{given} applies only with {name_setting('image_size')}: add it, or leave this out.")
    checkpoint = load_checkpoint(model, num_classes, image_size, overrides=overrides, resize_method=resize_method)
    checkpoint = replace_class_names(checkpoint, class_names)
    shown = read_images(checkpoint, images, seed) if verify else None  # a bad image fails before anything is written
    save_checkpoint(checkpoint, out, format)
    comparisons = () if shown is None else tuple(verify_checkpoint(checkpoint, out, shown, device))
    num_parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    return ConvertResult(out, format, checkpoint.model.config, num_parameters, comparisons)


def check_arguments(
    out: Path, format: FormatName, overwrite: bool, verify: bool, images: Sequence[str | Path], seed: int, device: str
) -> None:
    """Raise an error for bad paths and contradicting options before the model is loaded, which can take minutes."""
    if not verify and (images or seed != 0 or device != "cpu"):
        names = " and ".join(map(name_setting, ("images", "seed", "device")))
        raise ValueError(f"{names} apply only with {name_setting('verify')}: add it, or leave them out.")
    if not overwrite and (out.exists() or out.is_symlink()):
        raise FileExistsError(f"{out} exists: choose another name, or add {name_setting('overwrite')}.")
    check_parent_folder(out)
    check_format_path(format, out)
    for path in images:
        if not Path(path).is_file():
            raise FileNotFoundError(f"{name_setting('images', str(path))} is not a file: give the image files to verify with.")
    check_device(device)


def read_images(checkpoint: Checkpoint, paths: Sequence[str | Path], seed: int) -> Tensor:
    """Read the images to verify with as bytes (B, C, H, W), or draw some."""
    if not paths:
        return draw_images(checkpoint, NUM_IMAGES, seed)
    return torch.stack([checkpoint.preprocessing.load(Path(path)) for path in paths])

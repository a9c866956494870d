"""What a run reads and what it does to images, as frozen dataclasses. No torch here."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitrine.core.config_checks import require_at_least, require_field_types

BadImages = Literal["error", "skip"]
CropKind = Literal["inception", "random", "pad", "none"]
LastBatch = Literal["wrap", "drop", "keep"]
TrainInterpolation = Literal["bilinear", "bicubic"]
EraseFill = Literal["noise", "grey"]


# Of a subset. What has neither a point nor a percent sign counts images: 1 is one of them, 1.0 is all.
COUNT = re.compile(r"[0-9]{1,15}")
SHARE = re.compile(r"[0-9]{1,15}%|[0-9]{0,15}\.[0-9]{1,30}%?|[0-9](\.[0-9]{1,30})?e-[0-9]{1,3}%?")

MAX_MAGNITUDE = 100.0  # of RandAugment, whose scale ends at 10; released models went to 20


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images."""

    source: str = "shapes"
    """A folder, file, hf://datasets/org/name, or a built-in name."""
    split: str | None = None
    """As train; None: train where the data is divided, all of it where it is not."""
    subset: str = "all"
    """As 10%, 0.1, 500, and of each class 10%/class or 5/class. Smaller subsets lie within larger ones."""
    subset_seed: int = 0
    """Another one gives another subset."""
    exclude: Path | None = None
    """A text file with one name per line, as `vitrine data check` writes: images to leave out."""
    held_out: float = 0.0
    """Share that is kept out of training, to choose settings on."""
    bad_images: BadImages = "error"
    """What to do with an image that cannot be read: stop and name it, or go on without it and count it."""
    in_memory: bool = False
    """Decode once and hold the pixels in memory; for images of one small size."""

    def __post_init__(self) -> None:
        require_field_types(self)
        Subset.parse(self.subset)
        if not isinstance(self.exclude, Path | None):
            raise ValueError(f"exclude={self.exclude!r} must be a Path, to a text file of names.")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be at least 0 and below 1, as 0.1 for a tenth.")


@dataclass(frozen=True)
class Subset:
    """Some of the images: a share or a number, of all or of each class."""

    amount: float | int
    """A float is a share, above 0 and at most 1; an int a number of images."""
    per_class: bool

    @classmethod
    def parse(cls, text: str) -> "Subset":
        if not isinstance(text, str):
            raise ValueError(f"subset={text!r} must be text, as '10%' or '500': put it in quotes.")
        number, slash, of = text.strip().partition("/")
        if number == "all" and not slash:
            return cls(1.0, False)
        amount = parse_amount(number)
        if amount is None or (slash and of != "class"):
            raise ValueError(
                f"subset={text!r} must be a share, as 10% or 0.1, or a number of images, as 500, with /class behind it for so "
                "many of each class, or all."
            )
        return cls(amount, bool(slash))


def parse_amount(text: str) -> float | int | None:
    """10%, 0.1 and 1e-3 are shares, 500 is a number; None: neither."""
    if COUNT.fullmatch(text):
        return int(text) or None
    if not SHARE.fullmatch(text):
        return None
    share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return share if 0 < share <= 1 else None


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What is done to training images. The size they get comes with the model."""

    crop: CropKind = "inception"
    """A random part of random shape (inception), resized; the image resized to a square, and a random part of that (random);
    the image at its size, moved by up to `padding` pixels (pad); as in evaluation (none)."""
    crop_area: tuple[float, float] = (0.05, 1.0)
    """Least and largest share of the image in an inception crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and largest width by height of it."""
    resize: int | None = None
    """Side of the square before a random crop; None: 8/7 of the size, as 256 for 224."""
    padding: int = 4
    """Black pixels around the image before a pad crop."""
    interpolation: TrainInterpolation = "bilinear"
    flip: bool = True
    """Left and right swapped in half of the images."""
    rand_augment_ops: int = 0
    """How many operations of RandAugment each image gets; 0: none."""
    rand_augment_magnitude: float = 10.0
    """Strength of each, of 10; released models had up to 20."""
    erase_rate: float = 0.0
    """Share of images with a random rectangle erased."""
    erase_fill: EraseFill = "noise"

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "padding", "rand_augment_ops")
        if not is_range(self.crop_area) or self.crop_area[1] > 1:
            raise ValueError(f"crop_area={self.crop_area!r} must be two shares, the smaller first, above 0 and at most 1.")
        if not is_range(self.crop_ratio):
            raise ValueError(f"crop_ratio={self.crop_ratio!r} must be two numbers above 0, the smaller first.")
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize={self.resize} must be at least 1.")
        if self.resize is not None and self.crop != "random":
            raise ValueError(f"resize={self.resize} belongs to crop='random', and crop is {self.crop!r}: leave it out.")
        if not 0 <= self.rand_augment_magnitude <= MAX_MAGNITUDE:
            raise ValueError(f"rand_augment_magnitude={self.rand_augment_magnitude} must be between 0 and {MAX_MAGNITUDE:g}.")
        if not 0 <= self.erase_rate <= 1:
            raise ValueError(f"erase_rate={self.erase_rate} must be between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """How images become batches."""

    batch_size: int = 256
    """Of all processes together."""
    last: LastBatch = "wrap"
    """A last batch that is not full goes on into the next epoch (wrap), is left out (drop) or stays small (keep)."""
    num_workers: int | None = None
    """Processes that read images; None: none for images in memory, else one for each processor, up to 8."""
    prefetch: int = 2
    """Batches that each of them makes ahead."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "batch_size", "prefetch")
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} must be at least 0.")


def is_range(values: object) -> bool:
    return (
        isinstance(values, tuple)
        and len(values) == 2
        and all(isinstance(value, int | float) for value in values)
        and 0 < values[0] <= values[1] < 1e9
    )

"""Configs of the data: DataConfig, AugmentConfig, MixupConfig, LoaderConfig. No torch here."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive

BadImages = Literal["error", "skip"]
TrainBadImages = Literal["error", "skip-few", "skip"]
ChangedData = Literal["refuse", "accept"]
CropKind = Literal["inception", "random", "pad", "none"]
LastBatch = Literal["wrap", "drop", "keep"]
TrainInterpolation = Literal["bilinear", "bicubic"]
EraseFill = Literal["noise", "grey"]

# Amounts of a subset. Without a point or a percent sign it is a number of images: 1 is one image, 1.0 is all of them.
COUNT = re.compile(r"[0-9]{1,15}")
FRACTION = re.compile(r"[0-9]{1,15}%|[0-9]{0,15}\.[0-9]{1,30}%?|[0-9](\.[0-9]{1,30})?e-[0-9]{1,3}%?")

MAX_MAGNITUDE = 100.0  # RandAugment's scale ends at 10; released models went up to 20

# NumPy's Beta distribution breaks down outside these bounds, which lie far beyond useful values.
MIN_ALPHA, MAX_ALPHA = 1e-3, 1e3


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Training images."""

    COMMON: ClassVar[tuple[str, ...]] = ("source", "subset", "exclude", "held_out", "bad_images")
    source: str = "shapes"
    """Folder, file, hf://datasets/org/name, or built-in dataset."""
    split: str | None = None
    """Split to train on, e.g. train (default: train if the data has splits, else all images)."""
    subset: str = "all"
    """Subset, e.g. 10%, 0.1 or 500; 10%/class or 5/class for each class. Smaller subsets lie within larger ones."""
    subset_seed: int = 0
    """Random seed of the subset."""
    exclude: Path | None = None
    """Text file with one image name per line to leave out, e.g. written by `vitrine data check`."""
    held_out: float = 0.0
    """Fraction of the images held out of training, to choose settings on."""
    bad_images: TrainBadImages = "skip-few"
    """Images that cannot be read: stop with an error, skip and count them unless they are many (skip-few: up to three
    training images or 1 %), or skip any number."""
    in_memory: bool = False
    """Decode once and keep the pixels in memory; for small images of one size."""
    changed: ChangedData = "refuse"
    """Resuming a run whose images have changed since: stop with an error, or accept them if the classes are the same."""

    def __post_init__(self) -> None:
        require_field_types(self)
        Subset.parse(self.subset)
        if not isinstance(self.exclude, Path | None):
            raise ValueError(f"exclude={self.exclude!r} must be the Path of a text file of image names.")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out={self.held_out} must be at least 0 and below 1, e.g. 0.1 for a tenth.")


@dataclass(frozen=True)
class Subset:
    """Parsed `DataConfig.subset`: a fraction or a number of images, of the whole or of each class."""

    amount: float | int
    """A float is a fraction, above 0 and at most 1; an int is a number of images."""
    per_class: bool

    @classmethod
    def parse(cls, text: str) -> "Subset":
        """Parse e.g. 10%, 0.1, 500, 5/class or all."""
        if not isinstance(text, str):
            raise ValueError(f"subset={text!r} must be text, e.g. '10%' or '500': put it in quotes.")
        number, slash, unit = text.strip().partition("/")
        if number == "all" and not slash:
            return cls(1.0, False)
        amount = parse_amount(number)
        if amount is None or (slash and unit != "class"):
            raise ValueError(
                f"subset={text!r} must be e.g. all, 10%, 0.1, 500 (images), or 10%/class or 5/class for each class."
            )
        return cls(amount, bool(slash))


def parse_amount(text: str) -> float | int | None:
    """Parse 10%, 0.1 or 1e-3 as a fraction and 500 as a number of images; None if the text is neither."""
    if COUNT.fullmatch(text):
        return int(text) or None
    if not FRACTION.fullmatch(text):
        return None
    fraction = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return fraction if 0 < fraction <= 1 else None


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Augmentation of training images. Their final size comes from the model."""

    COMMON: ClassVar[tuple[str, ...]] = ("crop", "crop_area", "flip")
    crop: CropKind = "inception"
    """Crop: random area and aspect ratio, resized (inception); resize to a square, then a random window (random); pad by
    `padding` pixels, then a random window (pad); centre crop as in evaluation (none)."""
    crop_area: tuple[float, float] = (0.05, 1.0)
    """Smallest and largest fraction of the image's area in an inception crop."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest aspect ratio (width / height) of an inception crop."""
    resize: int | None = None
    """Side of the square before a random crop; if unset, 8/7 of the image size, e.g. 256 for 224."""
    padding: int = 4
    """Black pixels on each side before a pad crop."""
    interpolation: TrainInterpolation = "bilinear"
    """Interpolation when resizing."""
    flip: bool = True
    """Flip half of the images left to right."""
    rand_augment_ops: int = 0
    """Number of RandAugment operations per image; 0: off."""
    rand_augment_magnitude: float = 10.0
    """Magnitude of the RandAugment operations, on a scale of 10; released models used up to 20."""
    erase_rate: float = 0.0
    """Fraction of images with a random rectangle erased."""
    erase_fill: EraseFill = "noise"
    """Content of erased rectangles."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "padding", "rand_augment_ops")
        if not is_range(self.crop_area) or self.crop_area[1] > 1:
            raise ValueError(f"crop_area={self.crop_area!r} must be two fractions, the smaller first, above 0 and at most 1.")
        if not is_range(self.crop_ratio):
            raise ValueError(f"crop_ratio={self.crop_ratio!r} must be two numbers above 0, the smaller first.")
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"resize={self.resize} must be at least 1.")
        if not 0 <= self.rand_augment_magnitude <= MAX_MAGNITUDE:
            raise ValueError(f"rand_augment_magnitude={self.rand_augment_magnitude} must be between 0 and {MAX_MAGNITUDE:g}.")
        if not 0 <= self.erase_rate <= 1:
            raise ValueError(f"erase_rate={self.erase_rate} must be between 0 and 1.")


@dataclass(frozen=True, kw_only=True)
class MixupConfig:
    """Mixup and CutMix of training batches. With both on, each batch gets one of them, with equal probability."""

    mixup: float = 0.0
    """Alpha of mixup's Beta distribution; 0: off."""
    cutmix: float = 0.0
    """Alpha of CutMix's Beta distribution; 0: off."""

    def __post_init__(self) -> None:
        require_field_types(self)
        for name, alpha in (("mixup", self.mixup), ("cutmix", self.cutmix)):
            if alpha != 0 and not MIN_ALPHA <= alpha <= MAX_ALPHA:
                raise ValueError(f"{name}={alpha} must be 0 (off) or between {MIN_ALPHA} and {MAX_ALPHA:g}, e.g. 0.2.")

    @property
    def is_on(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Batches and the processes that load them."""

    COMMON: ClassVar[tuple[str, ...]] = ("batch_size", "num_workers")
    batch_size: int = 256
    """Global batch size, over all processes."""
    last: LastBatch = "wrap"
    """Incomplete last batch of an epoch: fill it from the next epoch (wrap), drop it, or keep it small."""
    num_workers: int | None = None
    """Worker processes that load images (default: 0 for images in memory, else one per CPU, at most 32)."""
    prefetch: int = 2
    """Batches that each worker prepares ahead."""
    stuck_after_s: float = 60.0
    """Seconds without a batch after which the state of the workers is reported."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "batch_size", "prefetch")
        require_positive(self, "stuck_after_s")
        if self.num_workers is not None and self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} must be at least 0.")


def is_range(values: object) -> bool:
    """Return whether a value is a tuple of two positive numbers, the smaller first."""
    return (
        isinstance(values, tuple)
        and len(values) == 2
        and all(isinstance(value, int | float) for value in values)
        and 0 < values[0] <= values[1] < 1e9
    )

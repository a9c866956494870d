"""FitConfig: the settings of `vitrine fit`. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_at_least, require_field_types
from vitrine.core.precision import Precision
from vitrine.data.config import ChangedData

Balance = Literal["auto", "on", "off"]
FramingChoice = Literal["auto", "crop", "letterbox", "squash"]

MAX_MINUTES = 60 * 24 * 30


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of a fit that do not depend on its data."""

    minutes: float = 5.0
    """Time for everything, from start to report; 0: the first model, however long it takes."""
    balance: Balance = "auto"
    """Weigh classes equally although they have different numbers of images (auto: try it where numbers differ much)."""
    framing: FramingChoice = "auto"
    """What the model sees of images that are not square: their centre (crop), all of them between bars (letterbox), or all of
    them at another aspect ratio (squash); auto: whichever is best in cross-validation."""
    image_size: int | None = None
    """Side of the model's input in pixels (default: the model's own)."""
    changed: ChangedData = "refuse"
    """Images that have changed since the fit in the folder: stop with an error, or accept them if the classes are the same."""
    seed: int = 0
    """Random seed."""
    device: str | None = None
    """Device, e.g. cuda (default: GPU if available)."""
    precision: Precision = "auto"
    """Precision of products and convolutions (auto: bfloat16 or float16 on NVIDIA GPUs, else float32)."""
    num_workers: int | None = None
    """Worker processes that read images (default: one for each CPU, up to 32)."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "minutes", "seed", "num_workers")
        require_at_least(self, 1, "image_size")
        if self.minutes > MAX_MINUTES:
            raise ValueError(f"minutes={self.minutes:g} must be at most {MAX_MINUTES:,}, i.e. 30 days.")

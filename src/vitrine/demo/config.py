"""DemoConfig: the settings of `vitrine demo`. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.core.config_checks import require_at_least, require_field_types
from vitrine.data.config import Subset

DIGITS = "digits"


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Settings of `run_demo`: data, checkpoint and lengths, which are those of the recipes by default."""

    out: Path = Path("demo")
    """Folder of the report, with a folder for each run."""
    data: str = DIGITS
    """Data to transfer to: the built-in digits, or your own."""
    model: str | None = None
    """Checkpoint to transfer (default: a small ViT, ResNet and hybrid are pre-trained on generated characters first)."""
    quick: bool = False
    """Train for fewer steps, where their number is not given."""
    jobs: int | None = None
    """Number of runs at a time, each with one thread; it does not change results (default: one for each CPU)."""
    seed: int = 0
    device: str | None = None
    pretrain_steps: int | None = None
    """Steps of each pre-training."""
    steps: int | None = None
    """Steps of every run on the data."""
    subset: str | None = None
    """Training images, e.g. 10/class (default: ten of each digit, or a few hundred images of other data)."""
    num_drawn: int = 6
    """Number of images whose rollouts are drawn."""
    num_measured: int = 64
    """Number of images that attention distances are averaged over."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "seed")
        counts = ("num_drawn", "num_measured", "pretrain_steps", "steps", "jobs")
        require_at_least(self, 1, *counts)
        if self.subset is not None:
            Subset.parse(self.subset)
        for name, value in (("--data", self.data), ("--model", self.model)):
            if value == "":
                raise ValueError(f"{name} '' is empty: give a path, or leave it out.")

    @property
    def is_built_in(self) -> bool:
        """Return whether the data is the built-in digits, which fit into memory and must not be mirrored."""
        return self.data == DIGITS

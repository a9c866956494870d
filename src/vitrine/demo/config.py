"""What the demo is told, as a frozen dataclass. No torch here."""

from dataclasses import dataclass
from pathlib import Path

from vitrine.core.config_checks import require_at_least, require_field_types
from vitrine.data.config import Subset

DIGITS = "digits"


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Where the story is told, on which images and from which checkpoint. Lengths are the recipes', unless they are given."""

    out: Path
    """The folder of the report, with a folder for each run."""
    data: str = DIGITS
    """What is transferred to: the built-in digits, or anyone's images."""
    model: str | None = None
    """The checkpoint that is transferred; None: a small one is pre-trained on generated shapes first."""
    seed: int = 0
    device: str | None = None
    pretrain_steps: int | None = None
    """Of the pre-training on shapes."""
    steps: int | None = None
    """Of every run on the data."""
    subset: str | None = None
    """Of the images to learn from, as 10/class; None: ten digits of each kind, and of other data a few hundred images."""
    num_drawn: int = 6
    """Images whose rollouts are drawn."""
    num_measured: int = 64
    """Images that attention distances are taken over."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "seed")
        require_at_least(self, 1, "num_drawn", "num_measured")
        for name in ("pretrain_steps", "steps"):
            if getattr(self, name) is not None:
                require_at_least(self, 1, name)
        if self.subset is not None:
            Subset.parse(self.subset)
        for name, value in (("--data", self.data), ("--model", self.model)):
            if value == "":
                raise ValueError(f"{name} '' is no name: give a path, or leave it out.")

    @property
    def is_built_in(self) -> bool:
        """Whether the images are the digits, which must not be mirrored and lie in memory."""
        return self.data == DIGITS

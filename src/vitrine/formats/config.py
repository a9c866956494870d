"""What can be said of a checkpoint from outside: the format to write, and what weights do not tell. No torch here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vitrine.core.config_checks import require_counts, require_field_types, require_positive
from vitrine.data.preprocessing import Preprocessing

FormatName = Literal["vitrine", "google-2020", "google-linen", "big-vision", "bit", "timm", "hf", "torchvision"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The user's word on what weights do not tell. None: what the checkpoint says of itself, or else what is usual."""

    gelu: Literal["tanh", "erf"] | None = None
    norm_eps: float | None = None
    """Of the transformer's LayerNorms."""
    num_heads: int | None = None
    grid: tuple[int, int] | None = None
    """Rows and columns of the patches that the position embeddings belong to."""
    preprocess: Preprocessing | Literal["imagenet", "inception"] | Path | None = None
    """`imagenet`: short side 256 and centre crop 224, bicubic, ImageNet's mean and std. `inception`: straight to the size,
    bilinear, values in [-1, 1]. A file: JSON of ours, or Hugging Face's preprocessor_config.json."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "norm_eps", "num_heads")
        if not isinstance(self.preprocess, Preprocessing | str | Path | None):
            raise ValueError(f"preprocess={self.preprocess!r} must be imagenet, inception, a file of JSON or a Preprocessing.")
        if self.grid is not None:
            require_counts(self, "grid", "rows and columns, as (14, 14)")
            if len(self.grid) != 2:
                raise ValueError(f"grid={self.grid} must be two numbers, rows and columns.")

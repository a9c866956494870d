"""Format names, and overrides of what a checkpoint file does not state."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from vitrine.core.config_checks import require_counts, require_field_types, require_positive
from vitrine.data.preprocessing import Preprocessing
from vitrine.models.config import Gelu

FormatName = Literal["vitrine", "google-2020", "google-linen", "big-vision", "bit", "timm", "hf", "torchvision"]
FORMAT_NAMES: tuple[FormatName, ...] = get_args(FormatName)


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Settings of a model that its weights do not show. None: what the checkpoint states, else the format's default."""

    gelu: Gelu | None = None
    norm_eps: float | None = None
    """Epsilon of the transformer's LayerNorms."""
    num_heads: int | None = None
    grid: tuple[int, int] | None = None
    """Rows and columns of patches that the position embeddings belong to."""
    pool: Literal["mean", "first"] | None = None
    """Whether the head reads the mean of the patches or the first patch, in files of big_vision without class token."""
    preprocess: Preprocessing | Literal["imagenet", "inception"] | Path | None = None
    """`imagenet`: short side 256, centre crop 224, bicubic, ImageNet's mean and std. `inception`: resize to the input size,
    bilinear, values in [-1, 1]. A file: JSON of ours, or Hugging Face's preprocessor_config.json."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "norm_eps", "num_heads")
        if not isinstance(self.preprocess, Preprocessing | str | Path | None):
            raise ValueError(f"preprocess={self.preprocess!r} must be imagenet, inception, a JSON file or a Preprocessing.")
        if self.grid is not None:
            require_counts(self, "grid", "rows and columns, e.g. (14, 14)")
            if len(self.grid) != 2:
                raise ValueError(f"grid={self.grid} must be two numbers, rows and columns.")

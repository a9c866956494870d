"""What commands that read a checkpoint have in common: the words on what its file does not say."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitrine.core.console import parse_image_size
from vitrine.formats.config import Facts

if TYPE_CHECKING:
    from vitrine.formats.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """How the checkpoint is read."""

    image_size: str | None = None
    """Pixels of the side, or height and width as 224x320; positions are resized to it."""
    preprocess: Annotated[str | None, arg(metavar="{None,imagenet,inception,FILE}")] = None
    """What the model expects of images, where its file does not say: imagenet (short side 256, crop 224), inception (straight
    to the size, values in [-1, 1]), or a file of JSON."""
    gelu: Literal["tanh", "erf"] | None = None
    """Which GELU the model was trained with, where its file does not say."""
    norm_eps: float | None = None
    """Epsilon of its LayerNorms, where its file does not say."""
    num_heads: int | None = None
    """Number of its heads, where its file does not say."""
    grid: str | None = None
    """Rows and columns of its patches, as 14x20, where its positions are no square."""
    class_names: Path | None = None
    """A text file with one name per line, in the order of the classes."""

    @property
    def facts(self) -> Facts:
        return Facts(
            gelu=self.gelu,
            norm_eps=self.norm_eps,
            num_heads=self.num_heads,
            grid=None if self.grid is None else parse_image_size(self.grid, "--grid"),
            preprocess=self.preprocess if self.preprocess in ("imagenet", "inception", None) else Path(self.preprocess),
        )

    @property
    def size(self) -> tuple[int, int] | None:
        return None if self.image_size is None else parse_image_size(self.image_size, "--image-size")

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if self.class_names is None else read_class_names(self.class_names)

    def load(self, model: str) -> "Checkpoint":
        facts, size, names = self.facts, self.size, self.names  # a mistake in them is found before torch is imported

        from vitrine.formats.load import load_checkpoint

        checkpoint = load_checkpoint(model, image_size=size, facts=facts)
        return checkpoint if names is None else replace(checkpoint, class_names=names)


def read_class_names(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--class-names {path} must be a text file with one name per line: {error}.") from None

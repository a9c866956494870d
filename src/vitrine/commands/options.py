"""Options shared by several commands, and the format of percentages and intervals in their tables."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from vitrine.core.console import parse_image_size, summarise_error
from vitrine.evaluation.config import InferenceConfig
from vitrine.formats.config import Overrides
from vitrine.models.config import Gelu

if TYPE_CHECKING:
    from vitrine.evaluation.intervals import Estimate
    from vitrine.formats.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Options of commands that load a checkpoint; most override what its file does not specify."""

    COMMON: ClassVar[tuple[str, ...]] = ("image_size", "preprocess", "class_names")
    image_size: Annotated[str | None, arg(metavar="SIZE")] = None
    """Image size, e.g. 224 or 224x320 (height x width); position embeddings are resized."""
    preprocess: Annotated[str | None, arg(metavar="{imagenet,inception,FILE}")] = None
    """Preprocessing instead of the file's: imagenet, inception (values in [-1, 1]), or a JSON file."""
    gelu: Gelu | None = None
    """Kind of GELU, if the file does not specify it."""
    norm_eps: float | None = None
    """Epsilon of LayerNorm, if the file does not specify it."""
    num_heads: int | None = None
    """Number of attention heads, if the file does not specify it."""
    grid: Annotated[str | None, arg(metavar="ROWSxCOLUMNS")] = None
    """Grid of patches, e.g. 14x20, if the position embeddings are not of a square."""
    pool: Literal["mean", "first"] | None = None
    """Whether the head reads the mean of the patches or the first one, if the file does not specify it."""
    class_names: Annotated[Path | None, arg(metavar="FILE")] = None
    """Text file with one class name per line, in the order of the model's classes."""

    @property
    def overrides(self) -> Overrides:
        """Return the options that replace what the checkpoint's file does not specify."""
        return Overrides(
            gelu=self.gelu,
            norm_eps=self.norm_eps,
            num_heads=self.num_heads,
            grid=None if self.grid is None else parse_image_size(self.grid, "--grid"),
            pool=self.pool,
            preprocess=self.preprocess if self.preprocess in ("imagenet", "inception", None) else Path(self.preprocess),
        )

    @property
    def size(self) -> tuple[int, int] | None:
        return None if self.image_size is None else parse_image_size(self.image_size, "--image-size")

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if self.class_names is None else read_class_names(self.class_names)

    def load(self, model: str) -> "Checkpoint":
        """Load a checkpoint with these options; a mistake in them is found before torch is imported."""
        overrides, size, names = self.overrides, self.size, self.names

        from vitrine.formats.load import load_checkpoint, replace_class_names

        return replace_class_names(load_checkpoint(model, image_size=size, overrides=overrides), names)


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """Options of commands that fit a classifier to frozen features."""

    held_out: float | None = None
    """Fraction of the images held out for testing, for data without splits (default: 0.2)."""
    subset: str = "all"
    """Part of the training images to use, e.g. 500, 10% or 10/class."""
    no_cache: bool = False
    """Compute the features again, and do not cache them."""
    device: str | None = None
    """Device, e.g. cuda (default: GPU if available)."""
    inference: Annotated[InferenceConfig, arg(name="")] = field(default_factory=InferenceConfig)

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `few_shot` and `probe`."""
        named = {name: getattr(self, name) for name in ("held_out", "subset", "device", "inference")}
        return {**named, "use_cache": not self.no_cache}


def reject_unused_options(needed: str, *groups: Any, **options: Any) -> None:
    """Raise ValueError if an option was set that has no effect without `needed`; options that were not set are None."""
    defaults = {each.name: each.default for group in groups for each in fields(group)}
    values = {name: value for group in groups for name, value in vars(group).items()} | options
    unused = [name for name, value in values.items() if value != defaults.get(name)]
    if unused:
        name = f"--{unused[0].replace('_', '-')}"
        raise ValueError(f"{name} has no effect without {needed}: leave it out, or add {needed}.")


def read_class_names(path: Path) -> tuple[str, ...]:
    """Read the text file of --class-names: one name per line, in the order of the classes."""
    try:
        return tuple(path.read_text(encoding="utf-8-sig").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--class-names {path} must be a text file with one name per line: {summarise_error(error)}."
        ) from None


def format_percent(fraction: float | None) -> str:
    """Format 0.8821 as `88.21 %`, and None (not measured) as an empty cell."""
    return "" if fraction is None else f"{100 * fraction:.2f} %"


def format_estimate(estimate: "Estimate", unit: str = "") -> tuple[str, str]:
    """Format a value and its interval for a table; with a unit (`%` or `points`) both are multiplied by 100."""
    scale, digits = (100, 2) if unit else (1, 4)
    suffix = f" {unit}" if unit else ""
    value = f"{scale * estimate.value:.{digits}f}{suffix}"
    if estimate.low is None or estimate.high is None:
        return value, ""
    return value, f"{scale * estimate.low:.{digits}f} .. {scale * estimate.high:.{digits}f}{suffix}"

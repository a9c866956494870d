"""CheckpointOptions, FeatureOptions, number formats.

What commands that read a checkpoint have in common: the words on what its file does not say.
Figures of a measurement as people read them.
What commands that fit something to frozen features have in common.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitrine.core.console import parse_image_size
from vitrine.evaluation.config import InferenceConfig
from vitrine.formats.config import Overrides

if TYPE_CHECKING:
    from vitrine.data.source import Source
    from vitrine.evaluation.features import FeatureSplit
    from vitrine.evaluation.intervals import Estimate
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
    def facts(self) -> Overrides:
        return Overrides(
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


def format_percent(share: float | None) -> str:
    """0.8821 as 88.21 %; None, for what was not measured, as nothing."""
    return "" if share is None else f"{100 * share:.2f} %"


def format_estimate(estimate: "Estimate", unit: str = "") -> tuple[str, str]:
    """The value and its interval; shares in per cent or points."""
    scale, digits = (100, 2) if unit else (1, 4)
    ending = f" {unit}" if unit else ""
    value = f"{scale * estimate.value:.{digits}f}{ending}"
    if estimate.low is None or estimate.high is None:
        return value, ""
    return value, f"{scale * estimate.low:.{digits}f} .. {scale * estimate.high:.{digits}f}{ending}"


@dataclass(frozen=True, kw_only=True)
class FeatureOptions:
    """How features are computed, or found again."""

    held_out: float = 0.2
    """Share of the images to test on, where the data is not divided."""
    subset: str = "all"
    """Of the images to fit to, as 500, 10% or 10/class."""
    no_cache: bool = False
    """Compute the features anew, and do not keep them."""
    device: str | None = None
    """Where to compute, as cuda; a GPU where there is one, if you do not say."""
    reading: Annotated[InferenceConfig, arg(name="")] = field(default_factory=InferenceConfig)

    def compute(self, checkpoint: "Checkpoint", data: str, seed: int = 0) -> "FeatureSplit":
        from vitrine.core.runtime import choose_device
        from vitrine.data.open_data import open_train_and_test
        from vitrine.evaluation.features import FeatureSplit, open_feature_cache
        from vitrine.evaluation.predictor import featurise_images

        sources = open_train_and_test(data, self.held_out, seed, self.subset)
        require_classes(sources[0], data)
        device, cache = choose_device(self.device), None if self.no_cache else open_feature_cache()
        train, test = (featurise_images(checkpoint, source, self.reading, device, cache) for source in sources)
        return FeatureSplit(train, test, len(sources[0].class_names))


def require_classes(source: "Source", data: str) -> None:
    """Before features are computed, which takes long."""
    if not source.class_names:
        raise ValueError(f"{data} has no labels, and some were needed to learn from: give images in folders by class.")
    if len(source.class_names) == 1:
        raise ValueError(f"{data} has one class only, {source.class_names[0]}, and nothing to tell it from: give two or more.")
    if source.labels.has_several:
        raise ValueError(f"{data} has several labels for each image, and one was needed: take other data, or another split.")

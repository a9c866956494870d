"""What commands that fit something to frozen features have in common."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from vitrine.evaluate.config import ReadingConfig

if TYPE_CHECKING:
    from vitrine.data.source import Source
    from vitrine.evaluate.features import Split
    from vitrine.formats.checkpoint import Checkpoint


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
    reading: Annotated[ReadingConfig, arg(name="")] = field(default_factory=ReadingConfig)

    def compute(self, checkpoint: "Checkpoint", data: str, seed: int = 0) -> "Split":
        from vitrine.core.runtime import choose_device
        from vitrine.data.opening import open_train_and_test
        from vitrine.evaluate.feature_cache import open_feature_cache
        from vitrine.evaluate.features import Split
        from vitrine.evaluate.measuring import featurise_images

        sources = open_train_and_test(data, self.held_out, seed, self.subset)
        require_classes(sources[0], data)
        device, cache = choose_device(self.device), None if self.no_cache else open_feature_cache()
        train, test = (featurise_images(checkpoint, source, self.reading, device, cache) for source in sources)
        return Split(train, test, len(sources[0].class_names))


def require_classes(source: "Source", data: str) -> None:
    """Before features are computed, which takes long."""
    if not source.class_names:
        raise ValueError(f"{data} has no labels, and some were needed to learn from: give images in folders by class.")
    if len(source.class_names) == 1:
        raise ValueError(f"{data} has one class only, {source.class_names[0]}, and nothing to tell it from: give two or more.")
    if source.labels.has_several:
        raise ValueError(f"{data} has several labels for each image, and one was needed: take other data, or another split.")

"""Hybrids: a ViT on the feature map of a ResNet (arXiv:2010.11929, sections 3.1 and 4.1)."""

from torch import Tensor

from vitrine.models.config import HybridConfig, ResizeMethod
from vitrine.models.intermediates import IntermediateRecorder
from vitrine.models.resnet import ResNet
from vitrine.models.vit import VisionTransformer


class Hybrid(VisionTransformer):
    """A ViT with a ResNet before its patch embedding."""

    before_blocks = ("stem", *VisionTransformer.before_blocks)

    def __init__(self, config: HybridConfig) -> None:
        super().__init__(config)
        self.stem = ResNet(config.stem)

    @property
    def intermediates(self) -> tuple[str, ...]:
        return (*(f"stem.{name}" for name in self.stem.intermediates), *super().intermediates)

    def embed_images(self, images: Tensor, recorder: IntermediateRecorder | None) -> tuple[Tensor, tuple[int, int]]:
        """Run the ResNet stem and embed the patches of its feature map."""
        stem_recorder = None if recorder is None else recorder.under("stem")
        features = self.stem.encode_map(self.stem.embed_map(images, stem_recorder), stem_recorder)
        return self.patches(features), self.config.grid

    def resize(self, image_size: int | tuple[int, int], method: ResizeMethod = "paper") -> None:
        super().resize(image_size, method)
        self.stem.resize(image_size)

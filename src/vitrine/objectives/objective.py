"""The contract of an objective: a batch in, a loss out. The loop knows nothing else of the method."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from vitrine.data.batch import Batch
from vitrine.data.preprocessing import Preprocessing
from vitrine.models.model import Model


@dataclass(frozen=True)
class LossOutput:
    """What one batch gives."""

    loss: Tensor
    """Scalar to call backward on: a mean over the images of the batch."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars to log, on the device: reading one here would stall it every step."""


class Objective(nn.Module):
    """Owns every trained parameter. `encoder` is what evaluation, inspection and export receive."""

    mean: Tensor
    std: Tensor
    metric_names: tuple[str, ...] = ("accuracy",)
    """Of the metrics of every `LossOutput`; the first says how good it is, the higher the better, at most 1."""

    def __init__(self, encoder: Model[Any], preprocessing: Preprocessing) -> None:
        super().__init__()
        self.encoder = encoder
        self.preprocessing = preprocessing
        mean, std = preprocessing.build_constants()
        # On the device with the weights: made anew for each batch, they would have the device and the host wait for each other.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, batch: Batch) -> LossOutput:
        raise NotImplementedError

    def classify(self, images: Tensor) -> Tensor:
        """Logits of raw pixels."""
        return self.encoder(self.normalise(images))

    def featurise(self, images: Tensor) -> Tensor:
        """Features of raw pixels: what the head reads."""
        return self.encoder.pool(self.encoder.encode(self.normalise(images)))

    def normalise(self, images: Tensor) -> Tensor:
        return self.preprocessing.normalise(images, (self.mean, self.std))

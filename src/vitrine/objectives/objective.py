"""The contract of an objective: a batch in, a loss out. The loop knows nothing else of the method."""

from dataclasses import dataclass, field

from torch import Tensor, nn

from vitrine.data.batch import Batch
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

    encoder: Model

    def forward(self, batch: Batch) -> LossOutput:
        raise NotImplementedError

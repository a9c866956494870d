"""Contract of an objective: a batch in, a loss out. The training loop knows nothing else about the method.

A new objective is a file with a subclass of `Objective` and a row in OBJECTIVES (objectives/config.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from vitrine.data.batch import Batch, Draw, Draws
from vitrine.data.preprocessing import Preprocessing
from vitrine.data.source import Source
from vitrine.models.model import Model, names_without_decay
from vitrine.objectives.config import OBJECTIVES, ObjectiveKind

ENCODER = "encoder."
"""Prefix of the encoder's parameters among those of an objective."""


@dataclass(frozen=True)
class LossOutput:
    """Loss and metrics of one batch."""

    loss: Tensor
    """Scalar to call backward on: a mean over the images of the batch."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars to log. They stay on the device: reading one here would stall it at every step."""


class Objective(nn.Module):
    """Owns every trained parameter. Evaluation, inspection and export get its `encoder`."""

    forward_methods: ClassVar[tuple[str, ...]] = ("logits", "features")
    """Methods besides `forward` that run the encoder; FSDP2 has to know them to gather sharded parameters first."""
    metric_names: tuple[str, ...] = ("accuracy",)
    """Names of the metrics in every `LossOutput`. The first tells how good it is: higher is better, at most 1."""
    has_cross_entropy_loss: bool = False
    """Whether the loss is the softmax cross-entropy of the logits, so that it can be compared with that on other images."""
    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Model[Any], preprocessing: Preprocessing) -> None:
        super().__init__()
        self.encoder = encoder
        self.preprocessing = preprocessing
        mean, std = preprocessing.build_constants()
        # Kept on the device with the weights: building them for each batch would make device and host wait for each other.
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    @classmethod
    def build(cls, model: Model[Any], preprocessing: Preprocessing, settings: Mapping[str, Any], seed: int) -> Self:
        """Build the objective from the values of the recipe fields named in its row of OBJECTIVES."""
        raise NotImplementedError

    def build_draw(self) -> Draw | None:
        """Return what draws the random numbers of its batches, None if it needs none; the loader's workers call it.

        It holds no parameters, since it is sent to other processes.
        """
        return None

    def add_draws(self, batch: Batch) -> Batch:
        """Return a batch on the CPU with the random numbers that `forward` needs: what a loader does that has `build_draw`."""
        draw = self.build_draw()
        return batch if draw is None else replace(batch, draws=draw(batch.index, batch.step))

    def require_draws(self, batch: Batch) -> Draws:
        """Return the random numbers of a batch; raise ValueError if it has none."""
        if not batch.draws:
            raise ValueError(f"The batch has no draws, which {type(self).__name__} needs: call add_draws(batch) before.")
        return batch.draws

    @classmethod
    def check_data(cls, train: Source, config: Any, name: str) -> None:
        """Raise ValueError if the objective cannot be trained on these images; `name` is what the user calls the data."""

    def forward(self, batch: Batch) -> LossOutput:
        """Return the loss of a batch with its draws. Nothing in it may depend on the step or wait for the host."""
        raise NotImplementedError

    def logits(self, images: Tensor) -> Tensor:
        """Return the logits of raw images, as in `Batch.image`."""
        return self.encoder(self.normalise(images))

    def features(self, images: Tensor) -> Tensor:
        """Return the features of raw images that the head reads."""
        return self.encoder.pool(self.encoder.encode(self.normalise(images)))

    def normalise(self, images: Tensor) -> Tensor:
        return self.preprocessing.normalise(images, (self.mean, self.std))

    def trains(self, name: str) -> bool:
        """Return whether an encoder parameter gets a gradient; what does not is not trained, since DDP would wait for it."""
        return True

    @property
    def depth(self) -> int:
        """Number of blocks of the encoder."""
        return len(self.encoder.blocks)

    def block_index(self, name: str) -> int:
        """Return the depth of a parameter: 0 before the blocks, 1..depth in them, depth + 1 above, like the objective's own."""
        return self.encoder.block_index(name.removeprefix(ENCODER)) if name.startswith(ENCODER) else self.depth + 1

    def is_head(self, name: str) -> bool:
        """Return whether a parameter belongs to the encoder's head, which a linear probe trains."""
        return name.startswith(ENCODER) and self.encoder.is_head(name.removeprefix(ENCODER))

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that weight decay leaves out: those of the encoder, and the objective's own."""
        own = {name for name in names_without_decay(self) if not name.startswith(ENCODER)}
        return own | {f"{ENCODER}{name}" for name in self.encoder.no_weight_decay()}


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return half precision and integers as float32, in which a loss keeps its digits; float32 and float64 stay."""
    return tensor if tensor.is_floating_point() and tensor.element_size() >= 4 else tensor.float()


def load_objective_class(name: ObjectiveKind) -> type[Objective]:
    """Import the class of an objective in OBJECTIVES."""
    module, _, cls = OBJECTIVES[name].implementation.partition(":")
    return getattr(import_module(module), cls)

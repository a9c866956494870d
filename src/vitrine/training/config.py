"""How a run is optimised, on what, and what is kept of it, as frozen dataclasses. No torch here."""

from dataclasses import dataclass
from typing import Literal

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive, require_rates

OptimizerKind = Literal["adamw", "sgd"]
DecayKind = Literal["constant", "linear", "cosine", "piecewise", "rsqrt"]
DecayMask = Literal["kernels", "all"]
Precision = Literal["auto", "float32", "bfloat16"]
Sharding = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, its learning rate over the run, and what of the model it trains."""

    kind: OptimizerKind = "adamw"
    learning_rate: float = 1e-3
    """At its peak, the end of warm-up."""
    weight_decay: float = 0.1
    """Relative to the learning rate, as in the paper and in AdamW: a step takes away rate x decay of a weight."""
    decay_mask: DecayMask = "kernels"
    """What weights decay: matrices and convolutions only, as in big_vision, or all parameters."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    """Of SGD."""
    warmup_steps: int = 0
    decay: DecayKind = "cosine"
    final_rate: float = 1e-5
    """Where a linear decay ends (issue 2 of vision_transformer); the others end where their form does."""
    decay_at: tuple[float, ...] = (0.3, 0.6, 0.9)
    """Shares of the run from which on a piecewise rate is a tenth of what it was: BiT's."""
    rsqrt_timescale: int = 10_000
    """Steps after warm-up in which an rsqrt rate halves its square."""
    cooldown_steps: int = 0
    """Last steps in which the rate goes down to 0 linearly, whatever its decay; for rsqrt and constant."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this global norm; None: they are not."""
    layer_decay: float = 1.0
    """Factor of the rate from each block to the one before it; 1: the same rate for all."""
    frozen_blocks: int = 0
    """How many of the first blocks, with the embedding before them, are not trained; -1: all but the head."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "learning_rate", "eps", "max_grad_norm", "layer_decay", "rsqrt_timescale")
        require_at_least(self, 0, "warmup_steps", "cooldown_steps", "weight_decay", "final_rate")
        require_at_least(self, -1, "frozen_blocks")
        require_rates(self, "beta1", "beta2", "momentum")
        if self.layer_decay > 1:
            raise ValueError(f"layer_decay={self.layer_decay} must be at most 1: early layers learn more slowly, not faster.")
        if self.decay == "linear" and self.final_rate > self.learning_rate:
            raise ValueError(
                f"final_rate={self.final_rate} is above learning_rate={self.learning_rate}: the rate would rise. Lower it."
            )
        if not isinstance(self.decay_at, tuple) or not all(0 < share < 1 for share in self.decay_at):
            raise ValueError(f"decay_at={self.decay_at!r} must be shares of the run between 0 and 1, as (0.3, 0.6, 0.9).")
        if list(self.decay_at) != sorted(set(self.decay_at)):
            raise ValueError(f"decay_at={self.decay_at} must rise from one share to the next.")

    def require_room(self, total_steps: int) -> None:
        """Warm-up and cooldown fit into a run of so many steps."""
        if self.warmup_steps + self.cooldown_steps >= total_steps:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} and cooldown_steps={self.cooldown_steps} leave nothing of "
                f"total_steps={total_steps}: lower them, or train longer."
            )


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """How a run is fitted to a machine. It may be resumed with others of these."""

    precision: Precision = "auto"
    """Of products and convolutions; auto: bfloat16 where a GPU has it, else float32. Weights stay float32."""
    compile: bool = False
    """Compile the network by torch.compile: slower to begin, quicker by the step."""
    gradient_checkpointing: bool = False
    """Compute blocks again in the backward pass: less memory, about a third more time."""
    accumulation_steps: int = 1
    """Parts in which a batch goes through the network, for batches that do not fit at once."""
    sharding: Sharding = "ddp"
    """Of several processes (torchrun): each has the whole network (ddp), or a part of it (fsdp) where it does not fit."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "accumulation_steps")


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """When a run is saved, besides at its end and when it is interrupted."""

    every_minutes: float = 10.0
    every_steps: int | None = None
    """In addition; None: by the clock alone."""
    keep_last: int = 2
    """How many of these are kept, so that one may be damaged; the best one of all evaluations is kept beside them."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "every_minutes", "every_steps")
        require_at_least(self, 1, "keep_last")


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What is told while it runs; metrics.jsonl is always written."""

    every_steps: int = 10
    tensorboard: bool = False
    """Event files for TensorBoard as well."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "every_steps")

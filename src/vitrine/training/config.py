"""Settings of the optimizer, the machine, saving and logging. No torch here."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrine.core.config_checks import require_at_least, require_field_types, require_positive, require_rates
from vitrine.core.precision import Precision

OptimizerKind = Literal["adamw", "sgd"]
DecayKind = Literal["constant", "linear", "cosine", "piecewise", "rsqrt"]
DecayMask = Literal["kernels", "all"]
Sharding = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, its learning-rate schedule, and which parts of the model it trains."""

    COMMON: ClassVar[tuple[str, ...]] = ("learning_rate", "weight_decay", "warmup_steps", "frozen_blocks")
    kind: OptimizerKind = "adamw"
    learning_rate: float = 1e-3
    """Peak learning rate, at the end of warm-up."""
    weight_decay: float = 0.1
    """Weight decay relative to the learning rate, as in the paper and AdamW: a step subtracts lr x decay of a weight."""
    decay_mask: DecayMask = "kernels"
    """Parameters that decay: kernels of linear and convolution layers, as in big_vision, or all."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    """Momentum of SGD."""
    warmup_steps: int = 0
    """Steps of linear warm-up from 0."""
    decay: DecayKind = "cosine"
    """Learning-rate schedule after warm-up."""
    final_rate: float = 1e-5
    """Learning rate at the end of a linear decay (issue 2 of vision_transformer)."""
    decay_at: tuple[float, ...] = (0.3, 0.6, 0.9)
    """Fractions of the run at which a piecewise schedule divides the learning rate by ten, as in BiT."""
    rsqrt_timescale: int = 10_000
    """Timescale of the rsqrt schedule, in steps."""
    cooldown_steps: int = 0
    """Last steps in which the learning rate goes linearly to 0; for the rsqrt and constant schedules."""
    max_grad_norm: float | None = 1.0
    """Global norm that gradients are clipped to; None: no clipping."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each block to the one before it; 1: the same for all."""
    frozen_blocks: int = 0
    """Number of first blocks that are not trained, with the embedding before them; -1: train only the head."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "learning_rate", "eps", "max_grad_norm", "layer_decay", "rsqrt_timescale")
        require_at_least(self, 0, "warmup_steps", "cooldown_steps", "weight_decay", "final_rate")
        require_at_least(self, -1, "frozen_blocks")
        require_rates(self, "beta1", "beta2", "momentum")
        if self.layer_decay > 1:
            raise ValueError(f"layer_decay={self.layer_decay} must be at most 1: early layers learn more slowly, not faster.")
        if self.decay == "linear" and self.final_rate > self.learning_rate:
            raise ValueError(f"final_rate={self.final_rate} must be at most learning_rate={self.learning_rate}.")
        if not isinstance(self.decay_at, tuple) or not all(0 < fraction < 1 for fraction in self.decay_at):
            raise ValueError(f"decay_at={self.decay_at!r} must be fractions of the run between 0 and 1, e.g. (0.3, 0.6, 0.9).")
        if list(self.decay_at) != sorted(set(self.decay_at)):
            raise ValueError(f"decay_at={self.decay_at} must be in increasing order.")

    def check_total_steps(self, total_steps: int) -> None:
        """Raise ValueError unless warm-up and cooldown fit into a run of this length."""
        if self.warmup_steps + self.cooldown_steps >= total_steps:
            steps = f"warmup_steps={self.warmup_steps} plus cooldown_steps={self.cooldown_steps}"
            raise ValueError(f"{steps} must be less than total_steps={total_steps}: lower them, or train longer.")


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Settings that fit a run to a machine. A run may be resumed with different ones."""

    COMMON: ClassVar[tuple[str, ...]] = ("precision", "accumulation_steps")
    precision: Precision = "auto"
    """Precision of products and convolutions; auto: bfloat16 on NVIDIA GPUs that have it, float16 on others, else float32."""
    compile: bool = False
    """Compile the model with torch.compile: slower to start, faster per step."""
    gradient_checkpointing: bool = False
    """Recompute blocks in the backward pass: less memory, about a third more time."""
    accumulation_steps: int = 1
    """Number of parts a batch is processed in, for batches that do not fit into memory."""
    sharding: Sharding = "ddp"
    """Several processes (torchrun) each hold a copy of the model (ddp), or a part of it (fsdp) if it does not fit."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "accumulation_steps")


@dataclass(frozen=True, kw_only=True)
class SavingConfig:
    """When checkpoints are written, besides at the end and on interruption."""

    COMMON: ClassVar[tuple[str, ...]] = ("every_minutes",)
    every_minutes: float = 10.0
    """Minutes between checkpoints."""
    every_steps: int | None = None
    """Steps between additional checkpoints; None: by the clock only."""
    keep_last: int = 2
    """Number of checkpoints kept, in case the last is damaged; the best model is kept in addition."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_positive(self, "every_minutes", "every_steps")
        require_at_least(self, 1, "keep_last")


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What is logged during a run, and its report; metrics.jsonl is always written."""

    every_steps: int = 10
    """Steps between two logged lines."""
    tensorboard: bool = False
    """Also write TensorBoard event files."""
    page: bool = True
    """Draw curves.png and write report.html at the end; without them, the same command does it later."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 1, "every_steps")

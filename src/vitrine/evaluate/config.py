"""What is measured in the course of a run and at its end, as a frozen dataclass. No torch here."""

from dataclasses import dataclass

from vitrine.core.checks import require_at_least, require_field_types


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """In the course of a run: on what data.held_out keeps out of training, else on the validation images, if there are any.

    At its end, once: on the test images, if there are any.
    """

    num_times: int = 10
    """In the course of the run, evenly spread; the last is at its end. 0: never."""
    batch_size: int = 256
    """Of all processes together."""
    resize: int | None = None
    """Short side before the centre crop; None: as the checkpoint has it, or straight to the size of the model."""
    patience: int | None = None
    """Stop after so many evaluations without a better one, and take the best; 0: run to the end, and take the best."""
    test: bool = True
    """Whether the test images are looked at, once, at the end; not while settings are chosen."""
    few_shot: int = 0
    """Shots of the few-shot accuracy that is measured at each evaluation too; 0: not."""

    def __post_init__(self) -> None:
        require_field_types(self)
        require_at_least(self, 0, "num_times", "few_shot")
        require_at_least(self, 1, "batch_size")
        if self.resize is not None and self.resize < 1:
            raise ValueError(f"evaluation.resize={self.resize} must be at least 1.")
        if self.patience is not None and self.patience < 0:
            raise ValueError(f"evaluation.patience={self.patience} must be at least 0.")
        if self.num_times == 0 and (self.patience is not None or self.few_shot > 0):
            raise ValueError("evaluation.patience and evaluation.few_shot need evaluations: raise evaluation.num_times.")

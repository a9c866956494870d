"""What a run came to: the figures, and what they cost."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Summary:
    model: str
    num_parameters: int
    num_train_images: int
    seed: int
    learning_rate: float
    total_steps: int
    steps: int
    """Done; fewer than there were to be, if it was stopped."""
    is_finished: bool
    stopped_early: bool
    """Because the watched accuracy rose no more."""
    interrupted_by: int | None
    """The signal, which may have come with the last step."""
    watched_on: str | None
    """held_out or val: where the best was chosen."""
    best: float | None
    """Best accuracy of the evaluations in the course of the run."""
    best_step: int | None
    test_top1: float | None
    test_top5: float | None
    test_loss: float | None
    num_test_images: int | None
    images: int
    """Seen in training."""
    exaflops: float
    """Counted as table 6 of arXiv:2010.11929 does: as if all weights were trained."""
    device: str
    device_hours: float
    """Of training with its evaluations and checkpoints, all attempts and all devices together."""

"""A callback for tests of the training loop."""

from collections.abc import Callable
from dataclasses import dataclass, field

from vitrine.training.loop import MetricAverager, Metrics
from vitrine.training.state import TrainState


@dataclass
class Recorder:
    """Reads the metrics after some steps, and then stops the run if it is told to."""

    is_due: Callable[[int], bool] = lambda step: True
    stop_at: int | None = None
    records: list[Metrics] = field(default_factory=list)

    def after_step(self, state: TrainState, metrics: MetricAverager, lr: float) -> None:
        if self.is_due(state.step):
            self.records.append({**metrics.read(), "rate": lr})
        if state.step == self.stop_at:
            state.is_stopped = True

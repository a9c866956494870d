"""Budget: how much of the user's time is left, and where it went."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

REPORT_S = 4.0  # to write the report: figures, thumbnails
SLACK = 0.03  # fraction of the budget that stays unplanned, since estimates are never exact


@dataclass(frozen=True)
class Part:
    """A part of a fit: what it was, and when it ran, in seconds since the start."""

    name: str
    start_s: float
    end_s: float


@dataclass
class Budget:
    """Wall-clock time of one fit; without a limit, everything fits."""

    limit_s: float | None
    start: float = field(default_factory=time.monotonic)
    clock: Callable[[], float] = time.monotonic
    parts: list[Part] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.start

    def remaining_s(self, reserve_s: float = 0.0) -> float:
        """Return the seconds left for work, less what is reserved for later and the report; infinite without a limit."""
        if self.limit_s is None:
            return float("inf")
        return self.limit_s * (1 - SLACK) - REPORT_S - reserve_s - self.elapsed_s

    def has_time_for(self, seconds: float, reserve_s: float = 0.0) -> bool:
        """Return whether work of so many seconds fits in before what is reserved."""
        return seconds <= self.remaining_s(reserve_s)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Record when a part of the fit ran; parts of the same name that follow each other are one."""
        start_s = self.elapsed_s
        try:
            yield
        finally:
            end_s = self.elapsed_s
            if self.parts and self.parts[-1].name == name:
                start_s = self.parts.pop().start_s
            self.parts.append(Part(name, start_s, end_s))

"""Ctrl-C and SIGTERM: the step is finished and saved before the run ends."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from vitrine.core.console import print_error

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether someone wishes the run to end."""

    def __init__(self, say: Callable[[str], None] = print_error) -> None:
        self.say = say
        self.signal: int | None = None

    @property
    def is_wanted(self) -> bool:
        return self.signal is not None

    def note(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted and number == signal.SIGINT:
            raise KeyboardInterrupt  # asked a second time: at once
        if not self.is_wanted:
            self.say("Finishing the step and saving; Ctrl-C once more stops at once, without.")
        self.signal = number


@contextmanager
def stop_on_signals(say: Callable[[str], None] = print_error) -> Iterator[Stop]:
    stop = Stop(say)
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals are the main thread's, and whoever runs us in another has their own way to stop
        return
    before = {number: signal.signal(number, stop.note) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

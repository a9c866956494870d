"""Signals as the system sends them, to this very process."""

import signal
import threading
from collections.abc import Iterator

import pytest

from vitrine.run.stopping import SIGNALS, Stop, stop_on_signals


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Whatever a test leaves, the next begins with what pytest had."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted_and_nothing_is_broken_off(number: int) -> None:
    with stop_on_signals() as stop:
        assert not stop.is_wanted
        signal.raise_signal(number)
        assert stop.is_wanted
        assert stop.signal == number


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_any_signal_ends_at_once(first: int) -> None:
    with stop_on_signals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sigterm_again_is_patient() -> None:
    """Schedulers repeat it; the step under way is still to be finished and saved."""
    with stop_on_signals() as stop:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.is_wanted


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_handlers_before_come_back(error: type[BaseException] | None) -> None:
    seen: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def run() -> None:
        with stop_on_signals():
            assert {number: signal.getsignal(number) for number in SIGNALS} != before
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert {number: signal.getsignal(number) for number in SIGNALS} == before
    signal.raise_signal(signal.SIGTERM)
    assert seen == [signal.SIGTERM]


def test_one_run_after_another_begins_without_a_wish() -> None:
    with stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop.is_wanted


def test_another_thread_leaves_signals_alone() -> None:
    """A server or a notebook may train in a thread, where Python lets nobody set handlers."""
    found: list[tuple[Stop, bool]] = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with stop_on_signals() as stop:
            found.append((stop, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    [(stop, is_untouched)] = found
    assert is_untouched
    assert not stop.is_wanted

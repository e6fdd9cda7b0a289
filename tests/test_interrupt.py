"""Ctrl-C asks once and then kills; and the clock."""

import signal
import threading
import time

import pytest

from gradmass.training.clock import Clock
from gradmass.training.interrupt import interruptible

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Killed(Exception):
    pass


@pytest.fixture(autouse=True)
def handlers():
    """Handlers of our own, so that a mistake raises here and does not end the tests."""

    def kill(_number, _frame):
        raise Killed

    before = [signal.signal(number, kill) for number in SIGNALS]
    yield [kill, kill]
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def current():
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_a_question(number):
    with interruptible() as is_interrupted:
        assert not is_interrupted()
        signal.raise_signal(number)
        assert is_interrupted()
        assert is_interrupted()  # asking does not forget it


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_kills_whichever_the_first_was(first, second):
    with interruptible() as is_interrupted:
        signal.raise_signal(first)
        assert is_interrupted()
        with pytest.raises(Killed):
            signal.raise_signal(second)


def test_the_second_ctrl_c_is_python_s_own():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with interruptible():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_are_put_back(handlers):
    with interruptible():
        assert all(now is not before for now, before in zip(current(), handlers, strict=True))
    assert current() == handlers
    with interruptible():
        signal.raise_signal(signal.SIGINT)
    assert current() == handlers
    with pytest.raises(RuntimeError), interruptible():
        raise RuntimeError
    assert current() == handlers


def test_a_signal_of_one_run_is_none_of_the_next():
    with interruptible() as is_interrupted:
        signal.raise_signal(signal.SIGINT)
        assert is_interrupted()
    with interruptible() as is_interrupted:
        assert not is_interrupted()


def test_in_a_thread_the_answer_is_no(handlers):
    seen = []

    def work():
        with interruptible() as is_interrupted:
            seen.append((is_interrupted(), current() == handlers))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, True)]


def test_a_lap_is_the_time_since_the_one_before(monkeypatch):
    times = iter([10.0, 11.5, 11.75, 20.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    clock = Clock()
    clock.lap("a")
    clock.lap("b")
    assert clock.laps == {"a": 1.5, "b": 0.25}
    clock.lap("a")
    assert clock.laps == {"a": 8.25, "b": 0.25}

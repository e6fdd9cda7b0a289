"""Stop at the end of a step, not in the middle of it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradmass.tied import is_orphan


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a question the loop asks; the second one kills.

    The answer is also yes once the process that the run is tied to is gone. Outside the main thread
    signals cannot be caught.
    """
    if threading.current_thread() is not threading.main_thread():
        yield is_orphan
        return
    is_asked = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(_number: int, _frame: object) -> None:
        nonlocal is_asked
        is_asked = True
        restore()

    try:
        for number in before:
            signal.signal(number, ask)
        yield lambda: is_asked or is_orphan()
    finally:
        restore()

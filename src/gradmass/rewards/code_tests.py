"""Run assert-style tests in sandboxes of their own, on programs that run in others.

A test that provably leaves nothing behind (``inside.purity``) runs in a process it shares with
those before it, which is three times as fast; every other test gets a new process.
"""

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from gradmass.rewards.sandbox import Code, Ended, Limits, Worker
from gradmass.rewards.sandbox.inside import wire
from gradmass.rewards.sandbox.inside.roles import REPLY_BYTES

MARGIN_S = 0.5
"""Tests outlive the program's limit by this, so that it is the program that is named as slow."""
FOREVER_S = 1e8


class Tester:
    """Runs tests, one at a time.

    Args:
        start: Starts a sandbox.
    """

    def __init__(self, start: Callable[[], Worker]) -> None:
        self._start = start
        self._single: Worker | None = None
        self._shared: Worker | None = None
        self._channel: socket.socket | None = None
        self._memory_mb = 0

    def check(self, test: Code, limits: Limits, program: socket.socket) -> dict[str, Any]:
        """Run one test.

        Args:
            test: The test, its prelude and entry point.
            limits: Of the program; the test gets as much, and a little more time.
            program: The channel to the program.

        Returns:
            ``passed``; then also ``calls``, the number of calls; otherwise ``gone`` (the program
            ended), ``timeout``, or the ``detail`` of what the test raised.

        Raises:
            SandboxLost: Nothing is known about the test.
        """
        said = self._check_shared(test, limits, program)
        return self._check_single(test, limits, program) if "needs_process" in said else said

    def close(self) -> None:
        """End the sandboxes; the next test gets new ones."""
        if self._single is not None:
            self._single.close()
        self._close_shared()
        self._single = None

    def _check_shared(self, test: Code, limits: Limits, program: socket.socket) -> dict[str, Any]:
        worker, channel = self._prepare_shared(limits.memory_mb)
        request = {
            "prelude": test.prelude,
            "test": test.program,
            "entry_point": test.entry_point,
        }
        deadline = time.monotonic() + limits.wall_s + MARGIN_S
        try:
            channel.settimeout(limits.wall_s + MARGIN_S)
            wire.send(channel, request, [program.fileno()])
            said, _ = wire.receive(channel, limit=REPLY_BYTES, deadline=deadline)
        except TimeoutError:
            self._close_shared()
            return {"passed": False, "timeout": True}
        except (EOFError, ConnectionError):
            cause = cause_of(worker.end_soon())
            self._close_shared()
            return {"passed": False, "detail": cause or "the test came to no end"}
        return dict(said)

    def _prepare_shared(self, memory_mb: int) -> tuple[Worker, socket.socket]:
        if self._memory_mb != memory_mb:
            self._close_shared()
        if self._shared is None or self._channel is None:
            self._shared, self._memory_mb = self._start(), memory_mb
            self._channel, theirs = socket.socketpair()
            limits = Limits(wall_s=FOREVER_S, memory_mb=memory_mb)
            with theirs:
                self._shared.begin("check_all", Code(""), limits, channel=theirs)
        return self._shared, self._channel

    def _close_shared(self) -> None:
        with contextlib.ExitStack() as open_ends:
            if self._channel is not None:
                open_ends.enter_context(self._channel)
            if self._shared is not None:
                self._shared.close()
        self._shared = self._channel = None

    def _check_single(self, test: Code, limits: Limits, program: socket.socket) -> dict[str, Any]:
        self._single = self._single or self._start()
        longer = Limits(wall_s=limits.wall_s + MARGIN_S, memory_mb=limits.memory_mb)
        self._single.begin("check", test, longer, channel=program)
        # Only the test holds this end now: when it ends, the program learns of it.
        program.close()
        ended = self._single.end()
        if ended.forced == "timeout":
            return {"passed": False, "timeout": True}
        try:
            return dict(json.loads(ended.stdout))
        except ValueError:
            return {"passed": False, "detail": cause_of(ended) or "the test came to no end"}


def cause_of(ended: Ended) -> str:
    """How a process ended that did not end well."""
    if ended.code is None:
        return ""
    if ended.code < 0:
        return f"killed by {signal.Signals(-ended.code).name}"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return f"exit code {ended.code}" + (f": {lines[-1].strip()[:200]}" if lines else "")

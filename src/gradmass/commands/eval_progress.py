"""Progress of an evaluation: samples done, rate and remaining time."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EVERY_S = 10.0
"""Seconds between two lines where there is no terminal."""


class SamplingProgress:
    """Show on stderr how far the samples are: a live line on a terminal, one in a while elsewhere.

    The rate and the remaining time are of the samples made by this process: those that an earlier
    one made count as done, and cost nothing.

    Args:
        num_asked: Samples in all.
        num_done: Samples that are there already.
    """

    def __init__(self, num_asked: int, num_done: int) -> None:
        self._num_asked, self._num_done, self._num_before = num_asked, num_done, num_done
        self._started = self._last_line = time.monotonic()
        self._rich: Progress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._rich = Progress(
                TextColumn("samples"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._bar = self._rich.add_task("", total=num_asked, completed=num_done)

    def __enter__(self) -> "SamplingProgress":
        """Start the live line."""
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live line."""
        if self._rich is not None:
            self._rich.stop()

    def add(self, number: int) -> None:
        """Count new samples."""
        self._num_done += number
        now = time.monotonic()
        rate = (self._num_done - self._num_before) / max(1e-9, now - self._started)
        if self._rich is not None:
            self._rich.update(self._bar, advance=number, description=f"{rate:.1f}/s")
        elif now - self._last_line >= EVERY_S:
            self._last_line = now
            left = (self._num_asked - self._num_done) / max(1e-9, rate)
            print(
                f"{self._num_done}/{self._num_asked} samples, {rate:.1f}/s, {left:.0f}s left",
                file=sys.stderr,
                flush=True,
            )

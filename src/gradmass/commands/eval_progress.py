"""Progress of an evaluation: samples done, rate and remaining time."""

import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from gradmass.commands.progress import Live


class SamplingProgress(Live):
    """Show on stderr how far the samples are: a live line on a terminal, one in a while elsewhere.

    The rate and the remaining time are of the samples made by this process: those that an earlier
    one made count as done, and cost nothing.

    Args:
        num_asked: Samples in all.
        num_done: Samples that are there already.
    """

    def __init__(self, num_asked: int, num_done: int) -> None:
        super().__init__()
        self._num_asked, self._num_done, self._num_before = num_asked, num_done, num_done
        self._rich = self._bars(
            TextColumn("samples"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        if self._rich is not None:
            self._bar = self._rich.add_task("", total=num_asked, completed=num_done)

    def add(self, number: int) -> None:
        """Count new samples."""
        self._num_done += number
        seconds = max(1e-9, time.monotonic() - self._started)
        rate = (self._num_done - self._num_before) / seconds
        if self._rich is not None:
            self._rich.update(self._bar, advance=number, description=f"{rate:.1f}/s")
            return
        left = (self._num_asked - self._num_done) / max(1e-9, rate)
        self._say_at_times(
            f"{self._num_done}/{self._num_asked} samples, {rate:.1f}/s, {left:.0f}s left"
        )

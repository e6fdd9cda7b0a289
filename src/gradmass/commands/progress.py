"""Progress of a run: a live line on a terminal, one plain line a step elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.status import Status

SHORT = {
    "rollout/solve_rate": "solved",
    "entropy/mean_nats": "entropy",
    "mass/positive": "m_S",
    "mass/negative": "m_F",
    "weight/alpha": "alpha",
    "weight/delta": "delta",
    "test/pass@1": "test pass@1",
    "test/pass@100": "pass@100",
    "loss/value": "loss",
}
"""How a metric is called on a line that has to be short."""


PERIOD_S = 10.0
"""Seconds between two lines where there is no terminal."""


class Live:
    """What shows progress: something live on a terminal, lines on stderr elsewhere.

    Args:
        is_quiet: Show nothing.
    """

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._console = Console(stderr=True)
        self._started = self._shown_at = time.monotonic()
        self._live: RichProgress | Status | None = None

    @property
    def _is_live(self) -> bool:
        return self._console.is_terminal and not self._is_quiet

    def _bars(self, *columns: str | ProgressColumn, transient: bool = False) -> RichProgress | None:
        """Bars for the terminal; None where there is none."""
        if not self._is_live:
            return None
        self._live = bars = RichProgress(*columns, console=self._console, transient=transient)
        return bars

    def _status(self, text: str) -> Status | None:
        """A line with a spinner for the terminal; None where there is none."""
        if not self._is_live:
            return None
        self._live = status = self._console.status(text)
        return status

    def __enter__(self) -> Self:
        """Start what is live."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop what is live."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of its own, above what is live."""
        if self._is_quiet:
            return
        if self._live is not None:
            self._console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _say_at_times(self, text: str) -> None:
        """A line, if the last one was ``PERIOD_S`` ago."""
        now = time.monotonic()
        if now - self._shown_at >= PERIOD_S:
            self._shown_at = now
            self.say(text)


class Progress(Live):
    """Show rows of metrics on stderr as they come, for one run or several side by side.

    Args:
        num_steps: The step at which the runs end.
        keys: Metrics to show, in this order, where a row has them.
        labels: Names of the runs; one without a name if there is only one.
        is_quiet: Show nothing.
    """

    def __init__(
        self,
        num_steps: int,
        keys: Sequence[str],
        *,
        labels: Sequence[str] = ("",),
        is_quiet: bool = False,
    ) -> None:
        super().__init__(is_quiet=is_quiet)
        self._num_steps, self._keys = num_steps, keys
        self._shown: dict[str, dict[str, Any]] = {label: {} for label in labels}
        self._first: dict[str, tuple[int, float]] = {}
        self._rich = self._bars(
            TextColumn("{task.fields[label]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        if self._rich is not None:
            self._tasks = {
                label: self._rich.add_task("starting", total=num_steps, label=label)
                for label in labels
            }

    def show(self, row: Mapping[str, Any], label: str = "") -> None:
        """Show a row; on a terminal, values stay until a row brings new ones."""
        if self._is_quiet:
            return
        for warning in row.get("warnings", []):
            self._warn(f"{label} step {row['step']}".strip(), warning)
        if self._rich is not None:
            self._shown[label] |= row
            text = self._text(self._shown[label])
            self._rich.update(self._tasks[label], completed=row["step"], description=text)
            return
        step, now = int(row["step"]), time.monotonic()
        first_step, first_time = self._first.setdefault(label, (step, now))
        words = [label] if label else []
        words += [f"step {step}/{self._num_steps}", self._text(row)]
        if step > first_step:
            seconds = (now - first_time) / (step - first_step) * (self._num_steps - step)
            words.append(f"{seconds:.0f}s left")
        self.say(" ".join(words))

    def _warn(self, where: str, warning: Mapping[str, str]) -> None:
        self.say(
            f"warning, {where}: {warning['name']}: {warning['message']}. "
            f"Cannot tell {warning['cannot_tell']}."
        )

    def _text(self, row: Mapping[str, Any]) -> str:
        shown = ((SHORT.get(key, key), row.get(key)) for key in self._keys)
        return " ".join(f"{name} {value:.3f}" for name, value in shown if value is not None)


class BytesProgress(Live):
    """Show on stderr how many bytes are done, and how long the rest takes."""

    def __init__(self) -> None:
        super().__init__()
        self._rich = self._bars(
            BarColumn(bar_width=20),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            transient=True,
        )
        if self._rich is not None:
            self._task = self._rich.add_task("reading", total=None)

    def show(self, name: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` bytes are dealt with, the last ones those of ``name``."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=total, description=name)
            return
        left_s = (time.monotonic() - self._started) / done * (total - done)
        self._say_at_times(
            f"{done / 2**30:.2f} of {total / 2**30:.2f} GiB, {left_s:.0f}s left ({name})"
        )


class RowsProgress(Live):
    """Show on stderr how many rows were read."""

    def __init__(self) -> None:
        super().__init__()
        self._num_rows = 0
        self._line = self._status("reading")

    def show(self, name: str, num_rows: int) -> None:
        """Note that rows of the file ``name`` were read."""
        self._num_rows += num_rows
        text = f"{self._num_rows:,} rows read ({name})"
        if self._line is not None:
            self._line.update(text)
        else:
            self._say_at_times(text)

    def doing(self, text: str) -> None:
        """Show on the live line what is being done."""
        if self._line is not None:
            self._line.update(text)


class CountProgress(Live):
    """Show on stderr how many of a known number are done.

    Args:
        what: What is counted, in the plural.
        total: How many there will be at most.
    """

    def __init__(self, what: str, total: int) -> None:
        super().__init__()
        self._what, self._total = what, total
        self._line = self._status(what)

    def show(self, done: int) -> None:
        """Note that so many are done."""
        text = f"{done} of {self._total} {self._what}"
        if self._line is not None:
            self._line.update(text)
        else:
            self._say_at_times(text)

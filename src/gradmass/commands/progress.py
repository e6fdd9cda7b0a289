"""Progress of a run: a live line on a terminal, one plain line a step elsewhere."""

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

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


class Progress:
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
        self._num_steps, self._keys, self._labels = num_steps, keys, labels
        self._is_quiet = is_quiet
        self._shown: dict[str, dict[str, Any]] = {label: {} for label in labels}
        self._first: dict[str, tuple[int, float]] = {}
        self._rich: RichProgress | None = None
        console = Console(stderr=True)
        if console.is_terminal and not is_quiet:
            self._rich = RichProgress(
                TextColumn("{task.fields[label]}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=console,
            )
            self._tasks = {
                label: self._rich.add_task("starting", total=num_steps, label=label)
                for label in labels
            }

    def __enter__(self) -> "Progress":
        """Start the live lines."""
        if self._rich is not None:
            self._rich.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live lines."""
        if self._rich is not None:
            self._rich.stop()

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
        print(" ".join(words), file=sys.stderr, flush=True)

    def _warn(self, where: str, warning: Mapping[str, str]) -> None:
        text = (
            f"warning, {where}: {warning['name']}: {warning['message']}. "
            f"Cannot tell {warning['cannot_tell']}."
        )
        if self._rich is not None:
            self._rich.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _text(self, row: Mapping[str, Any]) -> str:
        shown = ((SHORT.get(key, key), row.get(key)) for key in self._keys)
        return " ".join(f"{name} {value:.3f}" for name, value in shown if value is not None)


class BytesProgress:
    """Show on stderr how many bytes are done, and how long the rest takes.

    A live line on a terminal, a plain line every ten seconds elsewhere.
    """

    PERIOD_S = 10.0

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._rich: RichProgress | None = None
        console = Console(stderr=True)
        if console.is_terminal:
            self._rich = RichProgress(
                BarColumn(bar_width=20),
                DownloadColumn(binary_units=True),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=True,
            )
            self._task = self._rich.add_task("reading", total=None)

    def __enter__(self) -> "BytesProgress":
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

    def show(self, name: str, done: int, total: int) -> None:
        """Note that ``done`` of ``total`` bytes are dealt with, the last ones those of ``name``."""
        if self._rich is not None:
            self._rich.update(self._task, completed=done, total=total, description=name)
            return
        now = time.monotonic()
        if now - self._shown >= self.PERIOD_S:
            self._shown = now
            left_s = (now - self._started) / done * (total - done)
            print(
                f"{done / 2**30:.2f} of {total / 2**30:.2f} GiB, {left_s:.0f}s left ({name})",
                file=sys.stderr,
                flush=True,
            )


class RowsProgress:
    """Show on stderr how many rows were read: a live line on a terminal, else one now and then."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._num_rows = 0
        self._console = Console(stderr=True)
        self._status = self._console.status("reading") if self._console.is_terminal else None

    def __enter__(self) -> "RowsProgress":
        """Start the live line."""
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live line."""
        if self._status is not None:
            self._status.stop()

    def show(self, name: str, num_rows: int) -> None:
        """Note that rows of the file ``name`` were read."""
        self._num_rows += num_rows
        text = f"{self._num_rows:,} rows read ({name})"
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._shown >= BytesProgress.PERIOD_S:
            self._shown = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    def say(self, text: str) -> None:
        """Show on the live line what is being done."""
        if self._status is not None:
            self._status.update(text)


class CountProgress:
    """Show on stderr how many of a known number are done: a live line, else one now and then.

    Args:
        what: What is counted, in the plural.
        total: How many there will be at most.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._shown = time.monotonic()
        console = Console(stderr=True)
        self._status = console.status(what) if console.is_terminal else None

    def __enter__(self) -> "CountProgress":
        """Start the live line."""
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live line."""
        if self._status is not None:
            self._status.stop()

    def show(self, done: int) -> None:
        """Note that so many are done."""
        text = f"{done} of {self._total} {self._what}"
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._shown >= BytesProgress.PERIOD_S:
            self._shown = time.monotonic()
            print(text, file=sys.stderr, flush=True)

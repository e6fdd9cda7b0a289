"""Passes over the rows of a large matrix: blocks that fit a cache, on the threads of torch."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

import torch

T = TypeVar("T")

BLOCK_ENTRIES = 2**20
"""Entries taken at once: 4 MB in float32, which two products can share in a cache."""
BLOCKS_PER_STRIPE = 4


def row_blocks(num_columns: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rows from ``start`` to ``stop``, of ``BLOCK_ENTRIES`` or one row."""
    step = max(1, BLOCK_ENTRIES // num_columns)
    for begin in range(start, stop, step):
        yield begin, min(begin + step, stop)


class Stripes:
    """Threads that share the rows of a matrix, as many as torch has, each with torch to itself.

    A stripe is worked on by one thread from beginning to end: threads that meet after every block,
    as those within torch's operations do, wait for the slowest each time. The stripes do not depend
    on the number of threads, and so neither do sums over them. Use as a context: threads that stay
    keep the memory that the libraries set up for each.
    """

    def __enter__(self) -> "Stripes":
        """Start the threads."""
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        self._pool = ThreadPoolExecutor(self._num_threads)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give torch its threads back."""
        self._pool.shutdown()
        torch.set_num_threads(self._num_threads)

    def map(self, work: Callable[[int, int], T], num_rows: int, num_columns: int) -> Iterator[T]:
        """Yield ``work(first row, row after the last)`` of consecutive stripes, in order.

        Args:
            work: Called from several threads at once where torch may use several.
            num_rows: Of the matrix.
            num_columns: Of the matrix.
        """
        step = max(1, BLOCKS_PER_STRIPE * BLOCK_ENTRIES // num_columns)
        starts = range(0, num_rows, step)
        stops = [min(start + step, num_rows) for start in starts]
        is_alone = self._num_threads == 1 or len(starts) == 1
        return map(work, starts, stops) if is_alone else self._pool.map(work, starts, stops)

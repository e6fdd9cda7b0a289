"""Passes over the rows of a large matrix: blocks that fit a cache, on the threads of torch."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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


def map_stripes(work: Callable[[int, int], T], num_rows: int, num_columns: int) -> Iterator[T]:
    """Yield ``work(first row, row after the last)`` of consecutive stripes of a matrix, in order.

    A stripe is worked on by one thread from beginning to end: threads that meet after every block,
    as those within torch's operations do, wait for the slowest each time. The stripes do not depend
    on the number of threads, and so neither do sums over them.

    Args:
        work: Called from several threads at once where torch may use several.
        num_rows: Of the matrix.
        num_columns: Of the matrix.
    """
    step = max(1, BLOCKS_PER_STRIPE * BLOCK_ENTRIES // num_columns)
    starts = range(0, num_rows, step)
    stops = [min(start + step, num_rows) for start in starts]
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        if num_threads == 1 or len(starts) == 1:
            yield from map(work, starts, stops)
            return
        with ThreadPoolExecutor(num_threads) as pool:
            yield from pool.map(work, starts, stops)
    finally:
        torch.set_num_threads(num_threads)

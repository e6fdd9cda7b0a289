"""Bootstrap sums: weights of random multiplicity times values, fast for many problems."""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

CHUNK_ENTRIES = 2_000_000
"""Most multiplicities held in memory at once by one thread."""
MULTINOMIAL_COST = 12
"""A multinomial cell costs about as much as drawing this many indices."""


def resampled_sums(
    columns_JC: np.ndarray, row_N: np.ndarray, num_draws: int, seed: int
) -> np.ndarray:
    """Sums over N problems drawn with replacement, of several columns of values at once.

    A draw is a vector of multiplicities, and all sums are one matrix product of multiplicities and
    columns. Problems of equal values share a row: their multiplicities together are multinomial, so
    where few are distinct (at most n + 1 are, for n samples each) the cost grows with their number
    alone, and nothing is approximated. Where most are distinct, indices are drawn and counted.

    Args:
        columns_JC: Values of the J distinct problems, shape ``[J, C]``.
        row_N: Which row has the values of each of the N problems; every row has at least one.
        num_draws: D.
        seed: The draws come in chunks with random streams of their own, so that the sums do not
            depend on the number of cores.

    Returns:
        Shape ``[D, C]``.

    >>> resampled_sums(np.array([[1.0, 2.0]]), np.zeros(5, dtype=int), 2, seed=0)
    array([[ 5., 10.],
           [ 5., 10.]])
    """
    num_problems, num_distinct = len(row_N), len(columns_JC)
    count_J = np.bincount(row_N)
    is_multinomial = num_distinct * MULTINOMIAL_COST <= num_problems
    rows = max(1, CHUNK_ENTRIES // (num_distinct if is_multinomial else num_problems))
    sizes = [min(rows, num_draws - start) for start in range(0, num_draws, rows)]
    streams = np.random.SeedSequence(seed).spawn(len(sizes))

    def chunk(size: int, stream: np.random.SeedSequence) -> np.ndarray:
        generator = np.random.Generator(np.random.SFC64(stream))
        if is_multinomial:
            times_DJ = generator.multinomial(num_problems, count_J / num_problems, size=size)
        else:
            drawn_DN = generator.integers(num_problems, size=(size, num_problems), dtype=np.uint32)
            times_DJ = np.stack(
                [np.bincount(row, minlength=num_distinct) for row in row_N[drawn_DN]]
            )
        sums_DC: np.ndarray = times_DJ.astype(np.float64) @ columns_JC
        return sums_DC

    # NumPy's generators and loops release the interpreter's lock.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(chunk, sizes, streams)))

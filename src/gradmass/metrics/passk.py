"""pass@k: the chance that at least one of k independent answers to a problem is right; pass^k: all.

Each function gives one value a problem. Average them over problems afterwards; never pool the
samples of several problems, which is another quantity wherever the problems differ in difficulty.
"""

from collections.abc import Callable
from math import comb

import numpy as np

from gradmass.types import Array, UsageError

KS = (1, 10, 100)
"""The k that the paper reports, shown wherever no others are asked for."""
ROUNDING = 1e-6
"""How far above 1 a sum of probabilities may lie by rounding alone."""


def pass_at_k(num_correct_N: Array, num_samples_N: Array, k: int) -> np.ndarray:
    """Unbiased estimate of pass@k from n samples of a problem, c of them right.

    ``1 - C(n - c, k) / C(n, k)``: the share of the k-subsets of the samples that hold a right one.
    Its expectation is ``1 - (1 - p)^k`` for every solve probability p. Computed with integers and
    rounded once, so it is the float64 nearest to the true ratio for every n.

    Args:
        num_correct_N: c, right samples of each problem: whole numbers, shape ``[N]``.
        num_samples_N: n, samples of each problem, shape ``[N]``, or one number for all.
        k: Number of tries, 1 to the smallest n.

    Returns:
        float64, shape ``[N]``, in [0, 1]; exactly 0 for c = 0 and 1 for c > n - k.

    Raises:
        UsageError: k below 1 or above an n (pass@k has no unbiased estimate there, and 0 or 1
            would be wrong), c outside 0 to n, counts that are not whole.

    Source: Chen et al. 2021 (arXiv 2107.03374), equation 1. Its reference code gives 1 for n < k.

    >>> pass_at_k([1, 0, 3], [4, 4, 4], 2)  # 3 of the 6 pairs of four samples hold the right one
    array([0.5, 0. , 1. ])
    """
    num_correct_N, num_samples_N = checked_counts(num_correct_N, num_samples_N, k)
    return _by_counts(_any_right, num_correct_N, num_samples_N, k)


def pass_hat_k(num_correct_N: Array, num_samples_N: Array, k: int) -> np.ndarray:
    """Unbiased estimate of pass^k, the chance that all of k independent answers are right.

    ``C(c, k) / C(n, k)``, whose expectation is ``p^k``. What matters to whoever runs the model once
    for each of k users, as pass@k matters to whoever can check k answers.

    Args:
        num_correct_N: c, as in ``pass_at_k``.
        num_samples_N: n, as in ``pass_at_k``.
        k: Number of tries, 1 to the smallest n.

    Returns:
        float64, shape ``[N]``, in [0, 1]; exactly 0 for c < k and 1 for c = n.

    Raises:
        UsageError: As in ``pass_at_k``.

    Source: Yao et al. 2024 (arXiv 2406.12045), section 3.

    >>> pass_hat_k([3, 1, 4], 4, 2)  # 3 of the 6 pairs of four samples are both right
    array([0.5, 0. , 1. ])
    """
    num_correct_N, num_samples_N = checked_counts(num_correct_N, num_samples_N, k)
    return _by_counts(_all_right, num_correct_N, num_samples_N, k)


def ladder(num_samples: int) -> tuple[int, ...]:
    """The k of a whole curve from one set of samples: powers of two, and n itself.

    >>> ladder(16), ladder(100)
    ((1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64, 100))
    """
    powers = (2**i for i in range(num_samples.bit_length()))
    return tuple(sorted({*powers, num_samples} - {0}))


def pass_at_k_from_probability(solve_probability_N: Array, k: int) -> np.ndarray:
    """pass@k of problems whose solve probability is known: ``1 - (1 - p)^k``.

    Computed as ``-expm1(k log1p(-p))``, which keeps its digits where p is tiny.

    Args:
        solve_probability_N: p of each problem, in [0, 1], shape ``[N]``. Up to ``1 + ROUNDING``
            counts as 1: p is often the sum of the probabilities of the right answers.
        k: Number of tries, at least 1.

    Returns:
        float64, shape ``[N]``, in [0, 1].

    Raises:
        UsageError: k below 1; p outside [0, 1] or NaN.

    >>> pass_at_k_from_probability([0.5, 0.0, 1.0, 1e-20], 2)
    array([7.5e-01, 0.0e+00, 1.0e+00, 2.0e-20])
    """
    _check_k(k)
    probability_N = np.asarray(solve_probability_N, dtype=np.float64)
    is_out_N = ~((probability_N >= 0) & (probability_N <= 1 + ROUNDING))
    if is_out_N.any():
        raise UsageError(
            f"a solve probability must be within 0 to 1, got {float(probability_N[is_out_N][0])!r}"
        )
    with np.errstate(divide="ignore"):  # p = 1: log1p(-1) = -inf, and -expm1(-inf) = 1
        log_failure_N = k * np.log1p(-np.minimum(probability_N, 1.0))
    passed_N: np.ndarray = -np.expm1(log_failure_N)
    return passed_N


def checked_counts(
    num_correct_N: Array, num_samples_N: Array, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Counts as int64 arrays of one shape ``[N]``, or the error that names the first bad problem.

    >>> checked_counts([1, 2], 4, 2)
    (array([1, 2]), array([4, 4]))
    """
    _check_k(k)
    num_correct_N = _whole("num_correct", num_correct_N)
    num_samples_N = _whole("num_samples", num_samples_N)
    if num_samples_N.ndim == 0:
        num_samples_N = np.full(num_correct_N.shape, num_samples_N)
    if num_correct_N.ndim != 1 or num_correct_N.shape != num_samples_N.shape:
        raise UsageError(
            "pass@k needs one number of right samples and one of samples a problem, got shapes "
            f"{num_correct_N.shape} and {num_samples_N.shape}"
        )
    is_out_N = (num_correct_N < 0) | (num_correct_N > num_samples_N)
    if is_out_N.any():
        i = int(is_out_N.argmax())
        raise UsageError(
            f"right samples must be within 0 to the number of samples, got {num_correct_N[i]} of "
            f"{num_samples_N[i]} for problem {i}"
        )
    if (num_samples_N < k).any():
        i = int((num_samples_N < k).argmax())
        raise UsageError(
            f"pass@k needs at least k samples of every problem, got k = {k} and "
            f"{num_samples_N[i]} samples of problem {i}; lower k or draw more"
        )
    return num_correct_N, num_samples_N


def _by_counts(
    formula: Callable[[int, int, int], float], num_correct_N: Array, num_samples_N: Array, k: int
) -> np.ndarray:
    """A formula of c, n and k for each problem; problems of equal counts share its work."""
    pairs = list(zip(num_correct_N.tolist(), num_samples_N.tolist(), strict=True))
    value = {(c, n): formula(c, n, k) for c, n in set(pairs)}
    return np.array([value[pair] for pair in pairs], dtype=np.float64)


def _any_right(num_correct: int, num_samples: int, k: int) -> float:
    num_missing, num_subsets = _missing(num_correct, num_samples, k)
    # Division of integers rounds once, whatever their length.
    return (num_subsets - num_missing) / num_subsets


def _all_right(num_correct: int, num_samples: int, k: int) -> float:
    num_missing, num_subsets = _missing(num_samples - num_correct, num_samples, k)
    return num_missing / num_subsets


def _missing(num_marked: int, num_samples: int, k: int) -> tuple[int, int]:
    """Share of the k-subsets without a marked sample, as two integers."""
    # C(n-c, k) / C(n, k) = C(n-k, c) / C(n, c): the smaller of c and k keeps the integers short.
    few, many = sorted((num_marked, k))
    return comb(num_samples - many, few), comb(num_samples, few)


def _check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UsageError(f"k of pass@k must be a whole number of at least 1, got {k!r}")


def _whole(name: str, counts: Array) -> np.ndarray:
    counts = np.asarray(counts)
    is_whole = np.full(counts.shape, counts.dtype.kind in "iu")
    if counts.dtype.kind == "f":
        is_whole = np.isfinite(counts) & (counts == np.floor(counts))
    if not is_whole.all():
        raise UsageError(f"{name} must be whole numbers, got {counts[~is_whole].tolist()[0]!r}")
    whole: np.ndarray = counts.astype(np.int64)
    return whole

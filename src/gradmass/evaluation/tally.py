"""What came of the samples so far: counts by problem, and pass@k from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradmass.evaluation.answers import Question
from gradmass.metrics.intervals import mean_interval_within
from gradmass.metrics.passk import pass_at_k
from gradmass.types import UsageError


class Tally:
    """Counts of an evaluation's samples of one split.

    Args:
        problem_ids: Of the problems asked, in order.
        num_samples: How often each is asked.
    """

    def __init__(self, problem_ids: Sequence[str], num_samples: int) -> None:
        self.problem_ids, self.num_samples = tuple(problem_ids), num_samples
        self._is_done = {name: bytearray(num_samples) for name in problem_ids}
        self._num_right: Counter[str] = Counter()
        self._num_unscorable: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.num_truncated = 0
        self.num_done = 0

    @property
    def num_asked(self) -> int:
        """Samples of all problems, those to come included."""
        return len(self.problem_ids) * self.num_samples

    def is_done(self, question: Question) -> bool:
        """Whether a sample is counted."""
        return bool(self._is_done[question.problem.id][question.sample])

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a sample's row.

        Raises:
            UsageError: A sample that was not asked for, or one counted before.
        """
        name, sample = row["problem_id"], row["sample"]
        done = self._is_done.get(name)
        if done is None or not 0 <= sample < len(done) or done[sample]:
            why = "twice" if done is not None and 0 <= sample < len(done) else "unasked"
            raise UsageError(f"the samples hold problem {name!r}, sample {sample}, {why}")
        done[sample] = 1
        self.num_done += 1
        self.outcomes[row["outcome"]] += 1
        self.num_truncated += row["is_truncated"]
        self._num_right[name] += row["correct"] is True
        self._num_unscorable[name] += row["correct"] is None

    def counts(self) -> tuple[np.ndarray, np.ndarray]:
        """Right and scorable samples of each problem, shapes ``[N]``."""
        num_right_N = np.array([self._num_right[name] for name in self.problem_ids])
        num_unscorable_N = np.array([self._num_unscorable[name] for name in self.problem_ids])
        return num_right_N, self.num_samples - num_unscorable_N

    def summary(self, ks: Sequence[int]) -> dict[str, Any]:
        """pass@k with its interval for these fixed problems, and what it was measured on.

        A problem without a scorable sample has no pass@k: it is left out and counted. A k above
        the number of scorable samples of another problem cannot be told and is left out.

        Args:
            ks: Numbers of tries.

        Returns:
            ``pass@k``, ``pass@k_low``, ``pass@k_high`` (95%, more samples of the same problems),
            and ``num_scored_problems``, ``min_samples``, ``max_samples``, ``num_unscorable``,
            ``num_truncated``, ``outcomes``.
        """
        num_right_N, num_scorable_N = self.counts()
        is_scored_N = num_scorable_N > 0
        right_N, n_N = num_right_N[is_scored_N], num_scorable_N[is_scored_N]
        summary: dict[str, Any] = {
            "num_scored_problems": len(n_N),
            "min_samples": int(n_N.min()) if len(n_N) else 0,
            "max_samples": int(n_N.max()) if len(n_N) else 0,
            "num_unscorable": int(self._num_unscorable.total()),
            "num_truncated": self.num_truncated,
            "outcomes": dict(sorted(self.outcomes.items())),
        }
        return summary | pass_at_ks(right_N, n_N, ks)


def pass_at_ks(
    num_right_N: np.ndarray, num_samples_N: np.ndarray, ks: Sequence[int]
) -> dict[str, float]:
    """Unbiased pass@k with its 95% interval for these fixed problems, for each k it can tell.

    >>> pass_at_ks(np.array([1, 1]), np.array([2, 2]), [1, 3])  # doctest: +ELLIPSIS
    {'pass@1': 0.5, 'pass@1_low': 0.0100..., 'pass@1_high': 0.989...}
    """
    row: dict[str, float] = {}
    for k in ks:
        if k <= min(num_samples_N, default=0):
            low, high = mean_interval_within(num_right_N, num_samples_N, k, level=0.95)
            value = float(pass_at_k(num_right_N, num_samples_N, k).mean())
            row |= {f"pass@{k}": value, f"pass@{k}_low": low, f"pass@{k}_high": high}
    return row

"""What k answers to a problem say together: the majority's vote, and how many right ones differ.

Both are expectations over the k-subsets of the n samples of a problem, so neither depends on the
order in which the samples were drawn.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

from gradmass.metrics.passk import checked_counts, pass_at_k
from gradmass.types import UsageError


def maj_at_k(
    votes: Sequence[int], is_right: Sequence[bool], k: int, *, num_abstentions: int = 0
) -> float:
    """Chance that the most frequent of k answers to one problem is right (self-consistency).

    k of the n samples are drawn without replacement. Where several answers tie for the most votes,
    each wins with equal chance, so a right answer that ties with one wrong one counts 1/2. At
    k = n it is the vote over all samples.

    Args:
        votes: How many of the samples gave each distinct answer, at least 1 each.
        is_right: Whether each distinct answer is right.
        k: Number of voters, 1 to n.
        num_abstentions: Samples without an answer, at least 0. They are drawn but do not vote; if
            nobody votes, nothing right is found.

    Returns:
        In [0, 1]. At k = 1 it is pass@1.

    Raises:
        UsageError: k outside 1 to n, counts out of range, lengths that differ.

    Source: Wang et al. 2022 (arXiv 2203.11171) for the vote; the expectation over subsets and the
    sharing of ties are ours.

    >>> maj_at_k([2, 1, 1], [True, False, False], 4)  # a a b c: a wins
    1.0
    >>> maj_at_k([1, 1], [True, False], 2)  # a tie
    0.5
    """
    votes, is_right = list(votes), list(is_right)
    if len(votes) != len(is_right) or any(v < 1 for v in votes) or num_abstentions < 0:
        raise UsageError(
            "maj@k needs a number of votes above 0 and a verdict for each distinct answer, got "
            f"votes {votes}, verdicts {is_right} and {num_abstentions} abstentions"
        )
    num_samples = sum(votes) + num_abstentions
    checked_counts([0], [num_samples], k)
    chance = sum(
        _chance_to_win(votes[i], votes[:i] + votes[i + 1 :], num_samples, k)
        for i in range(len(votes))
        if is_right[i]
    )
    return min(1.0, chance)


def distinct_right_at_k(right_votes: Sequence[int], num_samples: int, k: int) -> float:
    """Expected number of distinct right answers among k answers to one problem.

    ``sum_j (1 - C(n - c_j, k) / C(n, k))`` over the right answers j, c_j the samples that gave j.
    Divided by the number of right answers that there are, where that is known, it is the share of
    them that k tries cover. It never decides what no sample showed: an answer that n samples missed
    counts 0.

    Args:
        right_votes: c_j, how many of the samples gave each distinct right answer.
        num_samples: n, all samples of the problem, right or wrong.
        k: Number of tries, 1 to n.

    Raises:
        UsageError: k above n; more right samples than samples.

    >>> distinct_right_at_k([2, 1], 4, 2)  # 5/6 of the pairs hold the first, 3/6 the second
    1.3333333333333335
    """
    checked_counts([sum(right_votes)], [num_samples], k)
    return float(pass_at_k(list(right_votes), num_samples, k).sum())


def _chance_to_win(votes: int, others: Sequence[int], num_samples: int, k: int) -> float:
    """Chance that an answer has the most votes among k, ties shared.

    Given that it has m votes, an answer with fewer than m samples cannot beat it: together these
    are drawn freely. The others are taken one by one, as a table of votes used by ties so far.
    """
    total = comb(num_samples, k)
    chance = 0.0
    for m in range(1, min(votes, k) + 1):
        rivals = [v for v in others if v >= m]
        free = num_samples - votes - sum(rivals)
        # Ways to draw s votes of the rivals so that t of them have m and none has more. Python's
        # integers: exact, and without overflow for any n.
        num_ties = min(len(rivals), (k - m) // m)
        ways_ST = np.zeros((k - m + 1, num_ties + 1), dtype=object)
        ways_ST[0, 0] = 1
        for rival in rivals:
            drawn_ST = np.zeros_like(ways_ST)
            for i in range(min(m, k - m) + 1):
                moved_ST = comb(rival, i) * ways_ST[: k - m + 1 - i]
                if i < m:
                    drawn_ST[i:] += moved_ST
                else:
                    drawn_ST[i:, 1:] += moved_ST[:, :-1]
            ways_ST = drawn_ST
        rest_S = np.array([comb(free, k - m - s) for s in range(k - m + 1)], dtype=object)
        ways_T = (ways_ST * rest_S[:, None]).sum(axis=0)
        chance += sum(
            comb(votes, m) * ways / total / (ties + 1) for ties, ways in enumerate(ways_T) if ways
        )
    return chance

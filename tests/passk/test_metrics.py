"""pass@k, pass^k, votes and distinct answers against listing all subsets of the samples."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from gradmass.metrics.answers import distinct_right_at_k, maj_at_k
from gradmass.metrics.passk import ladder, pass_at_k, pass_hat_k
from gradmass.types import UsageError


def human_eval_estimator(n: int, c: int, k: int) -> float:
    """Of openai/human-eval, human_eval/evaluation.py (MIT), as it is there."""
    if n - c < k:
        return 1.0
    return 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))


@pytest.mark.parametrize("n", range(1, 13))
def test_pass_at_k_is_that_of_human_eval_and_of_all_subsets(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([i < c for i in range(n)], k))
        exact = Fraction(sum(map(any, subsets)), len(subsets))
        (value,) = pass_at_k([c], [n], k)
        assert value == float(exact)
        assert value == pytest.approx(human_eval_estimator(n, c, k), abs=1e-14)


def test_pass_at_k_is_that_of_human_eval_for_many_samples():
    for n, c, k in [(200, 1, 1), (200, 7, 100), (128, 64, 10), (100, 3, 100), (1000, 2, 500)]:
        assert pass_at_k([c], [n], k)[0] == pytest.approx(human_eval_estimator(n, c, k), rel=1e-12)


@pytest.mark.parametrize("n", range(1, 9))
def test_pass_hat_k_is_the_share_of_subsets_that_are_all_right(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([i < c for i in range(n)], k))
        exact = Fraction(sum(map(all, subsets)), len(subsets))
        assert pass_hat_k([c], [n], k).tolist() == [float(exact)]


def test_pass_hat_k_keeps_its_digits_where_it_is_tiny():
    exact = Fraction(math.comb(300, 200), math.comb(1000, 200))
    assert pass_hat_k([300], [1000], 200)[0] == pytest.approx(float(exact), rel=1e-15, abs=0)


def voted(samples: list[tuple[str | None, bool]]) -> Fraction:
    """Chance that the winner of a vote is right, ties drawn by lot."""
    votes = Counter(sample for sample in samples if sample[0] is not None)
    most = [sample for sample in votes if votes[sample] == max(votes.values())]
    return Fraction(sum(is_right for _, is_right in most), len(most)) if most else Fraction(0)


@pytest.mark.parametrize(
    ("votes", "is_right", "abstentions"),
    [
        ([3, 2, 1], [True, False, False], 0),
        ([2, 3, 1, 1], [True, False, False, True], 1),
        ([1, 1, 1, 1, 1], [True, False, False, False, True], 2),
        ([4, 4], [False, True], 0),
        ([2, 2, 2], [True, False, False], 2),
        ([5], [False], 1),
        ([3], [True], 4),
    ],
)
def test_maj_at_k_is_the_mean_over_all_subsets(votes, is_right, abstentions):
    answers = [(f"a{j}", right) for j, right in enumerate(is_right) for _ in range(votes[j])]
    answers += [(None, False)] * abstentions
    for k in range(1, len(answers) + 1):
        subsets = list(itertools.combinations(answers, k))
        exact = sum(map(voted, subsets), Fraction(0)) / len(subsets)
        value = maj_at_k(votes, is_right, k, num_abstentions=abstentions)
        assert value == pytest.approx(float(exact), abs=1e-14)


def test_a_majority_is_of_answers_and_ties_are_shared_whatever_the_order():
    assert maj_at_k([2, 1, 1], [True, False, False], 4) == 1.0
    assert maj_at_k([1, 1], [True, False], 2) == maj_at_k([1, 1], [False, True], 2) == 0.5


def test_maj_at_1_is_pass_at_1():
    assert maj_at_k([3, 4, 5], [True, False, True], 1, num_abstentions=4) == pytest.approx(0.5)


def test_maj_at_k_of_a_thousand_samples_has_no_overflow():
    # All but one sample agree: with 500 voters, they always win.
    assert maj_at_k([999, 1], [True, False], 500) == pytest.approx(1.0, rel=1e-12)
    assert maj_at_k([999, 1], [False, True], 500) == 0.0


@pytest.mark.parametrize(
    ("votes", "is_right", "k", "shown"),
    [
        ([1], [True, False], 1, "votes [1]"),
        ([0, 1], [True, False], 1, "votes [0, 1]"),
        ([1, 1], [True, False], 3, "k = 3 and 2 samples"),
        ([1, 1], [True, False], 0, "at least 1, got 0"),
    ],
)
def test_votes_that_cannot_be_counted_are_refused(votes, is_right, k, shown):
    with pytest.raises(UsageError) as caught:
        maj_at_k(votes, is_right, k)
    assert shown in str(caught.value)


def test_distinct_right_answers_are_those_of_all_subsets():
    answers = ["a", "a", "b", "c", "c", "c", None, None]
    for k in range(1, len(answers) + 1):
        subsets = list(itertools.combinations(answers, k))
        total = sum(len({*subset} - {None}) for subset in subsets)
        expected = float(Fraction(total, len(subsets)))
        assert distinct_right_at_k([2, 1, 3], len(answers), k) == pytest.approx(expected, abs=1e-14)


def test_no_more_answers_are_right_than_there_are_samples():
    with pytest.raises(UsageError, match="got 4 of 3"):
        distinct_right_at_k([2, 2], 3, 1)


def test_one_run_gives_the_whole_curve():
    assert ladder(16) == (1, 2, 4, 8, 16)
    assert ladder(1) == (1,)
    assert ladder(100)[-2:] == (64, 100)

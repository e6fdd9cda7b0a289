"""The terms of (7) against enumeration of softmax policies; means and chunks of token entropy."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

from gradmass.metrics.entropy import (
    entropy_terms,
    mean_entropy_nats,
    token_entropy_nats,
    token_entropy_of_hidden_nats,
)
from gradmass.types import UsageError

# Policies whose probabilities are whole numbers over a sum, so that a batch can hold every action
# exactly in proportion: sampling without sampling noise.
COUNTS = [(1, 1), (5, 3, 2, 1, 1), (7, 1), (1, 2, 3, 4, 5, 6)]


def entropy(p):
    return -math.fsum(x * math.log(x) for x in p if x > 0)


def batch_of(counts, weights):
    """Every action as often as its count: weights, log-probabilities, entropies."""
    total = sum(counts)
    h = entropy([count / total for count in counts])
    rows = [
        (weight, math.log(count / total), h)
        for count, weight in zip(counts, weights, strict=True)
        for _ in range(count)
    ]
    return tuple(zip(*rows, strict=True))


def slope(function):
    step = 1e-5
    return (function(step) - function(-step)) / (2 * step)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("seed", range(3))
def test_terms_are_those_of_the_enumerated_policy(counts, seed):
    weights = np.random.default_rng(seed).normal(size=len(counts)).tolist()
    p = [count / sum(counts) for count in counts]
    terms = entropy_terms(*batch_of(counts, weights))
    mean_weight = math.fsum(x * w for x, w in zip(p, weights, strict=True))
    both = math.fsum(x * w * math.log(x) for x, w in zip(p, weights, strict=True))
    assert terms.mean_weight == pytest.approx(mean_weight, abs=1e-12)
    assert terms.drift == pytest.approx(mean_weight * entropy(p), abs=1e-12)
    assert terms.covariance == pytest.approx(both + mean_weight * entropy(p), abs=1e-12)
    assert terms.covariance_within == pytest.approx(terms.covariance, abs=1e-12)


@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("seed", range(3))
def test_terms_give_the_change_of_entropy_of_both_exact_steps(counts, seed):
    weights = np.random.default_rng(seed).normal(size=len(counts)).tolist()
    p = [count / sum(counts) for count in counts]
    terms = entropy_terms(*batch_of(counts, weights))

    def natural(eta):
        mass = [x * math.exp(eta * w) for x, w in zip(p, weights, strict=True)]
        return entropy([m / sum(mass) for m in mass])

    def unnormalised(eta):
        return entropy([x * (1 + eta * w) for x, w in zip(p, weights, strict=True)])

    assert slope(natural) == pytest.approx(-terms.covariance, abs=1e-8)
    expected = terms.drift - terms.mean_weight - terms.covariance
    assert slope(unnormalised) == pytest.approx(expected, abs=1e-8)


def test_a_success_weight_and_a_failure_weight_make_the_drift_of_the_masses():
    # p = 2/3 right with weight 1/2, 1/3 wrong with -2: m_S = 1/3, m_F = 2/3.
    terms = entropy_terms(*batch_of((2, 1), (0.5, -2.0)))
    assert terms.drift == pytest.approx((1 / 3 - 2 / 3) * entropy([2 / 3, 1 / 3]), abs=1e-15)


def test_within_contexts_the_covariance_is_that_of_the_policies_and_over_all_it_is_not():
    # Two contexts, drawn equally often: a certain one with large weights, an uncertain one.
    first, second = ((7, 1), (3.0, 3.0)), ((4, 4), (1.0, -1.0))
    batches = [batch_of(*first), batch_of(*second)]
    together = tuple(a + b for a, b in zip(*batches, strict=True))
    terms = entropy_terms(*together)
    # Equal weights within a context change no distribution.
    assert terms.covariance_within == pytest.approx(0.0, abs=1e-15)
    assert abs(terms.covariance) > 0.1


def test_no_tokens_have_no_terms_and_bad_ones_are_refused():
    assert entropy_terms([], [], []) is None
    with pytest.raises(UsageError, match="finite log-probability, got -inf"):
        entropy_terms([1.0], [-math.inf], [0.0])
    with pytest.raises(UsageError, match="finite weight, got nan"):
        entropy_terms([math.nan], [-1.0], [0.0])
    with pytest.raises(UsageError, match=r"\(1,\), \(2,\) and \(1,\)"):
        entropy_terms([1.0], [-1.0, -1.0], [0.0])


# Means over tokens


def test_padding_is_in_no_mean():
    entropies, mask = [[1.0, 2.0, 9.0], [3.0, math.nan, 9.0]], [[1, 1, 0], [1, 0, 0]]
    assert mean_entropy_nats(entropies, mask) == 2.0
    assert mean_entropy_nats(entropies, mask, "sequence") == 2.25


def test_no_token_at_all_is_a_missing_value_and_not_an_entropy_of_0():
    for kind in ("token", "sequence"):
        assert mean_entropy_nats([[1.0, 2.0]], [[0, 0]], kind) is None
    # An answer without a token is left out of the mean over answers.
    assert mean_entropy_nats([[1.0], [5.0]], [[1], [0]], "sequence") == 1.0


def test_means_of_other_shapes_and_kinds_are_refused():
    with pytest.raises(UsageError, match=r"got \(1, 2\) and \(1, 1\)"):
        mean_entropy_nats([[1.0, 2.0]], [[1]])
    with pytest.raises(UsageError, match="token or sequence, got 'batch'"):
        mean_entropy_nats([[1.0]], [[1]], "batch")


# Chunks of tokens


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7)])
@pytest.mark.parametrize("chunk_rows", [1, 2, 4, 100])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_chunks_give_what_the_whole_gives(shape, chunk_rows, library):
    rng = np.random.default_rng(0)
    hidden, head, bias = rng.normal(size=shape), rng.normal(size=(11, 7)), rng.normal(size=11)
    whole = token_entropy_nats((hidden @ head.T + bias) / 0.7)
    if library == "torch":
        hidden, head, bias = (torch.as_tensor(x) for x in (hidden, head, bias))
    found = token_entropy_of_hidden_nats(hidden, head, bias, temperature=0.7, chunk_rows=chunk_rows)
    assert tuple(found.shape) == shape[:-1]
    np.testing.assert_allclose(np.asarray(found), whole, rtol=1e-12, atol=1e-12)


def test_a_vocabulary_of_151936_never_needs_all_logits():
    num_tokens, num_words, rows = 500, 151_936, 16
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(1, num_tokens, 4)).astype(np.float32)
    head = rng.normal(size=(num_words, 4)).astype(np.float32)
    tracemalloc.start()
    found = token_entropy_of_hidden_nats(hidden, head, chunk_rows=rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * rows * num_words * 4  # a few temporaries of a chunk
    assert peak < 0.3 * num_tokens * num_words * 4
    for t in (0, 15, 16, num_tokens - 1):
        logits = hidden[0, t].astype(np.float64) @ head.T.astype(np.float64)
        p = np.exp(logits - logits.max())
        p /= p.sum()
        assert found[0, t] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_half_precision_heads_lose_little_over_a_large_vocabulary():
    torch.manual_seed(0)
    logits = torch.randn(1, 151_936)
    # One hidden entry per logit: the product with the identity's rows is exact.
    exact = float(token_entropy_nats(logits)[0])
    hidden, head = torch.ones(1, 1), logits.T.contiguous()
    half = token_entropy_of_hidden_nats(hidden.bfloat16(), head.bfloat16())
    assert half.dtype == torch.float32
    assert abs(float(half[0]) - exact) < 0.01


def test_a_forbidden_word_adds_nothing():
    # exp(logp) * logp would be 0 * -inf.
    found = token_entropy_of_hidden_nats(
        np.ones((1, 1)), np.zeros((4, 1)), np.array([0.0, 0.0, -np.inf, -np.inf])
    )
    assert found[0] == pytest.approx(math.log(2), rel=1e-15)


@pytest.mark.parametrize(
    ("hidden", "head", "options", "shown"),
    [
        ((2, 3), (5, 4), {}, r"\(2, 3\) and \(5, 4\)"),
        ((2, 3), (5,), {}, r"\(2, 3\) and \(5,\)"),
        ((2, 3), (5, 3), {"temperature": 0.0}, "above 0, got 0.0"),
        ((2, 3), (5, 3), {"chunk_rows": 0}, "at least 1, got 0"),
    ],
)
def test_what_makes_no_logits_is_refused(hidden, head, options, shown):
    with pytest.raises(UsageError, match=shown):
        token_entropy_of_hidden_nats(np.zeros(hidden), np.zeros(head), **options)

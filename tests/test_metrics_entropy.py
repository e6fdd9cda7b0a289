"""Entropies against plain Python, scipy and closed forms."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.metrics.entropy import entropy_nats, num_effective, token_entropy_nats
from gradmass.types import UsageError


def softmax_entropy(logits: list[float]) -> float:
    """-sum p log p with p = exp(z) / sum exp(z), in plain Python."""
    highest = max(logits)
    masses = [math.exp(logit - highest) for logit in logits]
    probabilities = [mass / math.fsum(masses) for mass in masses]
    return -math.fsum(p * math.log(p) for p in probabilities if p > 0)


def numpy_of(array):
    return array.detach().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


@pytest.mark.parametrize("make", [np.array, lambda x: torch.tensor(x, dtype=torch.float64)])
def test_token_entropy_is_that_of_the_softmax(make):
    logits = np.random.default_rng(0).normal(0, 4, (3, 5, 40)).tolist()
    entropy = token_entropy_nats(make(logits))
    assert tuple(entropy.shape) == (3, 5)
    expected = [[softmax_entropy(row) for row in rows] for rows in logits]
    np.testing.assert_allclose(numpy_of(entropy), expected, rtol=1e-13)


def test_token_entropy_agrees_with_scipy():
    logits = np.random.default_rng(1).normal(0, 3, (7, 100))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        token_entropy_nats(logits), scipy.stats.entropy(probabilities, axis=-1), rtol=1e-12
    )


@pytest.mark.parametrize("size", [1, 2, 1_000])
@pytest.mark.parametrize("level", [0.0, -1e4, 1e30])
def test_equal_logits_have_entropy_log_of_the_vocabulary(size, level):
    assert token_entropy_nats(np.full((1, size), level))[0] == pytest.approx(math.log(size))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_forbidden_tokens_add_nothing(make):
    open_logits = [0.3, -1.0, 2.0]
    logits = make([[0.3, -math.inf, -1.0, 2.0, -math.inf], [-math.inf, -math.inf, 5.0, 0.0, 0.0]])
    entropy = numpy_of(token_entropy_nats(logits))
    expected = [softmax_entropy(open_logits), softmax_entropy([5.0, 0.0, 0.0])]
    np.testing.assert_allclose(entropy, expected, rtol=1e-6)


def test_a_certain_token_has_entropy_exactly_zero():
    logits = np.array([[-np.inf, 3.0, -np.inf], [0.0, 1e9, 0.0]])
    assert token_entropy_nats(logits).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_rows_without_a_softmax_are_nan_and_the_others_are_not(make):
    logits = make(
        [
            [-math.inf, -math.inf, -math.inf],
            [math.inf, 0.0, 0.0],
            [math.nan, 0.0, 0.0],
            [math.nan, math.inf, -math.inf],
            [0.0, 0.0, 0.0],
        ]
    )
    entropy = numpy_of(token_entropy_nats(logits))
    assert np.isnan(entropy).tolist() == [True, True, True, True, False]
    assert entropy[4] == pytest.approx(math.log(3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_logits_are_computed_in_float32(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn((4, 500), generator=generator).to(dtype)
    entropy = token_entropy_nats(logits)
    assert entropy.dtype == torch.float32
    expected = [softmax_entropy(row) for row in logits.double().tolist()]
    np.testing.assert_allclose(entropy.numpy(), expected, rtol=2e-6)


@pytest.mark.parametrize(
    ("dtype", "result"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.int64, np.float32),
    ],
)
def test_the_dtype_of_the_entropy(dtype, result):
    entropy = token_entropy_nats(np.array([[0, 1], [2, 2]], dtype=dtype))
    assert entropy.dtype == result
    assert entropy[1] == pytest.approx(math.log(2))


def test_logits_are_not_changed():
    logits = np.array([[1.0, -np.inf, 2.0], [-np.inf, -np.inf, -np.inf]])
    before = logits.copy()
    token_entropy_nats(logits)
    np.testing.assert_array_equal(logits, before)


def test_one_row_gives_a_single_number():
    entropy = token_entropy_nats(np.zeros(4))
    assert entropy.shape == ()
    assert float(entropy) == pytest.approx(math.log(4))


def test_entropy_of_no_tokens_is_empty():
    assert token_entropy_nats(np.zeros((0, 4))).shape == (0,)


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(-math.inf), min_size=1, max_size=30))
def test_entropy_is_between_zero_and_log_of_the_open_tokens(logits):
    num_open = sum(logit > -math.inf for logit in logits)
    entropy = float(token_entropy_nats(np.array([logits]))[0])
    if num_open == 0:
        assert math.isnan(entropy)
    else:
        assert 0 <= entropy <= math.log(num_open) + 1e-12
        assert entropy == pytest.approx(softmax_entropy(logits), abs=1e-12)


def test_the_gradient_of_the_entropy_is_that_of_the_softmax():
    # dH/dz_v = -p_v (log p_v + H); a forbidden token gets 0.
    logits = torch.tensor([0.5, -1.0, -math.inf, 2.0], dtype=torch.float64, requires_grad=True)
    token_entropy_nats(logits).backward()
    masses = [math.exp(z) for z in logits.tolist()]
    p = [mass / sum(masses) for mass in masses]
    entropy = softmax_entropy(logits.tolist())
    expected = [-x * (math.log(x) + entropy) if x > 0 else 0.0 for x in p]
    np.testing.assert_allclose(logits.grad.numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_logits_without_a_vocabulary_are_refused(shape):
    with pytest.raises(UsageError, match="got shape"):
        token_entropy_nats(np.zeros(shape))


# A finite distribution


@settings(derandomize=True, deadline=None, database=None, max_examples=200)
@given(st.lists(st.floats(0, 1e3), max_size=20))
def test_entropy_of_weights_is_that_of_their_shares(weights):
    total = math.fsum(weights)
    shares = [weight / total for weight in weights if weight > 0]
    expected = -math.fsum(p * math.log(p) for p in shares if p > 0)
    assert entropy_nats(weights) == pytest.approx(expected, abs=1e-12)
    assert entropy_nats(weights) >= 0
    effective = num_effective(weights)
    assert effective == pytest.approx(math.exp(expected) if shares else 0.0, rel=1e-12)


def test_entropy_does_not_depend_on_the_scale_of_the_weights():
    expected = entropy_nats([1.0, 2.0, 5.0])
    for scale in (1e-300, 1e-9, 7.0, 1e307):
        assert entropy_nats([scale, 2 * scale, 5 * scale]) == pytest.approx(expected, rel=1e-14)
    assert entropy_nats([5e-324, 5e-324]) == pytest.approx(math.log(2))


@pytest.mark.parametrize("weights", [[], [0.0], [0.0, 0.0, 0.0]])
def test_no_weight_at_all_has_entropy_and_effective_number_zero(weights):
    assert entropy_nats(weights) == 0.0
    assert num_effective(weights) == 0.0


@pytest.mark.parametrize("weights", [[0.25], [0.0, 1e-12, 0.0], [7]])
def test_a_single_answer_counts_as_one(weights):
    assert math.copysign(1, entropy_nats(weights)) == 1.0
    assert entropy_nats(weights) == 0.0
    assert num_effective(weights) == 1.0


def test_the_effective_number_of_equal_answers_is_their_number():
    assert num_effective(np.full(60, 1e-3)) == pytest.approx(60)
    assert num_effective([0.4, 0.4, 0.0, 0.0]) == pytest.approx(2)
    assert 1 < num_effective([0.9, 0.1]) < 2


@pytest.mark.parametrize(
    ("weights", "shown"),
    [
        ([0.5, -1e-9], "weight 1 of a distribution is -1e-09"),
        ([math.nan], "weight 0 of a distribution is nan"),
        ([0.1, 0.2, math.inf], "weight 2 of a distribution is inf"),
        ([[0.5, 0.5]], "got shape (1, 2)"),
        (0.5, "got shape ()"),
    ],
)
def test_weights_that_are_no_distribution_are_refused(weights, shown):
    for function in (entropy_nats, num_effective):
        with pytest.raises(UsageError) as caught:
            function(weights)
        assert shown in str(caught.value)

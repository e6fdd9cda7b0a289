"""Shared directions and correlations of hidden states: singular values, pairs, planted vectors."""

import math
from itertools import combinations

import numpy as np
import pytest
import scipy.linalg

from gradmass.metrics.correlation import mean_pairwise_correlation, split_change, split_shared
from gradmass.metrics.rank import top1_share
from gradmass.types import UsageError


def cosine(a, b):
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (4, 9), (9, 4), (30, 30)])
def test_the_shared_direction_is_the_first_right_singular_vector(shape):
    vectors = np.random.default_rng(0).normal(size=shape) + 0.5
    _, sigma, right = scipy.linalg.svd(vectors)
    shared = split_shared(vectors)
    sign = 1 if (vectors @ right[0]).sum() >= 0 else -1
    np.testing.assert_allclose(shared.direction_D, sign * right[0], atol=1e-9)
    assert shared.energy_share == pytest.approx(sigma[0] ** 2 / (sigma**2).sum(), rel=1e-12)
    np.testing.assert_allclose(
        np.outer(shared.along_N, shared.direction_D) + shared.rest_ND, vectors, atol=1e-12
    )
    np.testing.assert_allclose(shared.rest_ND @ shared.direction_D, 0, atol=1e-12)
    assert shared.along_N.sum() >= 0


def test_vectors_of_nothing_share_nothing():
    assert split_shared(np.zeros((3, 4))) is None


def test_the_shared_direction_does_not_depend_on_scale():
    vectors = np.random.default_rng(1).normal(size=(5, 7)) + 1
    for scale in (1e-200, 1e200):
        np.testing.assert_allclose(
            split_shared(scale * vectors).direction_D, split_shared(vectors).direction_D, atol=1e-9
        )


@pytest.mark.parametrize("shape", [(2, 3), (6, 4), (20, 50)])
def test_correlation_is_the_mean_cosine_of_all_pairs(shape):
    vectors = np.random.default_rng(2).normal(size=shape)
    vectors[0] = 0  # no direction
    pairs = [cosine(a, b) for a, b in combinations(vectors[1:].tolist(), 2)]
    expected = math.fsum(pairs) / len(pairs) if pairs else None
    assert mean_pairwise_correlation(vectors) == (
        None if expected is None else pytest.approx(expected, abs=1e-12)
    )


def test_correlation_across_groups_leaves_out_pairs_within_them():
    rng = np.random.default_rng(3)
    vectors, ids = rng.normal(size=(12, 5)), rng.integers(0, 4, size=12)
    pairs = [
        cosine(vectors[i].tolist(), vectors[j].tolist())
        for i, j in combinations(range(12), 2)
        if ids[i] != ids[j]
    ]
    expected = math.fsum(pairs) / len(pairs)
    assert mean_pairwise_correlation(vectors, ids) == pytest.approx(expected, abs=1e-12)
    assert mean_pairwise_correlation(vectors, np.zeros(12, int)) is None
    assert mean_pairwise_correlation(vectors[:1]) is None


@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_planted_correlations_are_found(rho):
    # x_i = sqrt(rho) c + sqrt(1 - rho) e_i with unit c, e_i nearly orthogonal: cosines of rho.
    rng, num, size = np.random.default_rng(4), 40, 20_000
    common, own = rng.normal(size=size), rng.normal(size=(num, size))
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    vectors = math.sqrt(rho) * common / np.linalg.norm(common) + math.sqrt(1 - rho) * own
    lengths = rng.uniform(0.1, 10, size=(num, 1))
    assert mean_pairwise_correlation(lengths * vectors) == pytest.approx(rho, abs=0.01)


def test_what_only_one_side_shares_is_halved_by_the_direction_all_share():
    # All hidden states share a large direction; beside it, right ones have c = sqrt(.6) in common
    # and wrong ones nothing. The shared direction takes the mean of all with it, c / 2 on each
    # side: cosines of .15 / (.15 + .4) among right ones and .15 / (.15 + 1) among wrong ones.
    rng, size = np.random.default_rng(5), 4_000
    shared, common = np.linalg.qr(rng.normal(size=(size, 2)))[0].T
    own = rng.normal(size=(80, size)) / math.sqrt(size)
    rest = own.copy()
    rest[:40] = math.sqrt(0.6) * common + math.sqrt(0.4) * own[:40]
    found = split_shared(50 * shared + rest)
    assert abs(found.direction_D @ shared) > 0.999
    right, wrong = (mean_pairwise_correlation(part) for part in np.split(found.rest_ND, 2))
    assert right == pytest.approx(0.15 / 0.55, abs=0.03)
    assert wrong == pytest.approx(0.15 / 1.15, abs=0.03)


def test_the_change_of_the_head_splits_as_in_equation_8():
    rng = np.random.default_rng(6)
    weights, v, h = rng.normal(size=30), rng.normal(size=(30, 8)), rng.normal(size=(30, 5)) + 1
    change = sum(w * np.outer(a, b) for w, a, b in zip(weights, v, h, strict=True))
    u = split_shared(h).direction_D
    first, second = np.zeros((8, 5)), np.zeros((8, 5))
    for w, a, b in zip(weights, v, h, strict=True):
        alpha = float(b @ u)
        first += w * alpha * np.outer(a, u)
        second += w * np.outer(a, b - alpha * u)
    found = split_change(change, u)
    assert found == pytest.approx((np.linalg.norm(first), np.linalg.norm(second)), rel=1e-10)
    assert np.linalg.matrix_rank(first) == 1
    assert math.hypot(*found) == pytest.approx(np.linalg.norm(change), rel=1e-12)


def test_uncorrelated_rests_cancel_and_leave_rank_one():
    # The mechanism of (9): with weights and v_i alike, M_1 grows with the number of rollouts and
    # M_2 with its root if rho_perp = 0; if rho_perp = 1, with the number too, and r_1 stays.
    rng, size = np.random.default_rng(7), 200
    shared, other = np.eye(size)[:2]
    shares = {}
    for num in (10, 1_000):
        for rho in (0.0, 1.0):
            own = rng.normal(size=(num, size)) / math.sqrt(size) * (1 - shared)
            rest = other if rho else own
            v = rng.normal(size=(num, 3)) * 0.1 + np.array([1.0, -1.0, 0.5])
            # Rests of another v than the shared direction's, so that they are no part of M_1.
            change = v.T @ np.tile(shared, (num, 1)) + v[:, ::-1].T @ (rest + np.zeros_like(own))
            first, second = split_change(change, shared)
            shares[num, rho] = second / first
            assert top1_share(change) >= 1 / (1 + (second / first) ** 2) - 1e-9
    assert shares[1_000, 0.0] < 0.2 * shares[10, 0.0]
    assert shares[1_000, 1.0] == pytest.approx(shares[10, 1.0], rel=0.1)


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: split_shared([1.0, 2.0]), r"\(2,\)"),
        (lambda: split_shared(np.zeros((0, 3))), r"\(0, 3\)"),
        (lambda: split_shared([[1.0], [math.nan]]), "row 1 has NaN"),
        (lambda: mean_pairwise_correlation([[1.0], [2.0]], [0]), r"2 vectors .* \(1,\)"),
        (lambda: split_change([[1.0, 2.0]], [1.0]), r"\(1, 2\) has no direction of shape \(1,\)"),
        (lambda: split_change([[1.0, 2.0]], [1.0, 1.0]), "one of length 1.41421"),
    ],
)
def test_what_has_no_direction_is_refused(call, shown):
    with pytest.raises(UsageError, match=shown):
        call()

"""Singular values from a few products: against exact ones, bars included."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmass.metrics.bars import least_singular_value
from gradmass.metrics.krylov import MAX_PASSES, krylov_spectrum, start_block
from gradmass.metrics.rank import is_hidden
from gradmass.metrics.spectrum import (
    factor_noise_share,
    factor_spectrum,
    gram_spectrum,
    noise_share,
)
from gradmass.types import UsageError

SHAPE = (900, 400)


def orthonormal(num_rows, num_columns, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(num_rows, num_columns)))[0]


def with_values(values, shape=SHAPE, seed=0):
    """A matrix of given singular values."""
    rank = len(values)
    left, right = orthonormal(shape[0], rank, seed), orthonormal(shape[1], rank, seed + 1)
    return (left * np.asarray(values)) @ right.T


def search(matrix, top=8, seed=0):
    """The spectrum from float32 products, and how many of them it took."""
    matrix32 = matrix.astype(np.float32)
    count = 0

    def product(block):
        nonlocal count
        count += 1
        return (matrix32.T @ (matrix32 @ block.astype(np.float32))).astype(np.float64)

    start = start_block(matrix.shape[1], top, seed=seed)
    energy = float(np.sum(matrix**2))
    return krylov_spectrum(product, start, product(start), energy, top=top), count


def noise(shape=SHAPE, seed=5):
    return np.random.default_rng(seed).normal(size=shape)


EDGE = math.sqrt(SHAPE[0]) + math.sqrt(SHAPE[1])
MATRICES = {
    "spiked": with_values(EDGE * np.array([9, 5, 3, 2.0])) + noise(),
    "one spike far above": with_values([1e4 * EDGE]) + noise(),
    "power law 1": with_values(1 / np.arange(1, 401)),
    "power law 1/2": with_values(np.arange(1, 401) ** -0.5),
    "exponential": with_values(0.5 ** np.arange(30)),
    "noise": noise(),
    "noise, wide": noise((400, 900)),
    "noise, square": noise((500, 500)),
    "all equal": with_values(np.ones(400)),
    "pairs": with_values([5, 5, 3, 3, 2, 2, 1, 1, 1]),
}


@pytest.mark.parametrize("name", MATRICES)
def test_values_are_those_of_the_decomposition_within_a_percent_and_r1_within_a_thousandth(name):
    matrix = MATRICES[name]
    exact = np.linalg.svd(matrix, compute_uv=False)
    found, num_products = search(matrix)
    assert num_products <= 2 * MAX_PASSES
    np.testing.assert_allclose(np.sqrt(found.squares_K), exact[:8], rtol=1e-2)
    share = found.squares_K[0] / np.sum(matrix**2)
    assert share == pytest.approx(exact[0] ** 2 / np.sum(exact**2), abs=1e-3)


@pytest.mark.parametrize("name", MATRICES)
def test_the_bars_hold_the_exact_values(name):
    matrix = MATRICES[name]
    exact = np.linalg.svd(matrix, compute_uv=False)[:8]
    found, _ = search(matrix)
    assert (found.squares_K <= exact**2 * (1 + 1e-5)).all()
    assert (exact**2 <= found.bounds_K * (1 + 1e-5)).all()
    assert found.error < 0.1


@st.composite
def spectra(draw):
    """300 singular values: power laws, spikes, clusters, edges."""
    k = np.arange(300)
    values = {
        "power law": lambda: (k + 1.0) ** -draw(st.floats(0, 3)),
        "exponential": lambda: np.exp(-draw(st.floats(0, 0.1)) * k),
        "clusters": lambda: draw(st.floats(0.1, 1)) ** (k // draw(st.integers(1, 40))),
        "edge": lambda: np.linspace(1, draw(st.floats(0, 1)), 300) ** draw(st.floats(0.2, 2)),
    }[draw(st.sampled_from(["power law", "exponential", "clusters", "edge"]))]()
    values[: draw(st.integers(0, 12))] *= draw(st.floats(1, 1e4))
    return np.sort(values)[::-1]


@settings(max_examples=300, deadline=None)
@given(values_N=spectra(), num_hidden=st.integers(0, 8), seed=st.integers(0, 2**31))
def test_the_bars_hold_for_any_spectrum_and_the_unluckiest_start(values_N, num_hidden, seed):
    start = start_block(300, 8, seed=seed)
    if num_hidden:  # some direction of the first few takes part as little as the bars allow for
        left, weights, right = np.linalg.svd(start[:num_hidden], full_matrices=False)
        weights[-1] = least_singular_value(16, num_hidden)
        start[:num_hidden] = (left * weights) @ right

    def product(block):
        return values_N[:, None] ** 2 * block

    found = krylov_spectrum(product, start, product(start), np.sum(values_N**2), top=8)
    exact_K = values_N[: len(found.squares_K)] ** 2
    assert (found.squares_K <= exact_K + 1e-8 * exact_K[0]).all()
    least = [np.linalg.svd(start[: k + 1], compute_uv=False)[-1] for k in range(len(exact_K))]
    is_promised = [s >= (1 - 1e-9) * least_singular_value(16, k + 1) for k, s in enumerate(least)]
    assert (exact_K <= found.bounds_K)[is_promised].all()


def test_a_start_without_a_direction_hides_it_from_the_bars():
    # What the probability in the bars is for, and the other test of them can see.
    values_N = np.linspace(1, 0.1, 300)
    values_N[0] = 2.0
    start = start_block(300, 8)
    start[0] = 0
    found = krylov_spectrum(
        lambda block: values_N[:, None] ** 2 * block,
        start,
        values_N[:, None] ** 2 * start,
        np.sum(values_N**2),
        top=8,
    )
    assert found.bounds_K[0] < values_N[0] ** 2


@pytest.mark.parametrize("name", ["noise", "spiked", "power law 1", "exponential"])
def test_the_last_half_pass_gives_the_values_of_a_whole_one(name):
    matrix = MATRICES[name]
    squares = 0

    def square(block):
        nonlocal squares
        squares += 1
        return (matrix @ block).T @ (matrix @ block)

    def product(block):
        return matrix.T @ (matrix @ block)

    start, energy = start_block(matrix.shape[1], 8), np.sum(matrix**2)
    found = krylov_spectrum(product, start, product(start), energy, top=8, square=square)
    whole = krylov_spectrum(product, start, product(start), energy, top=8)
    assert squares == (name in ("noise", "spiked"))  # bars of the others are narrow before
    np.testing.assert_allclose(found.squares_K, whole.squares_K, rtol=1e-9)
    np.testing.assert_allclose(found.bounds_K, whole.bounds_K, rtol=1e-6)
    images = matrix @ found.directions_NK
    np.testing.assert_allclose(np.linalg.norm(images, axis=0) ** 2, found.squares_K, rtol=1e-6)


def test_directions_are_those_of_the_decomposition():
    matrix = with_values([8.0, 4.0, 2.0, 1.0, 0.5])
    found, _ = search(matrix, top=3)
    right = np.linalg.svd(matrix, full_matrices=False)[2][:3]
    overlaps = np.abs(right @ found.directions_NK)
    np.testing.assert_allclose(overlaps, np.eye(3), atol=1e-4)
    np.testing.assert_allclose(found.directions_NK.T @ found.directions_NK, np.eye(3), atol=1e-9)


def test_small_values_beside_a_large_one_are_found_by_a_second_search():
    found, _ = search(with_values([1.0, 1e-3, 3e-4, 1e-5]))
    np.testing.assert_allclose(np.sqrt(found.squares_K), [1.0, 1e-3, 3e-4, 1e-5], rtol=1e-2)


def test_a_matrix_of_low_rank_has_no_more_values_than_that():
    found, num_products = search(with_values([3.0, 2.0]))
    np.testing.assert_allclose(np.sqrt(found.squares_K), [3.0, 2.0], rtol=1e-5)
    assert num_products <= 4


def test_the_search_is_seeded():
    first, again, other = (search(noise(), seed=seed)[0] for seed in (0, 0, 1))
    assert first.squares_K.tolist() == again.squares_K.tolist()
    assert first.squares_K.tolist() != other.squares_K.tolist()


# Factors


def test_the_values_of_a_product_of_factors_are_those_of_the_product():
    generator = np.random.default_rng(0)
    for num_rows, num_columns, rank in ((16, 32, 4), (5, 9, 7), (1, 8, 2), (8, 1, 2), (40, 6, 6)):
        left = generator.normal(size=(num_rows, rank))
        right = generator.normal(size=(rank, num_columns))
        exact = np.linalg.svd(left @ right, compute_uv=False)
        found, energy = factor_spectrum(left, right, top=8)
        num = min(8, rank, num_rows, num_columns)
        np.testing.assert_allclose(np.sqrt(found.squares_K), exact[:num], rtol=1e-10)
        assert energy == pytest.approx(np.sum((left @ right) ** 2), rel=1e-12)
        images = left @ right @ found.directions_NK
        np.testing.assert_allclose(np.linalg.norm(images, axis=0), exact[:num], rtol=1e-9)


def test_the_noise_of_factors_is_the_mean_over_products_of_gaussian_ones():
    generator = np.random.default_rng(1)
    for num_rows, num_columns, rank in ((60, 30, 4), (3, 20, 5)):
        shares = []
        for _ in range(400):
            product = generator.normal(size=(num_rows, rank)) @ generator.normal(
                size=(rank, num_columns)
            )
            squares = np.linalg.svd(product, compute_uv=False) ** 2
            shares.append(squares[0] / squares.sum())
        error = np.std(shares) * math.sqrt(1 / 400 + 1 / 40)
        found = factor_noise_share(num_rows, num_columns, rank)
        assert abs(found - np.mean(shares)) < 4 * error
    assert factor_noise_share(50, 70, 1) == pytest.approx(1.0)


def test_noise_is_sampled_for_small_shapes_and_the_edge_for_large_ones():
    assert noise_share(20, 64) == noise_share(64, 20) == pytest.approx(0.111, abs=0.004)
    assert noise_share(151_936, 3_584) == pytest.approx(0.000371, abs=1e-6)
    exact = np.mean(
        [
            s[0] ** 2 / np.sum(s**2)
            for s in (np.linalg.svd(noise((300, 300), seed), compute_uv=False) for seed in range(3))
        ]
    )
    assert noise_share(300, 300) == pytest.approx(exact, rel=0.04)


def test_a_gram_matrix_gives_exact_values_and_leaves_rounding_out():
    matrix = with_values([4.0, 1e-2, 1e-9], shape=(30, 20))
    found = gram_spectrum(matrix.T @ matrix, top=8)
    np.testing.assert_allclose(np.sqrt(found.squares_K), [4.0, 1e-2], rtol=1e-9)


def test_rounding_hides_what_it_can_carry_a_tenth_of():
    assert not is_hidden(1.0, 0.1)
    assert is_hidden(1.0, 0.11)
    assert not is_hidden(0.0, 0.0)
    with pytest.raises(UsageError, match="got -1"):
        is_hidden(-1.0, 0.0)

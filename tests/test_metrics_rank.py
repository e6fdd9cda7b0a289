"""r_1 against a full singular value decomposition, and its value for noise."""

import math

import numpy as np
import pytest
import scipy.linalg

from gradmass.metrics.rank import top1_share, top1_share_noise, top1_share_noise_edge
from gradmass.types import UsageError


def share_by_svd(matrix: np.ndarray) -> float:
    singular = scipy.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    return float(singular[0] ** 2 / math.fsum(s**2 for s in singular))


@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (3, 40), (40, 3), (1, 9), (9, 1), (64, 50)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_r1_is_that_of_the_singular_values(shape, dtype):
    matrix = np.random.default_rng(shape[0]).normal(size=shape).astype(dtype)
    share = top1_share(matrix)
    assert share == pytest.approx(share_by_svd(matrix), rel=1e-12)
    assert 1 / min(shape) - 1e-12 <= share <= 1


def test_r1_of_known_singular_values():
    assert top1_share(np.diag([1.0, 2.0, 3.0])) == pytest.approx(9 / 14, rel=1e-14)
    assert top1_share(np.diag([-3.0, 1.0])) == pytest.approx(0.9, rel=1e-14)
    assert top1_share(np.eye(5)) == pytest.approx(0.2, rel=1e-14)


def test_r1_of_an_outer_product_is_one():
    generator = np.random.default_rng(0)
    matrix = np.outer(generator.normal(size=30), generator.normal(size=12))
    assert top1_share(matrix) == pytest.approx(1.0, rel=1e-14)
    assert top1_share(matrix) <= 1.0


def test_r1_depends_on_neither_scale_nor_orientation():
    matrix = np.random.default_rng(1).normal(size=(8, 20))
    expected = top1_share(matrix)
    for scale in (1e-300, 1e-170, -3.0, 1e200):
        assert top1_share(scale * matrix) == pytest.approx(expected, rel=1e-12)
    assert top1_share(matrix.T) == pytest.approx(expected, rel=1e-12)


def test_r1_of_a_rank_one_part_in_noise():
    # |a|^2 |b|^2 of the outer product of unit vectors times s, over that and the energy of noise.
    generator = np.random.default_rng(2)
    a, b = generator.normal(size=300), generator.normal(size=200)
    signal = 300 * np.outer(a / np.linalg.norm(a), b / np.linalg.norm(b))
    noise = 0.1 * generator.normal(size=(300, 200))
    expected = 300**2 / (300**2 + np.sum(noise**2))
    assert top1_share(signal + noise) == pytest.approx(expected, rel=1e-3)


def test_a_tall_matrix_is_taken_in_blocks():
    matrix = np.random.default_rng(3).normal(size=(20_011, 4)).astype(np.float32)
    assert top1_share(matrix) == pytest.approx(share_by_svd(matrix), rel=1e-12)
    assert top1_share(matrix.T) == pytest.approx(share_by_svd(matrix), rel=1e-12)


def test_half_precision_and_integers_are_taken_in_float64():
    matrix = np.random.default_rng(4).integers(-9, 9, size=(6, 7))
    assert top1_share(matrix) == pytest.approx(share_by_svd(matrix), rel=1e-12)
    half = (matrix / 8).astype(np.float16)
    assert top1_share(half) == pytest.approx(share_by_svd(half), rel=1e-12)


def test_no_change_has_no_first_direction():
    assert top1_share(np.zeros((4, 6))) is None


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ([[1.0, math.nan], [0.0, 1.0]], "got nan at row 0, column 1"),
        ([[1.0, 0.0], [-math.inf, 1.0]], "got -inf at row 1, column 0"),
        ([1.0, 2.0], "got shape (2,)"),
        (np.zeros((0, 3)), "got shape (0, 3)"),
        (np.zeros((2, 2, 2)), "got shape (2, 2, 2)"),
    ],
)
def test_input_without_an_r1_is_refused(matrix, shown):
    with pytest.raises(UsageError) as caught:
        top1_share(matrix)
    assert shown in str(caught.value)


# Noise


def test_noise_of_20_by_64_has_an_r1_of_eleven_percent():
    assert top1_share_noise((20, 64)) == pytest.approx(0.111, abs=0.002)
    assert top1_share_noise_edge((20, 64)) == pytest.approx(0.1215, abs=0.0001)


def test_noise_of_an_output_head_has_next_to_none():
    assert round(top1_share_noise_edge((151_936, 3_584)), 4) == 0.0004


def test_sampled_noise_is_the_mean_over_singular_value_decompositions():
    generator = np.random.default_rng(99)
    brute = [share_by_svd(generator.normal(size=(7, 30))) for _ in range(2_000)]
    standard_error = np.std(brute) * math.sqrt(1 / 2_000 + 1 / 1_000)
    sampled = top1_share_noise((7, 30), num_draws=1_000)
    assert abs(sampled - np.mean(brute)) < 4 * standard_error


def test_sampled_noise_of_two_columns_is_its_expectation():
    # The squared singular values l1 > l2 of a 2 x 2 Gaussian matrix have a density proportional to
    # (l1 - l2) exp(-(l1 + l2) / 2) / sqrt(l1 l2). For r = l1 / (l1 + l2) that makes
    # (2r - 1) / sqrt(r (1 - r)) on [1/2, 1], whose mean is 1/2 + pi/8.
    sampled = top1_share_noise((2, 2), num_draws=5_000)
    assert sampled == pytest.approx(0.5 + math.pi / 8, abs=0.01)


def test_the_edge_is_reached_by_large_matrices_and_lies_above():
    ratios = [
        top1_share_noise(shape, num_draws=5) / top1_share_noise_edge(shape)
        for shape in ((10, 20), (40, 80), (400, 800))
    ]
    assert ratios == sorted(ratios)
    assert 0.95 < ratios[-1] < 1


def test_noise_is_seeded_and_does_not_depend_on_orientation():
    assert top1_share_noise((4, 9), num_draws=50) == top1_share_noise((4, 9), num_draws=50)
    assert top1_share_noise((4, 9), num_draws=50) != top1_share_noise((4, 9), num_draws=50, seed=1)
    turned = top1_share_noise((9, 4), num_draws=2_000)
    assert turned == pytest.approx(top1_share_noise((4, 9), num_draws=2_000), rel=0.02)
    assert top1_share_noise_edge((9, 4)) == top1_share_noise_edge((4, 9))


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1)])
def test_a_single_row_is_of_rank_one_even_as_noise(shape):
    assert top1_share_noise(shape, num_draws=3) == pytest.approx(1.0)
    assert top1_share_noise_edge(shape) == 1.0


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: top1_share_noise((0, 4)), "got shape (0, 4)"),
        (lambda: top1_share_noise((4,)), "got shape (4,)"),
        (lambda: top1_share_noise((4, 4), num_draws=0), "got 0"),
        (lambda: top1_share_noise((151_936, 3_584)), "151936 x 3584 is too large"),
        (lambda: top1_share_noise_edge((3, -1)), "got shape (3, -1)"),
    ],
)
def test_shapes_without_noise_are_refused(call, shown):
    with pytest.raises(UsageError) as caught:
        call()
    assert shown in str(caught.value)

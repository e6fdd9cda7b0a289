"""What the bars are made of: against exact fractions, SciPy's quantiles and drawn matrices."""

from fractions import Fraction

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import chi2

from gradmass.metrics.bars import MISS, least_singular_value, orthonormal_polynomials, upper_ends


def test_the_least_singular_value_of_one_row_is_the_quantile_of_chi():
    for width in (2, 16, 17, 24, 72):
        assert least_singular_value(width, 1) ** 2 == pytest.approx(chi2.ppf(MISS, width), rel=1e-6)


@pytest.mark.parametrize(("width", "k"), [(16, 8), (608, 600), (708, 700), (1508, 1500)])
def test_it_is_the_quantile_that_bounds_that_of_many_rows(width, k):
    """Where Chen and Dongarra's bound reaches the probability, however long its series is."""
    log_ratio = (
        np.log(np.pi) / 2 + gammaln((width + 1) / 2) - gammaln(k / 2) - gammaln((width - k + 2) / 2)
    )
    expected = chi2.ppf(MISS / np.exp(log_ratio), width - k + 1)
    assert least_singular_value(width, k) ** 2 == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("width", "k"), [(16, 2), (16, 8), (20, 5), (12, 12)])
def test_drawn_matrices_fall_below_the_least_singular_value_as_rarely_as_it_says(width, k):
    miss, num_draws = 0.01, 20_000
    draws = np.random.default_rng(0).normal(size=(num_draws, k, width))
    least = np.linalg.svd(draws, compute_uv=False)[:, -1]
    share = np.mean(least < least_singular_value(width, k, miss))
    noise = np.sqrt(miss / num_draws)
    assert 0.3 * miss < share < miss + 4 * noise


def test_the_polynomials_have_the_least_quadratic_form_for_their_value():
    # min_p sum w p(t)^2 with p(x) = 1 over p = a + b t: by Lagrange, 1 / (v^T M^-1 v) with the
    # moment matrix M and v = (1, x).
    nodes, weights, x = [1.0, 2.0, 4.0], [3.0, 1.0, 2.0], 5
    moments = [
        sum(Fraction(w) * Fraction(t) ** k for t, w in zip(nodes, weights, strict=True))
        for k in range(3)
    ]
    determinant = moments[0] * moments[2] - moments[1] ** 2
    form = (moments[2] - 2 * x * moments[1] + x * x * moments[0]) / determinant
    at_nodes, at_x = orthonormal_polynomials(
        np.array(nodes), np.array(weights), 2, np.array([float(x)])
    )
    np.testing.assert_allclose((at_nodes * weights) @ at_nodes.T, np.eye(2), atol=1e-12)
    assert np.sum(at_x**2) == pytest.approx(float(form), rel=1e-12)


def test_there_are_no_more_polynomials_than_nodes():
    at_nodes, at_x = orthonormal_polynomials(
        np.array([2.0, 1.0]), np.array([1.0, 1.0]), 5, np.array([3.0])
    )
    assert at_nodes.shape == (2, 2)
    assert at_x.shape == (2, 1)


def starts_of(*weights):
    """Rows ``u_j^T S`` of these norms, each in a column of its own."""
    return np.diag(weights) @ np.eye(len(weights), 16)


def test_a_value_that_may_have_a_second_direction_needs_more_weight_than_the_first():
    # With one block the polynomial is 1: the others together have the norm of their weights.
    first, second = least_singular_value(16, 1), least_singular_value(16, 2)
    ritz, none = np.array([4.0, 2.0, 1.0]), np.zeros(3)
    between = upper_ends(ritz, none, starts_of(4, 4, (first + second) / 2), 1, 2)
    np.testing.assert_allclose(between, [4.0, 4.0], rtol=2e-6)  # the second is known not to be more
    below = upper_ends(ritz, none, starts_of(4, 4, 0.9 * second), 1, 2)
    np.testing.assert_allclose(below, [4.0, 2.0], rtol=2e-6)
    above = upper_ends(ritz, none, starts_of(4, 4, 1.1 * first), 1, 2)
    assert np.isinf(above).all()


def test_a_value_with_a_residual_ends_where_its_part_is_used_up():
    # e |u^T S| / (x - t) = s
    end = 4 + 0.02 * 3 / least_singular_value(16, 1)
    (found,) = upper_ends(np.array([4.0, 1.0]), np.array([0.02, 0]), starts_of(3, 0), 1, 1)
    assert end <= found < 4 + 1.08 * (end - 4)  # the next step of the search


def test_two_nodes_leave_what_the_best_line_does():
    # p(x) = 1 on a line through 0 at t = 1 leaves (2 - 1) / (x - 1) of the weight at t = 2, if it
    # is the only one; as much as s at the end.
    end = 1 + 4 / least_singular_value(16, 1)
    found = upper_ends(np.array([2.0, 1.0]), np.array([9.0, 9.0]), starts_of(4, 1e4), 2, 1)
    assert 0.99 * end <= found[0] < 1.08 * end

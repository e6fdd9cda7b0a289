"""Numbers that sum up a curve, against values known beforehand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradmass.metrics.curves import (
    first_crossing,
    half_life,
    highest_common,
    mean_under,
    sigmoid_fit,
    value_at_first,
)
from gradmass.types import UsageError


@pytest.mark.parametrize("ceiling", [0.4, 0.8])
@pytest.mark.parametrize("midpoint", [2_000.0, 8_000.0])
@pytest.mark.parametrize("steepness", [1.0, 2.5])
def test_a_sigmoid_is_found_again(ceiling, midpoint, steepness):
    x_E = np.linspace(0, 40_000, 21)
    rise = [0.0, *(1 / (1 + (midpoint / x) ** steepness) for x in x_E[1:])]
    y_E = [0.1 + (ceiling - 0.1) * share for share in rise]
    fit = sigmoid_fit(x_E, y_E)
    assert fit is not None
    assert fit.is_identified
    assert fit.start == 0.1
    assert fit.ceiling == pytest.approx(ceiling, abs=1e-3)
    assert fit.midpoint == pytest.approx(midpoint, rel=1e-2)
    assert fit.residual < 1e-4


def test_a_curve_that_has_not_bent_has_no_identified_ceiling():
    x_E = np.linspace(0, 10_000, 11)
    fit = sigmoid_fit(x_E, 0.1 + 0.05 * (x_E / 10_000) ** 3)
    assert fit is not None
    assert not fit.is_identified
    assert sigmoid_fit(x_E, np.full(11, 0.2)) is None
    assert sigmoid_fit(x_E, np.linspace(0.4, 0.2, 11)) is None


@given(st.floats(0.01, 0.99))
def test_a_level_is_met_where_a_straight_line_meets_it(level):
    place = first_crossing([0, 100, 200], [0.0, 1.0, 0.0], level)
    assert place == pytest.approx(100 * level)


def test_what_is_read_at_a_level_is_read_the_first_time():
    pass_1, pass_100 = [0.2, 0.3, 0.25, 0.4], [0.9, 0.8, 0.7, 0.6]
    assert value_at_first(pass_1, pass_100, 0.28) == pytest.approx(0.82)  # not between the last two
    assert value_at_first(pass_1, pass_100, 0.2) == 0.9
    assert value_at_first(pass_1, pass_100, 0.41) is None
    assert value_at_first([0.2, math.nan, 0.4], [0.9, 0.1, 0.7], 0.3) == pytest.approx(0.8)
    assert highest_common(pass_1, [0.1, 0.35, math.nan]) == 0.35


def test_the_area_under_a_straight_line_is_its_middle():
    assert mean_under([0, 1, 4], [0.0, 0.25, 1.0]) == pytest.approx(0.5)


def test_the_half_life_of_a_decay_is_that_of_the_decay():
    x_E = np.arange(0, 1000, 1.0)
    assert half_life(x_E, 0.6 * 2 ** (-x_E / 300)) == pytest.approx(300, abs=1)
    assert half_life([0, 10], [1.0, 0.9]) is None
    assert half_life([0, 10], [0.0, 0.0]) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_under([0, 0], [1.0, 1.0]), "two or more increasing places"),
        (lambda: mean_under([0], [1.0]), "two or more increasing places"),
        (lambda: sigmoid_fit([0, 1], [0.1, 0.2]), "five points or more, got 2"),
        (lambda: first_crossing([0, 1], [0.1], 0.1), "as many places as values"),
    ],
)
def test_a_curve_that_is_none_is_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()

"""Priors over solve rates."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from gradmass.masses import (
    BetaPrior,
    MeasuredPrior,
    parse_prior,
)
from gradmass.types import UsageError

UNIFORM = BetaPrior()


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 1.2), (0.05, 3.0), (400.0, 20.0)])
def test_a_beta_prior_gives_the_beta_binomial_distribution(a, b):
    prior = BetaPrior(a, b)
    for group_size in (1, 8, 200):
        successes = np.arange(group_size + 1)
        pmf_S = stats.betabinom(group_size, a, b).pmf(successes)
        assert prior.success_pmf(group_size) == pytest.approx(pmf_S, rel=1e-9, abs=1e-15)
        mean_S = prior.mean_given_successes(group_size)
        assert prior.success_pmf(group_size) @ mean_S == pytest.approx(a / (a + b), rel=1e-12)
    p_N, share_N = prior.nodes()
    assert share_N @ p_N == pytest.approx(a / (a + b), rel=1e-9)
    root = stats.beta(a, b).expect(np.sqrt) if a > 0.1 else None
    if root is not None:
        assert share_N @ np.sqrt(p_N) == pytest.approx(root, rel=1e-6)


def test_a_measured_prior_counts_its_rates():
    prior = MeasuredPrior((0.0, 0.5, 0.5, 1.0))
    assert prior.success_pmf(2) == pytest.approx([0.25 + 0.125, 0.25, 0.25 + 0.125])
    assert prior.mean_given_successes(2) == pytest.approx([0.0625 / 0.375, 0.5, 0.3125 / 0.375])
    assert [array.tolist() for array in prior.nodes()] == [[0, 0.5, 1], [0.25, 0.5, 0.25]]
    many = MeasuredPrior(tuple(np.linspace(0, 1, 5001)))
    p_N, share_N = many.nodes()
    assert len(p_N) <= 1001
    assert share_N @ p_N == pytest.approx(0.5)
    assert p_N[0] == 0
    assert p_N[-1] == 1


def test_priors_are_read_from_text_and_files(tmp_path):
    assert parse_prior("uniform") == UNIFORM
    assert parse_prior("beta:0.5,1.2") == BetaPrior(0.5, 1.2)
    assert parse_prior("beta:0.5,1.2").label == "beta:0.5,1.2"
    lines, listed = tmp_path / "rates.txt", tmp_path / "rates.json"
    lines.write_text("0.25\n0.5\n\n1\n")
    listed.write_text("[0.25, 0.5, 1]")
    assert parse_prior(str(lines)) == MeasuredPrior((0.25, 0.5, 1.0), str(lines))
    assert parse_prior(str(listed)).label == str(listed)


@pytest.mark.parametrize(
    ("text", "content", "wanted"),
    [
        ("beta:1", None, "prior 'beta:1' is not beta:a,b with two numbers"),
        ("beta:1,x", None, "prior 'beta:1,x' is not beta:a,b"),
        ("beta:0,1", None, "a Beta prior needs a from 0.001 to 1e6, got 0"),
        ("beta:1,nan", None, "a Beta prior needs b from 0.001 to 1e6, got nan"),
        ("normal", None, "prior 'normal' is neither uniform nor beta:a,b nor a file"),
        ("FILE", "0.5 1.5", "FILE: a solve rate is within 0 to 1, got 1.5"),
        ("FILE", "0.5 high", "FILE must hold solve rates, a JSON list or one a line: "),
        ("FILE", "[0.5, null]", "FILE must hold solve rates, a JSON list or one a line: "),
        ("FILE", "", "FILE has no solve rates"),
        ("FILE", "[nan]", "FILE must hold solve rates, a JSON list or one a line: "),
    ],
)
def test_a_prior_that_is_none_is_shown(tmp_path, text, content, wanted):
    file = str(tmp_path / "rates")
    if content is not None:
        Path(file).write_text(content)
    with pytest.raises(UsageError) as raised:
        parse_prior(text.replace("FILE", file))
    assert str(raised.value).startswith(wanted.replace("FILE", file))
    assert "\n" not in str(raised.value)

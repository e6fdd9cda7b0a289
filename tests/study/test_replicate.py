"""A study repeated with other seeds: what was expected, and what is told of the misses."""

from dataclasses import replace

import numpy as np
import pytest

from gradmass.report.study_replicate import repeated, replication_lines
from gradmass.study import main_runs


@pytest.fixture
def made(study, result_of):
    """Results whose last pass@1 is .6 plus a shift by arm and noise."""

    def make(first_seed, shift, rng):
        found = {}
        for run in main_runs(replace(study, first_seed=first_seed, hypotheses=()), {}):
            end = 0.6 + shift * (run.arm == "fade") + 0.01 * rng.normal()
            found[run] = result_of(run, **{"pass@1": [0.1, 0.2, 0.3, 0.4, 0.5, end]})
        return found

    return make


def test_a_replicate_is_within_and_another_effect_is_listed(study, made):
    rng = np.random.default_rng(0)
    once = made(10, 0.05, rng)
    same = repeated(study, once, made(50, 0.05, rng))
    assert sum(item.is_hit for item in same) >= 0.9 * len(same)
    assert len(same) == 2 * 2 * 7  # settings, other arms, measures
    gone = repeated(study, once, made(50, 0.0, rng))
    misses = [item.what for item in gone if not item.is_hit]
    assert "pass@1 at the end, fade - grpo, here" in misses
    lines = list(replication_lines(gone))
    assert lines[0].startswith(f"{len(gone) - len(misses)} of {len(gone)} differences")
    assert sum(line.startswith("| ") for line in lines) == len(misses) + 1


def test_single_seeds_predict_nothing(study, made):
    rng = np.random.default_rng(0)
    once = {run: result for run, result in made(10, 0.0, rng).items() if run.seed == 10}
    assert repeated(study, once, made(50, 0.0, rng)) == []

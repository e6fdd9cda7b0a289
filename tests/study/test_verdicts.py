"""What two arms are compared by, and how a hypothesis is decided, from results made up."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gradmass.metrics.seeds import sign_flip_p
from gradmass.study import main_runs
from gradmass.study.design import MEASURES
from gradmass.study.measures import MEASURE, doublings_to, pass_at_equal_by_problem
from gradmass.study.verdicts import compare, decide


@pytest.fixture
def results(study, result_of):
    """Function that gives results whose pass@1 is shifted by arm and seed."""

    def make(shift_by_arm, seeds=range(10, 17), noise=0.001):
        rng = np.random.default_rng(0)
        made = {}
        for run in main_runs(study, {}):
            if run.seed in seeds:
                shift = shift_by_arm.get(run.arm, 0.0) + noise * rng.normal()
                curve = [0.1, *(0.1 + 0.1 * i + shift for i in range(1, 6))]
                made[run] = result_of(run, **{"pass@1": curve})
        return made

    return make


def decisions(study, results):
    return {item.hypothesis.name: item.decision for item in decide(study, results)}


def test_a_clear_difference_in_both_settings_is_shown(study, results):
    assert decisions(study, results({"fade": 0.1})) == {"H1": "shown", "H2": "shown"}


def test_a_clear_difference_the_other_way_is_reversed(study, results):
    seeds = range(10, 16)
    assert decisions(study, results({"fade": -0.1}, seeds))["H1"] == "undecided"  # 2^-6 > .025 / 2
    study = replace(study, hypotheses=study.hypotheses[:1])
    assert decisions(study, results({"fade": -0.1}, seeds)) == {"H1": "reversed"}


def test_equal_arms_are_not_shown_and_too_few_seeds_undecided(study, results):
    assert decisions(study, results({}))["H1"] == "not shown"
    assert decisions(study, results({}, seeds=[10, 11]))["H1"] == "undecided"
    assert decisions(study, results({"fade": 0.1}, seeds=[10, 11]))["H1"] == "undecided"
    assert decisions(study, {}) == {"H1": "undecided", "H2": "undecided"}


def test_one_setting_alone_shows_nothing(study, results):
    found = results({"fade": 0.1})
    here = {run: result for run, result in found.items() if run.setting == "here"}
    assert decisions(study, here) == {"H1": "undecided", "H2": "undecided"}
    flat = results({})
    mixed = {run: (found if run.setting == "here" else flat)[run] for run in found}
    assert decisions(study, mixed)["H1"] == "undecided"


def test_the_p_of_a_hypothesis_is_the_largest_of_its_comparisons_and_holm_counts_hypotheses(
    study, results
):
    one, two = decide(study, results({"fade": 0.004}, noise=0.004))
    for item in (one, two):
        ps = []
        for part, comparison in item.comparisons:
            d = comparison.value_S - comparison.other_S
            ps.append(sign_flip_p(d if part.direction == "higher" else -d))
        assert item.p == max(ps)
    assert len(one.comparisons) == 2  # settings
    assert len(two.comparisons) == 4  # settings and arms
    small, large = sorted((one, two), key=lambda item: item.p)
    assert small.p_adjusted == min(1, 2 * small.p)
    assert large.p_adjusted == max(small.p_adjusted, large.p)


def test_a_comparison_is_paired_and_leaves_out_what_diverged(study, results, result_of):
    found = results({"fade": 0.1})
    lost = next(run for run in found if (run.arm, run.setting, run.seed) == ("fade", "here", 12))
    found[lost] = result_of(lost, status="diverged")
    comparison = compare(found, study.settings[0], "pass@1 at the end", "fade", "grpo")
    assert comparison.seeds == (10, 11, 13, 14, 15, 16)
    assert comparison.num_left_out == 1
    d_S = [
        next(
            r.last("pass@1") for run, r in found.items() if (run.arm, run.setting, run.seed) == key
        )
        for seed in comparison.seeds
        for key in [("fade", "here", seed)]
    ] - comparison.other_S
    assert comparison.difference_S == pytest.approx(d_S)
    test = stats.ttest_1samp(d_S, 0).confidence_interval()
    assert (comparison.interval.low, comparison.interval.high) == pytest.approx(tuple(test))
    assert compare({}, study.settings[0], "pass@1 at the end", "fade", "grpo") is None


def test_not_lower_is_by_the_margin(study, results):
    part = replace(study.hypotheses[0].parts[0], direction="not lower", margin=0.02)
    hypothesis = replace(study.hypotheses[0], parts=(part,))
    study = replace(study, hypotheses=(hypothesis,))
    assert decisions(study, results({"fade": -0.01})) == {"H1": "shown"}
    assert decisions(study, results({"fade": -0.05})) == {"H1": "reversed"}


# Measures


@pytest.fixture
def pair(study, result_of):
    """Two results of one seed."""
    a, b, *_ = main_runs(study, {})

    def make(first, second):
        return result_of(a, **first), result_of(b, **second)

    return make


def test_pass_at_100_is_read_where_both_first_are_at_their_highest_common_pass_at_1(pair):
    one, two = pair(
        {"pass@1": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "pass@100": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]},
        {"pass@1": [0.1, 0.3, 0.45, 0.4, 0.4, 0.4], "pass@100": [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]},
    )
    # .45 is halfway between the first run's fourth and fifth evaluations.
    assert MEASURE["pass@100 at equal pass@1"](one, two, None) == pytest.approx((0.55, 0.7))


def test_rollouts_to_a_level_are_doublings_and_a_run_that_never_gets_there_counts_as_its_last(pair):
    fast, never = pair({}, {"pass@1": [0.1, 0.1, 0.1, 0.1, 0.1, 0.15]})
    assert doublings_to(fast, 0.35) == (math.log2(2500), True)
    assert doublings_to(never, 0.35) == (math.log2(5000), False)
    assert doublings_to(fast, 0.05) == (0.0, True)  # there from the start
    measure = MEASURE["doublings of rollouts to the level"]
    assert measure(fast, never, 0.35) == (math.log2(2500), math.log2(5000))


def test_r_1_is_over_its_noise_value_at_equal_norm(pair):
    noise = {"r_1_noise": [0.1] * 6, "norm": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    one, two = pair(
        noise | {"r_1": [None, 0.9, 0.8, 0.7, 0.6, 0.5]},
        noise | {"r_1": [None, 0.9, 0.9, 0.9, 0.9, 0.9], "norm": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]},
    )
    assert MEASURE["r_1 over noise at equal norm"](one, two, None) == pytest.approx((0.65, 0.8))
    assert MEASURE["r_1 over noise at the end"](one, two, None) == pytest.approx((0.4, 0.8))


def test_every_measure_of_a_run_with_itself_is_equal_on_both_sides(pair):
    falling = {"entropy": [1.0, 0.8, 0.6, 0.4, 0.3, 0.2], "norm": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    one, two = pair(falling, falling)
    assert tuple(MEASURE) == MEASURES
    for name in MEASURES:
        values = MEASURE[name](one, two, 0.3)
        assert values is None or values[0] == values[1], name


def test_the_half_life_of_an_entropy_that_does_not_fall_is_the_length_of_the_run(pair):
    falling, flat = pair({"entropy": [1.0, 0.8, 0.6, 0.4, 0.3, 0.2]}, {})
    halves = MEASURE["half-life of the entropy"](falling, flat, None)
    assert halves == pytest.approx((math.log2(2500), math.log2(5000)))


def test_problems_are_compared_at_the_place_where_their_mean_is(pair):
    one, two = pair({}, {"pass@1": [0.1, 0.35, 0.35, 0.35, 0.35, 0.35]})
    # The second run stops at .35, which the first meets at 2500 rollouts; the second at 1000.
    p_1 = np.linspace([0.1, 0.2, 0.3], [0.5, 0.6, 0.7], 6)
    pass_2 = 1 - (1 - p_1) ** 2
    wanted = (pass_2[2] + pass_2[3]) / 2 - pass_2[1]
    assert pass_at_equal_by_problem(one, two, k=2) == pytest.approx(wanted)

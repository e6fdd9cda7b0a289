"""Each warning comes when its rule first holds, once, and says what it cannot tell."""

import pytest

from gradmass.metrics.alarms import RULES, Alarms

BOUNDS = {"weight/alpha": 3.0, "weight/delta": 0.3}


def give(alarms, rows):
    """Steps at which warnings came, with their names."""
    return [
        (step, warning["name"])
        for step, row in enumerate(rows, start=1)
        for warning in alarms.see(row)
    ]


def groups(mixed, right):
    return {
        "groups/mixed": mixed,
        "groups/all_right": right,
        "groups/all_wrong": 1 - mixed - right,
    }


def rank(share, norm, energy=0.2, noise=0.1):
    return {
        "rank/head_top1_share": share,
        "rank/head_top1_share_noise": noise,
        "rank/head_change_norm": norm,
        "rank/head_energy_share": energy,
        "rank/head_parameter_share": 0.05,
    }


def test_every_rule_states_its_threshold_and_what_it_cannot_tell():
    assert [rule.name for rule in RULES] == [
        "entropy collapse",
        "vanishing signal",
        "controller saturated",
        "rank concentration",
    ]
    for rule in RULES:
        assert any(character.isdigit() for character in rule.rule), rule
        assert len(rule.cannot_tell) > 20


def test_entropy_collapse_is_a_fifth_of_the_first_entropies():
    rows = [{"entropy/mean_nats": 1.0}] * 20 + [{"entropy/mean_nats": 0.19}] * 50
    assert give(Alarms({}), rows) == [(40, "entropy collapse")]
    rows = [{"entropy/mean_nats": 1.0}] * 20 + [{"entropy/mean_nats": 0.21}] * 50
    assert give(Alarms({}), rows) == []
    # The mean of twenty falls below .2 with the 17th low value: 3 / 20 = .15.
    rows = [{"entropy/mean_nats": 1.0}] * 40 + [{"entropy/mean_nats": 0.0}] * 50
    assert give(Alarms({}), rows) == [(57, "entropy collapse")]


def test_vanishing_signal_says_which_side_is_tied():
    rows = [groups(0.5, 0.1)] * 20 + [groups(0.0, 0.9)] * 30
    # 20 groups' mean falls below .1 with the 17th of the low ones: 3 * .5 / 20 = .075.
    assert give(Alarms({}), rows) == [(37, "vanishing signal")]
    alarms = Alarms({})
    for _ in range(19):
        assert alarms.see(groups(0.05, 0.9)) == []
    (warning,) = alarms.see(groups(0.05, 0.9))
    shown = "0.05 of the groups of the last 20 updates are mixed, 0.90 are all right"
    assert shown in warning["message"]
    assert "reach" in warning["cannot_tell"]


def test_a_controller_is_saturated_at_its_outer_bound_only_and_for_long():
    at = {"weight/alpha": 3.0, "weight/delta": 1.0}
    assert give(Alarms(BOUNDS), [at] * 49 + [{"weight/alpha": 2.9}] + [at] * 49) == []
    assert give(Alarms(BOUNDS), [at] * 60) == [(50, "controller saturated")]
    both = {"weight/alpha": 3.0, "weight/delta": 0.3}
    assert give(Alarms(BOUNDS), [both] * 60) == [(50, "controller saturated")] * 2
    assert give(Alarms({}), [both] * 60) == []


def test_a_high_r1_alone_is_no_warning():
    assert give(Alarms({}), [rank(0.99, norm, energy=0.05) for norm in (1, 2, 3, 4)]) == []
    assert give(Alarms({}), [rank(0.99, 1.0)] * 5) == []  # the change does not grow
    assert give(Alarms({}), [rank(0.99 - 0.01 * n, 1.0 + n) for n in range(5)]) == []  # it falls
    assert give(Alarms({}), [rank(0.95, 1.0 + n, noise=0.5) for n in range(5)]) == []  # as noise
    rows = [rank(0.95, 1.0 + n) for n in range(5)]
    assert give(Alarms({}), rows) == [(3, "rank concentration")]


def test_rows_without_a_measurement_are_passed_over():
    first = rank(0.95, 1.0) | {"rank/head_top1_share": None}
    rows = [{}, first, rank(0.95, 1.0), {}, rank(0.95, 2.0), {"groups/mixed": None}]
    assert give(Alarms(BOUNDS), [*rows, rank(0.95, 3.0)]) == [(7, "rank concentration")]


@pytest.mark.parametrize("cut", [1, 25, 40, 41, 60])
def test_shown_the_rows_of_a_run_again_it_goes_on_as_before(cut):
    rows = [{"entropy/mean_nats": 1.0, "weight/alpha": 3.0}] * 20
    rows += [{"entropy/mean_nats": 0.1, "weight/alpha": 3.0}] * 50
    once = give(Alarms(BOUNDS), rows)
    assert once == [(40, "entropy collapse"), (50, "controller saturated")]
    resumed = Alarms(BOUNDS)
    before = give(resumed, rows[:cut])
    again = [(step + cut, name) for step, name in give(resumed, rows[cut:])]
    assert before + again == once

"""Every number of the page is the library's, to 1e-9."""

import math

import numpy as np
import pytest

from gradmass.masses import (
    BetaPrior,
    MeasuredPrior,
    axes_of,
    equalise_factor,
    masses_of,
    objective_of,
)
from gradmass.report.explorer import formula_names
from gradmass.tables import from_tables
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS, Weight

pytestmark = pytest.mark.browser

P = [0.003, 0.137, 0.5, 0.82, 0.999]
SIZES = (1, 2, 3, 8, 33, 128)
RATES = [0.0, 0.02, 0.02, 0.35, 0.6, 1.0]
PRIORS = {
    "beta": (BetaPrior(0.5, 1.2), {"kind": "beta", "a": 0.5, "b": 1.2}),
    "measured": (
        MeasuredPrior(tuple(RATES)),
        {
            "kind": "measured",
            "rates": [0.0, 0.02, 0.35, 0.6, 1.0],
            "shares": [1 / 6, 2 / 6, 1 / 6, 1 / 6, 1 / 6],
        },
    ),
}
FIELDS = {
    "grpo_std": [{}, {"ddof": 0, "std_floor": 0.4}],
    "power": [{}, {"alpha": 0.3}, {"alpha": 7.5}],
    "asym_grpo_delta": [{}, {"delta": 3.0}],
    "power_asym": [{"alpha": 2.5, "delta": 0.4}, {"alpha": 0.5, "delta": 4.0}],
    "sign_pure": [{}, {"delta": 3.5}],
    "power_unbiased": [{}, {"alpha": 1}, {"alpha": 7}],
    "maclaurin": [{"T": 1}, {"T": 3}, {"T": 16}],
    "rs_grpo": [{}, {"beta": -4.0}, {"beta": 0.0}, {"beta": 6.0}],
    "entropic": [{}, {"beta": 0.1, "leave_one_out": True}, {"beta": 5.0, "leave_one_out": True}],
    "passk_chen": [{"k": 1}, {"k": 4}, {"k": 8}],
    "pkpo_s": [{"k": 1}, {"k": 4}],
    "pkpo_sloo": [{"k": 1}, {"k": 7}],
    "pkpo_sloo_minus_one": [{"k": 2}, {"k": 8}],
    "reinforce": [{}, {"signed": True}],
    "w_reinforce": [{}, {"success_weight": 1.5}],
    "asymre": [{}, {"baseline_shift": 0.25}],
    "asym_grpo_power": [{}, {"beta_pos": 0.0, "beta_neg": 2.0}],
    "qae": [{}, {"K": 0.75}, {"interpolation": "linear", "ddof": 0}],
    "f_grpo": [{}, {"gamma": 0.0}, {"gamma": 3.0, "ddof": 0}],
    "mgpo": [{}, {"sharpness": 12.0}],
    "grpo_lead": [{}, {"low": 0.0, "high": 3.0, "midpoint": 0.5, "steepness": 3.0}],
    "gpg": [{}, {"f_norm": 0.5}],
    "a_grae": [{}, {"alpha": 0.5}],
}
BY_GROUP = [name for name in formula_names() if WEIGHTS[name].scope != "batch"]
BY_BATCH = [name for name in formula_names() if WEIGHTS[name].scope == "batch"]


def on_page(page, weight, size, prior, equalise):
    """Everything the page says of a weight, None where it says that it takes no such groups."""
    state = weight.report(weight.init())
    fields = {"alpha": state["alpha"], "delta": state["delta"]} if weight.name == "fade" else None
    given = {k: getattr(weight, k) for k in weight.__dataclass_fields__}
    script = """
    const [name, fields, size, prior, equalise, p] = arguments;
    const groups = overGroups(prior, size), grpo = tableOf("grpo", {}, size, groups, true);
    const table = tableOf(name, fields, size, groups, CARDS[name].on_ties === "zero");
    if (table === null) return null;
    const factor = equaliseFactor(table, grpo, equalise, groups);
    if (factor === null) return {factor};
    const masses = massesOf(table, GRID, factor), at = massesOf(table, p, factor);
    const lists = Object.fromEntries(Object.entries(at).map(([k, v]) => [k, Array.from(v)]));
    return {factor, ...lists, axes: axesOf(table, grpo, groups, factor, masses)};
    """
    return page.driver.execute_script(
        script, weight.name, fields or given, size, prior, equalise, P
    )


def in_library(weight, size, prior, equalise):
    factor = equalise_factor(weight, equalise, size, prior=prior)
    masses = masses_of(weight, np.array(P), size, prior=prior)
    objective_N, _ = objective_of(weight, np.array(P), size, prior=prior)
    scaled = masses.scaled(factor)
    axes = axes_of(weight, scaled, prior=prior, factor=factor)
    return {
        "factor": factor,
        "p": P,
        "w_S": scaled.w_S_N.tolist(),
        "w_F": scaled.w_F_N.tolist(),
        "m_S": scaled.m_S_N.tolist(),
        "m_F": scaled.m_F_N.tolist(),
        "slope": scaled.objective_slope_N.tolist(),
        "objective": (factor * objective_N).tolist(),
        "axes": {k: v for k, v in vars(axes).items() if not k.startswith("sign_ratio")},
    }


def assert_close(found, expected, tolerance, where):
    assert type(found) is type(expected) or not isinstance(found, dict | list), where
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_close(found[key], expected[key], tolerance, (*where, key))
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for i, value in enumerate(expected):
            assert_close(found[i], value, tolerance, (*where, i))
    elif expected is None or found is None:
        assert found is expected, where
    else:
        close = math.isclose(found, expected, rel_tol=tolerance, abs_tol=1e-3 * tolerance)
        assert close, (where, found, expected)


@pytest.mark.parametrize("name", BY_GROUP)
def test_masses_objective_and_axes_are_those_of_the_library(page, name):
    compared = 0
    for fields in FIELDS.get(name, [{}]):
        weight = from_tables(Weight, {"type": name, **fields}, "test")
        for size in SIZES:
            for prior, as_json in PRIORS.values():
                found = on_page(page, weight, size, as_json, "none")
                if size < weight.min_group_size:
                    assert found is None
                    continue
                expected = in_library(weight, size, prior, "none")
                assert_close(found, expected, 1e-9, (weight.label, size, prior.label))
                compared += 1
    assert compared >= len(SIZES)


@pytest.mark.parametrize("equalise", ["mass_at_half", "mean_mass"])
def test_equal_scale_is_that_of_the_library(page, equalise):
    prior, as_json = PRIORS["beta"]
    for name in ("power", "maxrl", "passk_tang", "pkpo_s", "reinforce", "fade"):
        weight = from_tables(Weight, {"type": name, **FIELDS.get(name, [{}])[-1]}, "test")
        found = on_page(page, weight, 8, as_json, equalise)
        assert_close(found, in_library(weight, 8, prior, equalise), 1e-9, (name, equalise))
        assert found["factor"] != 1


def test_a_total_mass_below_zero_is_not_made_equal(page):
    """On hard problems this weight pushes failures up more than anything else."""
    weight, hard = WEIGHTS["pkpo_s"](k=4), MeasuredPrior((0.1,))
    as_json = {"kind": "measured", "rates": [0.1], "shares": [1.0]}
    assert on_page(page, weight, 8, as_json, "mean_mass") == {"factor": None}
    with pytest.raises(UsageError, match="no factor makes masses equal"):
        equalise_factor(weight, "mean_mass", 8, prior=hard)


@pytest.mark.parametrize("name", BY_BATCH)
def test_weights_of_a_whole_batch_agree_as_far_as_the_library_knows_them(page, name):
    """The library weighs a batch of two million rollouts, the page one without end."""
    for fields in FIELDS.get(name, [{}]):
        weight = from_tables(Weight, {"type": name, **fields}, "test")
        for prior, as_json in PRIORS.values():
            found = on_page(page, weight, 8, as_json, "none")
            masses = masses_of(weight, np.array(P), 8, prior=prior)
            for key, expected_N in (("m_S", masses.m_S_N), ("m_F", masses.m_F_N)):
                np.testing.assert_allclose(found[key], expected_N, rtol=2e-5, atol=1e-7)
                assert expected_N.any()


def test_the_page_has_a_formula_for_just_the_names_it_is_said_to_have(page):
    names = page.js("Object.keys(FORMULAS)")
    assert names == list(formula_names())
    assert set(names) == {card["name"] for card in page.js("PAGE.weights")}
    # What is left needs other weights, files, formulas or signals of a run.
    assert set(WEIGHTS.names()) - set(names) >= {"clip", "mix", "replay", "constant_mass"}
    assert {"grpo", "fade", "maxrl", "pkpo_sloo", "bnpo", "sign_pure"} <= set(names)


def test_every_field_without_a_slider_has_the_default_of_the_library(page):
    for name in formula_names():
        fields = page.js("fieldsOf({name: args[0], fields: {}})", name)
        assert None not in fields.values(), name
        if name != "fade":
            from_tables(Weight, {"type": name, **fields}, "test")


def test_a_binomial_of_a_certain_outcome_is_certain(page):
    assert page.js("Array.from(binomial([0, 1], 3))") == [1, 0, 0, 0, 0, 0, 0, 1]

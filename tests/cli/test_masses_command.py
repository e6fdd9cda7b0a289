"""``gradmass masses`` from its arguments to tables, JSON and figures; the charts of the cards."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gradmass.cli import main
from gradmass.commands.chart import line_chart, side_by_side
from gradmass.masses import BetaPrior, axes_of, masses_of, objective_of
from gradmass.weights import WEIGHTS

KEYS = {
    "label",
    "group_size",
    "prior",
    "equalise",
    "p",
    "m_S",
    "m_F",
    "w_S",
    "w_F",
    "objective_slope",
    "axes",
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def command(capsys):
    """Run a command that succeeds; gives its stdout."""

    def run(*argv):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        assert err == ""
        return out

    return run


@pytest.fixture
def refusal(capsys):
    """Run a command that refuses; gives its one line."""

    def run(*argv):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out, err = capsys.readouterr()
        assert ended.value.code == 2
        assert out == ""
        (line,) = err.splitlines()
        return line.removeprefix("gradmass: error: ")

    return run


@pytest.fixture
def entries(command):
    def run(*argv):
        return json.loads(command("masses", *argv, "--json"), parse_constant=pytest.fail)

    return run


def test_json_holds_the_masses_of_each_weight_over_p(entries):
    found = entries("grpo", "power:alpha=3", "--p", "0.2", "0.7", "--prior", "beta:0.5,1.2")
    assert [entry["label"] for entry in found] == ["grpo", "power(alpha=3.0)"]
    prior, p_N = BetaPrior(0.5, 1.2), np.array([0.2, 0.7])
    for entry, weight in zip(found, (WEIGHTS["grpo"](), WEIGHTS["power"](alpha=3.0)), strict=True):
        masses = masses_of(weight, p_N, 8)
        assert entry.keys() >= KEYS
        assert (entry["group_size"], entry["prior"], entry["equalise"], entry["factor"]) == (
            8,
            "beta:0.5,1.2",
            "none",
            1.0,
        )
        assert entry["p"] == [0.2, 0.7]
        assert entry["m_S"] == masses.m_S_N.tolist()
        assert entry["m_F"] == masses.m_F_N.tolist()
        assert entry["w_S"] == masses.w_S_N.tolist()
        assert entry["w_F"] == masses.w_F_N.tolist()
        assert entry["objective_slope"] == masses.objective_slope_N.tolist()
        assert entry["objective"] == objective_of(weight, p_N, 8)[0].tolist()
        axes = axes_of(weight, masses, prior=prior)
        for name, value in entry["axes"].items():
            expected = getattr(axes, name)
            assert value == (list(expected) if isinstance(expected, tuple) else expected), name


def test_json_has_no_infinities_and_nulls_where_there_is_no_ratio(entries):
    (entry,) = entries("psr", "--group-size", "inf")
    assert entry["group_size"] == "inf"
    assert entry["p"] == [number / 100 for number in range(1, 100)]
    assert entry["axes"]["sign_ratio"] == entry["axes"]["sign_ratio_fig4"] == [None] * 99
    assert entry["axes"]["scale_mean"] is None
    assert entry["m_S"] == pytest.approx(entry["p"])


def test_solve_rates_may_stand_between_commas(entries):
    assert entries("grpo", "--p", "0.1,0.2,", "0.3")[0]["p"] == [0.1, 0.2, 0.3]


def test_equalised_masses_are_those_times_a_factor(entries):
    plain, equal = (
        entries("maxrl", "--p=0.5,0.9", "--prior=uniform", f"--equalise={how}")[0]
        for how in ("none", "mean_mass")
    )
    assert equal["axes"]["scale_mean"] == pytest.approx(1)
    for name in ("m_S", "m_F", "w_S", "w_F", "objective", "objective_slope"):
        assert equal[name] == pytest.approx([equal["factor"] * value for value in plain[name]])
    assert equal["objective_slope_bias"] == pytest.approx(
        [equal["factor"] * value for value in plain["objective_slope_bias"]]
    )


def test_fade_says_which_alpha_and_delta_it_used(command, entries):
    assert "alpha 1.5, delta 1" in command("masses", "fade")
    fade = WEIGHTS["fade"](target_entropy=1.0)
    state = fade.init()
    for _ in range(60):
        _, state = fade.update(np.array([[0.0, 0.0, 0.0, 1.0]]), state, entropy_nats=0.4)
    report = fade.report(state)
    Path("own.json").write_text(json.dumps(state))
    Path("run.json").write_text(json.dumps({"schema": 1, "step": 60, "weight": state}))
    for file in ("own.json", "run.json"):
        (entry,) = entries("fade:target_entropy=1.0", "--state", file, "--p=0.3")
        assert entry["parameters"]["alpha"] == report["alpha"]
        assert entry["parameters"]["delta"] == report["delta"] == pytest.approx(0.4)
        exact = WEIGHTS["power_asym"](alpha=report["alpha"], delta=report["delta"])
        assert entry["m_F"] == masses_of(exact, np.array([0.3]), 8).m_F_N.tolist()
    shown = command("masses", "fade:target_entropy=1.0", "grpo", "--state", "own.json")
    assert f"alpha {report['alpha']:.4g}, delta 0.4" in shown


def test_the_table_shows_every_number(command):
    out = command("masses", "grpo", "--p", "0.5", "--prior", "uniform", "--lengths", "100,300")
    head, names, values, _, axes, of_grpo = out.splitlines()
    assert head == "grpo: groups of 8, prior uniform, alpha 1, delta 1"
    assert names.split()[:3] == ["p", "m_S", "m_F"]
    cells = ["0.5", "0.2188", "0.2188", "1", "0.4375", "0.4375", "0.4375", "0.875", "-0.125"]
    assert values.split() == [*cells, "0.1094", "0.3281"]
    assert axes.split()[0] == "axes"
    assert of_grpo.split() == [
        "grpo",
        "0.5",
        "0.5",
        "0.5",
        "0.5",
        "1",
        "1",
        "1",
        "0.7778",
        "0.7179",
    ]


def test_without_a_prior_what_needs_one_is_left_out(command):
    out = command("masses", "grpo", "remax", "--p", "0.5")
    assert "useful" not in out
    assert "remax: groups of 8, greedy_rewards_P 0.5" in out


def test_masses_by_tokens_in_json(entries):
    (entry,) = entries("rloo", "--p=0.25", "--lengths=200,100")
    assert entry["token_mean"]["m_S"] == pytest.approx([0.25 * 0.75 * 200 / 125])
    assert entry["token_mean"]["m_F"] == pytest.approx([0.25 * 0.75 * 100 / 125])


def test_a_prior_from_a_file(entries):
    Path("rates.txt").write_text("0.5\n0.5\n1.0\n")
    (entry,) = entries("gpg", "--prior", "rates.txt", "--p=0.5")
    assert entry["prior"] == "rates.txt"
    assert entry["m_S"] == pytest.approx([0.25 * 7 / 8 / (2 / 3)], rel=1e-4)
    assert entry["error"] < 1e-4


MINE = """
from dataclasses import dataclass
from gradmass.weights import Weight

@dataclass(frozen=True, kw_only=True)
class Mine(Weight):
    scale: float = 1.0

    def formula(self, groups, state, signals):
        return self.scale * groups.centred_PG

def centred(rewards):
    return rewards - rewards.mean()

def broken(rewards):
    return rewards / rewards.std()

def crashing(rewards):
    return rewards["mean"]

number = 3
"""


def test_weights_and_functions_of_a_file(entries, command):
    Path("mine.py").write_text(MINE)
    found = entries("grpo", "mine.py:Mine:scale=2", "mine.py:centred", "--p=0.3")
    assert [entry["label"] for entry in found] == [
        "grpo",
        "mine.py:Mine(scale=2.0)",
        "mine.py:centred",
    ]
    assert found[1]["m_S"] == [2 * found[0]["m_S"][0]]
    assert found[2]["m_S"] == pytest.approx(found[0]["m_S"])
    assert found[2]["objective_slope_bias"] == [None]
    assert "mine.py:centred: groups of 4" in command("masses", "mine.py:centred", "--group-size=4")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_what_a_file_does_wrong_is_one_line(refusal):
    Path("mine.py").write_text(MINE)
    assert refusal("masses", "mine.py:broken").startswith(
        "mine.py:broken must return a finite weight for each rollout; for the rewards [0.0, 0.0"
    )
    assert "mine.py, line 19: IndexError: only integers" in refusal("masses", "mine.py:crashing")
    assert (
        refusal("masses", "mine.py:number")
        == "weight 'mine.py:number': mine.py has no Weight 'number'"
    )
    assert refusal("masses", "mine.py:centred:a=1") == (
        "mine.py:centred is a plain function and has no fields, got 'a=1'"
    )
    assert refusal("masses", "mine.py:Mine:skale=1").startswith(
        "unknown key 'skale' in mine.py:Mine"
    )
    assert refusal("masses", "there_is_no.py:f").endswith("there is no file there_is_no.py")


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        ([], "masses needs a weight, such as fade"),
        (["fad"], "unknown weight 'fad'; did you mean 'fade'?"),
        (["power:alhpa=3"], "unknown key 'alhpa' in power:alhpa=3; did you mean 'alpha'?"),
        (["power:alpha=0"], "power needs a finite alpha above 0, got 0.0"),
        (["power_asym:alpha=2"], "delta has no default: give it a value in power_asym:alpha=2"),
        (["grpo", "--p", "1.5"], "a solve rate p is above 0 and below 1, got 1.5"),
        (["grpo", "--p", "0"], "a solve rate p is above 0 and below 1, got 0"),
        (["grpo", "--p", "half"], "--p needs numbers above 0 and below 1, got ['half']"),
        (["grpo", "--group-size", "0"], "group size must be a whole number from 1 to 4096, or inf"),
        (["grpo", "--group-size", "eight"], "--group-size is a whole number or inf, got 'eight'"),
        (["pkpo_s:k=9"], "weight pkpo_s(k=9) needs groups of at least 9 rollouts, got groups of 8"),
        (["gpg"], "weight gpg depends on the whole batch: give the solve rates of its problems"),
        (["grpo", "--prior", "beta:2"], "prior 'beta:2' is not beta:a,b with two numbers"),
        (["grpo", "--equalise", "mean_mass"], "equalise = mean_mass needs the solve rates of"),
        (["grpo", "--equalise", "half"], "'half' is not one of none, mass_at_half, mean_mass"),
        (["grpo", "--state", "none.json"], "--state none.json cannot be read: "),
        (
            ["grpo", "--state", "state.json"],
            "--state state.json: none of these weights has a state",
        ),
        (["fade", "--state", "state.json"], "weight fade was given a state with ['x'], another"),
        (["fade", "--state", "list.json"], "--state list.json holds no state of a weight, but [1]"),
        (["grpo", "--plot", "figure.pdf"], "--plot writes .svg or .png, got 'figure.pdf'"),
        (["grpo", "--plot", "no/such/folder.svg"], "--plot no/such/folder.svg: there is no folder"),
        (["grpo", "--lengths", "100"], "--lengths needs two numbers, RIGHT,WRONG, got '100'"),
        (
            ["grpo", "--lengths", "0,10"],
            "a mean length is a finite number of tokens above 0, got 0",
        ),
        (
            ["grpo", "--json", "--group-size=inf", "--p=1e-6"],
            "the limit of large groups is computed",
        ),
        (["grpo", "--priors", "uniform"], "unknown flag --priors; did you mean '--prior'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_that_shows_it(refusal, argv, wanted):
    Path("state.json").write_text('{"x": 1}')
    Path("list.json").write_text("[1]")
    assert refusal("masses", *argv).startswith(wanted)


def test_the_figure_is_written_as_its_suffix_says(command):
    argv = ["masses", "fade", "grpo", "power:alpha=3", "asymre", "--plot"]
    assert command(*argv, "masses.svg") == "masses.svg\n"
    svg = Path("masses.svg").read_text()
    for text in ("Positive mass m_S", "Negative mass m_F", "power(alpha=3.0)", "solve rate p"):
        assert text in svg
    command(*argv, "again.svg")
    assert Path("again.svg").read_text() == svg, "equal figures are equal files"
    command(*argv, "masses.png")
    assert Path("masses.png").read_bytes().startswith(b"\x89PNG")


# Charts in the terminal


def dots_of(lines):
    """Set dots as (column, row from the top)."""
    bits = {0x01: (0, 0), 0x02: (0, 1), 0x04: (0, 2), 0x40: (0, 3)}
    bits |= {0x08: (1, 0), 0x10: (1, 1), 0x20: (1, 2), 0x80: (1, 3)}
    return {
        (2 * x + dx, 4 * y + dy)
        for y, line in enumerate(lines)
        for x, character in enumerate(line)
        for bit, (dx, dy) in bits.items()
        if (ord(character) - 0x2800) & bit
    }


def test_a_line_passes_through_its_values_without_gaps():
    values = [math.sin(x / 6) for x in range(40)]
    lines = line_chart(values, -1.0, 1.0, width=20, height=5)
    assert [len(line) for line in lines] == [20] * 5
    dots = dots_of(lines)
    for column, value in enumerate(values):
        assert (column, round((1 - value) / 2 * 19)) in dots
    for column in range(1, 40):
        rows = {y for x, y in dots if x == column}
        assert rows == set(range(min(rows), max(rows) + 1))


def test_a_flat_line_is_flat():
    assert dots_of(line_chart([0.0, 0.0], 0.0, 1.0, width=3, height=2)) == {
        (x, 7) for x in range(6)
    }


def test_charts_side_by_side_share_their_scale():
    lines = side_by_side([0.0, 0.5], [-0.5, 0.0], titles=("m_S", "m_F"), width=10, height=4)
    assert lines[0].split() == ["m_S", "m_F"]
    assert [line.split("▏")[0].strip() for line in lines[1:-1]] == ["0.5", "", "0", "-0.5"]
    assert lines[-1].split() == ["p", "=", "0", "1", "p", "=", "0", "1"]


def test_a_card_shows_the_masses(command):
    out = command("weights", "fade")
    assert "gradient masses of fade (groups of 8, initial state, alpha 1.5, delta 1):" in out
    assert "⠉" in out
    assert "gradient masses of power(alpha=3.0) (groups of 8, alpha 3" in command(
        "weights", "power:alpha=3"
    )
    assert "among problems of uniform solve rates" in " ".join(command("weights", "gpg").split())
    assert "gradient masses" not in command("weights", "power_asym").replace("Gradient masses", "")
    assert "its masses are 0 in its initial state" in command("weights", "curverl")


@pytest.mark.parametrize("name", WEIGHTS.names())
def test_every_card_has_a_chart_or_a_field_to_give(command, name):
    out, cls = command("weights", name), WEIGHTS[name]
    is_required = "(required): " in out
    assert ("p = 0" in out) != (is_required or name == "curverl"), cls

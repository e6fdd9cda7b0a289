"""What the report takes from the record of rollouts: samples, solve rates, masses over them."""

import json
from collections import Counter
from math import comb

import numpy as np
import pytest

from gradmass.masses import masses_of
from gradmass.record import Run, RunWriter
from gradmass.report.arms import arms_of
from gradmass.report.own_masses import ends_of, obstacles, own_masses
from gradmass.report.sample import MAX_STEPS, ROWS_A_STEP, packed, read_sample
from gradmass.weights import WEIGHTS

EVIL = "</script><script>alert(1)</script>\ud800 é"


def write_run(
    path, *, num_steps=10, weight=None, completion="c", rows_a_step=24, prompt="p", state=()
):
    recipe = {
        "task": {"type": "countdown"},
        "weight": weight or {"type": "grpo"},
        "train": {"steps": num_steps, "group_size": 4},
    }
    writer = RunWriter.create(path, {"label": "w", "recipe": recipe}, {})
    writer.log({"step": 0, "rollouts": 0})
    for step in range(1, num_steps + 1):
        writer.log_rollouts(batch(step, rows_a_step, completion, prompt))
    writer.checkpoint(num_steps, dict(state), "finished", lambda folder: None)
    writer.close()
    return Run(path)


def verdict_of(step, group, i):
    if (group, i) == (1, 3):
        return "error"
    return "right" if i < (step + group) % 5 else "wrong"


def batch(step, num, completion, prompt):
    for n in range(num):
        group, i = divmod(n, 4)
        yield {
            "step": step,
            "prompt": f"{prompt}{group}",
            "completion": completion,
            "problem_id": f"train{group}",
            "group": group,
            "verdict": verdict_of(step, group, i),
            "detail": f"{step}:{n}",
            "weight": n / 7,
            "num_tokens": n,
        }


def test_solve_rates_are_counted_by_group_without_errors(tmp_path):
    sample = read_sample(write_run(tmp_path / "run"))
    assert len(sample.counts_by_step) == 10
    for step, counts in enumerate(sample.counts_by_step, 1):
        expected = Counter()
        for group in range(6):
            verdicts = [verdict_of(step, group, i) for i in range(4)]
            expected[verdicts.count("right"), 4 - verdicts.count("error")] += 1
        assert counts == expected


@pytest.mark.parametrize("num_steps", [1, 2, 39, 81, 82, 200, 331])
def test_the_sample_goes_from_the_first_step_to_the_last(tmp_path, num_steps):
    sample = read_sample(write_run(tmp_path / "run", num_steps=num_steps, rows_a_step=4))
    data = json.loads(packed(["w"], [sample]))
    steps = [step for _, step, *_ in data["steps"]]
    assert (steps[0], steps[-1]) == (1, num_steps)
    assert steps == sorted(set(steps))
    assert len(steps) == min(num_steps, MAX_STEPS) or MAX_STEPS // 2 < len(steps) <= MAX_STEPS
    assert {row[1] for row in data["rows"]} == set(steps)


def test_rows_are_evenly_spaced_and_as_recorded(tmp_path):
    data = json.loads(packed(["name"], [read_sample(write_run(tmp_path / "run", num_steps=1))]))
    assert data["steps"] == [[0, 1, 24, Counter(verdict_of(1, *divmod(n, 4)) for n in range(24))]]
    expected = [n * 24 // ROWS_A_STEP for n in range(ROWS_A_STEP)]
    assert [row[6] for row in data["rows"]] == [f"1:{n}" for n in expected]
    assert [row[7] for row in data["rows"]] == [round(n / 7, 4) for n in expected]
    assert [data["prompts"][row[3]] for row in data["rows"]] == [f"p{n // 4}" for n in expected]


@pytest.mark.parametrize("max_bytes", [200_000, 20_000, 5_000])
def test_the_sample_keeps_its_bound_and_both_ends(tmp_path, max_bytes):
    runs = [
        write_run(tmp_path / name, num_steps=50, completion=size * "x", prompt=name * 9)
        for name, size in (("long", 3000), ("short", 5))
    ]
    text = packed(["a", "b"], [read_sample(run) for run in runs], max_bytes)
    assert len(text.encode()) <= max_bytes
    data = json.loads(text)
    for place in (0, 1):
        steps = [step for run, step, *_ in data["steps"] if run == place]
        assert (steps[0], steps[-1]) == (1, 50)
    longest = max(data["rows"], key=lambda row: len(row[4]))
    assert longest[4] == 800 * "x" + " … (3000 characters)"


def test_a_completion_cannot_leave_the_script_it_stands_in(tmp_path):
    text = packed(["<b>"], [read_sample(write_run(tmp_path / "run", completion=EVIL))])
    assert "<" not in text
    text.encode("ascii")
    assert json.loads(text)["rows"][0][4] == EVIL


def test_a_run_without_rollouts_has_an_empty_sample(tmp_path):
    run = write_run(tmp_path / "run", num_steps=0)
    sample = read_sample(run)
    assert json.loads(packed(["w"], [sample]))["rows"] == []
    arms = arms_of([run])
    ends = [ends_of(arms[0], [sample])]
    assert obstacles(arms, ends) == [("w", "no rollout of it is recorded yet")]
    own_masses(arms, ends)


def panels_of(run):
    arms = arms_of([run])
    ends = [ends_of(arms[0], [read_sample(run)])]
    figure = own_masses(arms, ends)
    return {panel.get_title(loc="left"): panel for panel in figure.get_axes()}, ends, arms


def test_masses_are_the_binomial_sum_over_groups_of_the_run(tmp_path):
    panels, _, _ = panels_of(write_run(tmp_path / "run"))
    for line in panels["Positive mass m_S at a solve rate"].lines:
        for p, mass in zip(*line.get_data(), strict=True):
            # GRPO without a division: a success of k in a group of 4 weighs 1 - k / 4.
            expected = sum(
                comb(4, k) * p**k * (1 - p) ** (4 - k) * k / 4 * (1 - k / 4) for k in range(5)
            )
            assert mass == pytest.approx(expected, abs=1e-12)


def test_bars_are_shares_of_groups_of_the_first_and_last_fifth(tmp_path):
    panels, _, _ = panels_of(write_run(tmp_path / "run"))
    for name, steps in (("start", (1, 2)), ("end", (9, 10))):
        rates = []
        for step in steps:
            for group in range(6):
                verdicts = [verdict_of(step, group, i) for i in range(4)]
                rates.append(verdicts.count("right") / (4 - verdicts.count("error")))
        bars = panels[f"Share of groups by solve rate, at the {name}"].patches
        found = {round(bar.get_x() + bar.get_width() / 2, 9): bar.get_height() for bar in bars}
        expected = {round(rate, 9): rates.count(rate) / len(rates) for rate in rates}
        assert found == pytest.approx(expected)


def test_a_controller_is_drawn_as_it_was_at_both_ends(tmp_path):
    fade = WEIGHTS["fade"]()
    _, state = fade.update(np.array([[1.0, 0, 0, 0]]), fade.init(), entropy_nats=0.25)
    for _ in range(200):
        _, state = fade.update(np.array([[1.0, 1, 1, 0]]), state, entropy_nats=0.25)
    run = write_run(tmp_path / "run", weight={"type": "fade"}, state=state)
    _, ends, _ = panels_of(run)
    alphas = []
    for end, state_there in zip(ends[0], (None, state), strict=True):
        parameters = fade.report(state_there or fade.init())
        alphas.append(parameters["alpha"])
        asym = WEIGHTS["power_asym"](alpha=parameters["alpha"], delta=parameters["delta"])
        expected = masses_of(asym, end.masses[0].p_N, 4)
        assert end.masses[0].m_S_N == pytest.approx(expected.m_S_N)
        assert end.masses[0].m_F_N == pytest.approx(expected.m_F_N)
    assert alphas[0] != pytest.approx(alphas[1], abs=0.1)


def test_a_weight_of_a_file_is_not_run_to_open_a_report(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('was run')")
    run = write_run(tmp_path / "run", weight={"type": f"{tmp_path}/mine.py:Mine"})
    panels, ends, arms = panels_of(run)
    assert obstacles(arms, ends) == [("w", "it is a class of a file; gradmass masses draws such")]
    assert not panels["Positive mass m_S at a solve rate"].lines
    assert panels["Share of groups by solve rate, at the end"].patches

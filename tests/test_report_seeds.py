"""Several seeds on the page: what an arm is, and numbers against plain loops."""

import json
import math
import re

import pytest

from gradmass.record import Run, RunWriter
from gradmass.report import plots
from gradmass.report.arms import arms_of, interval_over_seeds, over_seeds
from gradmass.report.page import write_report
from gradmass.report.seeds import compare_over_seeds, compare_with_start

T_975 = {1: 12.706204736, 2: 4.302652730}
"""Student's 97.5% points by degrees of freedom, from a printed table."""
WEIGHTS = {"fade": {"alpha_max": 3.0}, "grpo": {}}


def pass_at_1(weight, seed, step):
    gain = 0.02 * step * (1 + seed) if weight == "fade" else 0.01 * step
    return 0.2 + gain if step else 0.2


def write_run(path, weight="grpo", seed=0, *, num_steps=4, lr=0.1, **config):
    recipe = {
        "seed": seed,
        "model": {"path": "tiny"},
        "task": {"type": "countdown"},
        "weight": {"type": weight, **WEIGHTS[weight]},
        "train": {"steps": num_steps, "group_size": 4, "threads": 1 + seed},
        "optim": {"lr": lr},
    }
    writer = RunWriter.create(path, {"label": weight, "recipe": recipe, **config}, {})
    for step in range(num_steps + 1):
        row = {"step": step, "rollouts": 8 * step}
        if step:
            row["rollout/solve_rate"] = ((step * (2 + seed)) % 5) / 5
            writer.log_rollouts(rollouts(step, seed))
        if step % 2 == 0:
            value = pass_at_1(weight, seed, step)
            row |= {f"test/pass@{k}": 1 - (1 - value) ** k for k in (1, 10, 100)}
            problems = {"problem_ids": ["a", "b"], "solve_probability": [value, value]}
            writer.log_evaluation({"step": step, "split": "test", **problems})
        writer.log(row)
    writer.checkpoint(num_steps, {}, "finished", lambda folder: None)
    writer.close()
    return Run(path)


def rollouts(step, seed):
    shared = {"step": step, "prompt": "p", "completion": "c", "detail": "", "num_tokens": 1}
    for i in range(8):
        right = i < (step + seed) % 4  # of the first group alone
        yield {
            **shared,
            "problem_id": f"train{i // 4}",
            "group": i // 4,
            "verdict": "right" if right else "wrong",
            "weight": 0.5 if right else -0.5,
        }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeds")
    return [write_run(root / f"{w}{s}", w, s) for s in (0, 1, 2) for w in ("fade", "grpo")]


def test_runs_alike_but_for_seed_and_threads_are_one_arm(runs):
    arms = arms_of(runs)
    assert [arm.look.label for arm in arms] == ["fade", "grpo"]
    assert [arm.seeds for arm in arms] == [(0, 1, 2), (0, 1, 2)]
    assert [[run.path.name for run in arm.runs] for arm in arms] == [
        ["fade0", "fade1", "fade2"],
        ["grpo0", "grpo1", "grpo2"],
    ]


@pytest.mark.parametrize(
    "other", [{"lr": 0.2}, {"engine": "trl"}, {"files": {"mine.py": "00"}}, {"num_steps": 2}]
)
def test_any_other_difference_makes_another_arm(tmp_path, other):
    pair = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, **other)]
    assert [len(arm.runs) for arm in arms_of(pair)] == [1, 1]


def test_one_recipe_and_seed_twice_is_no_sample_of_seeds(tmp_path):
    same = [write_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert [len(arm.runs) for arm in arms_of(same)] == [1, 1, 1]


def test_a_run_without_engine_is_local(tmp_path):
    pair = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, engine="local")]
    assert len(arms_of(pair)) == 1


def test_curves_are_means_with_a_band_from_lowest_to_highest(runs):
    panel = plots.groups(runs).get_axes()[0]
    assert panel.get_title(loc="left") == "Solve rate of training rollouts"
    for line, band in zip(panel.lines, panel.collections, strict=True):
        values = [[(step * (2 + seed)) % 5 / 5 for seed in range(3)] for step in range(1, 5)]
        assert list(line.get_xdata()) == [8, 16, 24, 32]
        for found, seeds in zip(line.get_ydata(), values, strict=True):
            assert math.isclose(found, sum(seeds) / 3)
        corners = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices}
        for step, seeds in enumerate(values, 1):
            assert {(8 * step, round(f(seeds), 9)) for f in (min, max)} <= corners


def test_seeds_that_stopped_early_end_the_curve(tmp_path):
    long = write_run(tmp_path / "a")
    short = write_run(tmp_path / "b", seed=1)
    lines = (short.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short.path / "metrics.jsonl").write_text("".join(lines[:4]))
    (arm,) = arms_of([long, Run(short.path)])
    rollouts_SN, _ = over_seeds(arm, "rollouts", "rollout/solve_rate")
    assert rollouts_SN.tolist() == [[8, 16, 24]] * 2
    assert over_seeds(arm, "rollouts", "no/such")[0].shape == (2, 0)


def by_hand(values):
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    half = T_975[len(values) - 1] * spread / math.sqrt(len(values))
    return mean, mean - half, mean + half


def test_differences_are_taken_seed_by_seed(runs):
    fade, grpo = arms_of(runs)
    found = compare_over_seeds(fade, grpo)
    assert (found.step, found.seeds, found.rollouts) == (4, (0, 1, 2), (32, 32))
    for k in (1, 10, 100):
        values = [
            (1 - pass_at_1("grpo", s, 4)) ** k - (1 - pass_at_1("fade", s, 4)) ** k
            for s in range(3)
        ]
        difference = found.differences["test"][k]
        shown = (difference.mean, difference.low, difference.high)
        assert shown == pytest.approx(by_hand(values))
        assert difference.is_decided == (not by_hand(values)[1] <= 0 <= by_hand(values)[2])


def test_pairs_are_of_equal_seeds_whatever_the_order(tmp_path):
    fade = [write_run(tmp_path / f"f{s}", "fade", s) for s in (3, 1, 2)]
    grpo = [write_run(tmp_path / f"g{s}", "grpo", s) for s in (1, 2, 7)]
    found = compare_over_seeds(*arms_of([*fade, *grpo]))
    assert found.seeds == (1, 2)
    values = [pass_at_1("fade", s, 4) - pass_at_1("grpo", s, 4) for s in (1, 2)]
    assert found.differences["test"][1].mean == pytest.approx(sum(values) / 2)
    lonely = compare_over_seeds(*arms_of([*fade[:2], grpo[0], grpo[2]]))
    assert lonely.obstacle == "they share 1 of their seeds, and that needs 2"


def test_a_single_arm_is_compared_with_its_start(runs):
    found = compare_with_start(arms_of(runs)[0])
    gains = [0.02 * 4 * (1 + seed) for seed in range(3)]
    difference = found.differences["test"][1]
    assert (difference.mean, difference.low, difference.high) == pytest.approx(by_hand(gains))


def test_other_problems_are_no_pair_of_seeds(runs, tmp_path):
    others = [write_run(tmp_path / f"g{s}", "grpo", s) for s in (0, 1)]
    for run in others:
        rows = (run.path / "evaluations.jsonl").read_text().replace('"b"', '"z"')
        (run.path / "evaluations.jsonl").write_text(rows)
    found = compare_over_seeds(arms_of(runs)[0], *arms_of([Run(run.path) for run in others]))
    assert found.obstacle == "they were not evaluated on the same problems"


def test_a_mean_needs_a_value_of_every_seed():
    assert interval_over_seeds([0.1, None]) is interval_over_seeds([]) is None
    assert interval_over_seeds([0.5]).mean == 0.5


@pytest.mark.slow
def test_the_page_of_arms(runs, tmp_path):
    write_report(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>fade against grpo on countdown</h1>" in page
    assert "6 runs; those that differ in their seed alone are one arm." in page
    text = " ".join(re.sub("<[^>]+>", " ", page[: page.index("<h2>Figures")]).split())
    ends = [pass_at_1("fade", seed, 4) for seed in range(3)]
    mean, low, high = by_hand(ends)
    shown = f"{mean:.3f} [{low:.3f}, {high:.3f}]".replace("0.", ".").replace("-", "−")
    assert f"3 seeds: 0, 1, 2 finished 4 32 {shown}" in text
    gains = [pass_at_1("fade", s, 4) - pass_at_1("grpo", s, 4) for s in range(3)]
    assert f"+{by_hand(gains)[0]:.3f}".replace("0.", ".") in text
    assert "over 3 seeds, on test problems: pass@1" in text
    assert "95% t intervals over seeds" in text
    (data,) = re.findall(r'id="rollouts">(.*?)</script>', page, re.DOTALL)
    names = [f"{weight}, seed {seed}" for weight in ("fade", "grpo") for seed in range(3)]
    assert json.loads(data)["runs"] == names

"""What a study file may hold, the runs it makes, and their recipes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradmass.config import Recipe
from gradmass.study import PlannedRun, Study, main_runs, tuning_runs
from gradmass.study.design import load_study
from gradmass.study.plan import best_rates, recipe_of, source_of, traced_as
from gradmass.tables import from_tables
from gradmass.types import UsageError
from gradmass.weights.fade import Fade
from gradmass.weights.grpo import Grpo


def test_runs_are_every_setting_arm_and_seed_and_seeds_come_whole(study):
    runs = main_runs(study, {("here", "fade"): 3e-4})
    assert [run.name for run in runs[:6]] == [
        "main.here.grpo.s10",
        "main.here.fade.s10",
        "main.here.yoked.s10",
        "main.there.grpo.s10",
        "main.there.fade.s10",
        "main.there.yoked.s10",
    ]
    assert len({run.name for run in runs}) == 3 * 2 * 7
    # An arm that uses another's learning rate has it.
    assert [run.lr for run in runs[:4]] == [None, 3e-4, 3e-4, None]


def test_axes_are_crossed_with_arms_and_named_in_files(tables):
    tables["axes"] = [
        {"field": "train.policy_lag", "values": [0, 4]},
        {"field": "optim.type", "values": ["adamw", "sgd"]},
    ]
    study = from_tables(Study, tables, "test")
    runs = main_runs(study, {})
    assert len(runs) == len({run.name for run in runs}) == 4 * 3 * 2 * 7
    (run,) = [run for run in runs if run.name == "main.here.grpo.policy_lag-4.type-sgd.s10"]
    recipe = recipe_of(study, run)
    assert (recipe.train.policy_lag, recipe.optim.type) == (4, "sgd")


def test_runs_of_a_seed_differ_in_the_weight_alone(study):
    here = [run for run in main_runs(study, {}) if run.setting == "here" and run.seed == 12]
    grpo, fade = (recipe_of(study, run) for run in here[:2])
    assert grpo.weight == Grpo()
    assert fade.weight == Fade(entropy_form="relative")
    assert replace(grpo, weight=fade.weight) == fade
    assert grpo.seed == 12


def test_tuning_runs_are_short_on_other_problems_and_seeds_and_leave_out_borrowed_rates(study):
    runs = tuning_runs(study)
    assert len(runs) == 2 * 2 * 2 * 2  # settings, rates, arms, seeds
    assert {run.arm for run in runs} == {"grpo", "fade"}
    assert {run.seed for run in runs} == {0, 1}
    recipe = recipe_of(study, runs[0])
    assert recipe.train.steps == Recipe().train.steps // 2
    assert (recipe.task.seed, recipe.optim.lr) == (1, 1e-4)


def test_the_best_rate_has_the_largest_mean_and_a_run_that_diverged_counts_as_zero(study):
    scores = {}
    for run in tuning_runs(study):
        if run.setting == "here":
            scores[run] = 0.4 if run.lr == 2e-4 else 0.3
            if run.arm == "fade" and run.lr == 2e-4 and run.seed == 1:
                scores[run] = None  # mean .2 against .3
        else:
            scores[run] = 0.3
    rates = best_rates(study, scores)
    assert rates == {
        ("here", "grpo"): 2e-4,
        ("here", "fade"): 1e-4,
        ("there", "grpo"): 1e-4,  # the smaller of equals
        ("there", "fade"): 1e-4,
    }


def test_a_yoked_run_replays_the_next_seed_and_the_last_one_the_first(study, tmp_path):
    runs = main_runs(study, {("here", "fade"): 1e-4})
    yoked = [run for run in runs if run.arm == "yoked" and run.setting == "here"]
    sources = [source_of(study, run) for run in yoked]
    assert [source.seed for source in sources] == [11, 12, 13, 14, 15, 16, 10]
    assert all(source in runs for source in sources)
    assert source_of(study, runs[0]) is None
    assert traced_as(study, study.arm("yoked")) == "alpha_delta"
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps([[2.0, 0.5]]))
    weight = recipe_of(study, yoked[0], trace).weight
    assert weight.entries == {0: (2.0, 0.5)}


SHIPPED = sorted(file.stem for file in (Path(__file__).parents[2] / "recipes").glob("study_*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_study_loads_with_all_its_recipes(name):
    study = load_study(name)
    assert main_runs(study, {})


def test_the_design_has_fourteen_fresh_seeds_and_at_most_four_hypotheses():
    study = load_study("study_paper")
    assert study.num_seeds >= 14
    assert 1 <= len(study.hypotheses) <= 4
    assert {setting.name for setting in study.settings} == {"countdown", "maze"}
    steps = {recipe_of(study, run).train for run in main_runs(study, {})[:2]}
    for train in steps:
        assert train.num_problems >= train.steps * train.prompts_per_step  # none comes twice


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a b"}, "name: 'a b' names files"),
        ({"arms": []}, "needs arms"),
        ({"num_seeds": 0}, "num_seeds of at least 1"),
        ({"first_seed": 1}, "would tune on seeds that count"),
        ({"sede": 3}, "unknown key 'sede' in test"),
        ({"arms": [{"name": "a", "weight": "grpo"}] * 2}, "two arms called 'a'"),
        ({"rates": [{"setting": "here", "arm": "x", "lr": 1.0}]}, "a learning rate names arm 'x'"),
        ({"rates": [{"setting": "x", "arm": "fade", "lr": 1.0}]}, "setting 'x', which is none"),
        ({"settings": [{"name": "here"}]}, "setting here needs a level"),
        ({"settings": [{"name": "here", "level": 2.0}]}, "level must be between 0 and 1"),
        ({"axes": [{"field": "optim.lr", "values": []}]}, "axis optim.lr needs values"),
        ({"axes": [{"field": "loss.kl_coef", "values": [1, 1]}]}, "has two values called '1'"),
        ({"axes": [{"field": "model.path", "values": ["a/b"]}]}, "'a/b' names files"),
        ({"axes": [{"field": "seed", "values": [1, 2]}]}, "axis seed sets seed, which comes from"),
        ({"axes": [{"field": "optim.lr", "values": [1.0]}]}, "which comes from tuning.rates"),
        (
            {"axes": [{"field": "loss.kl_coef", "values": [value]} for value in (1, 2)]},
            "two axes called 'loss.kl_coef'",
        ),
        (
            {"settings": [{"name": "here", "level": 0.3, "set": ["seed=4"]}]},
            "setting here sets seed, which comes from first_seed",
        ),
        (
            {"arms": [{"name": "grpo", "weight": "grpo", "set": ["weight=power"]}]},
            "arm grpo sets weight, which comes from the weight of each arm",
        ),
        ({"num_seeds": 21}, "exact tests, which take at most 20 seeds, got num_seeds = 21"),
        ({"recipe": {"seed": 5}}, "recipe.seed = 5 is set, which comes from first_seed"),
        ({"tuning": {"rates": [1e-4, 1e-4]}}, "tuning has two rates called '0.0001'"),
        ({"rates": [{"setting": "here", "arm": "fade", "lr": -1.0}]}, "finite and above 0"),
        (
            {"rates": [{"setting": "here", "arm": "fade", "lr": 1.0}] * 2},
            "two learning rates of arm called 'fade in here'",
        ),
        (
            {"rates": [{"setting": "here", "arm": "yoked", "lr": 1.0}]},
            "arm yoked is trained at the learning rate of fade",
        ),
    ],
)
def test_a_study_that_does_not_fit_together_is_refused(tables, change, message):
    with pytest.raises(UsageError, match=message):
        from_tables(Study, tables | change, "test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace_of": "nobody"}, "arm yoked names arm 'nobody'; known: grpo, fade, yoked"),
        ({"trace_of": ""}, "trace_of and the weight replay belong together"),
        ({"rate_of": ""}, 'rate_of = "fade"'),
        ({"rate_of": "yoked"}, "yoked has no learning rate of its own"),
        ({"trace_of": "yoked"}, "replays yoked, which replays another"),
    ],
)
def test_an_arm_that_replays_what_is_not_there_is_refused(tables, change, message):
    tables["arms"][2] |= change
    with pytest.raises(UsageError, match=message):
        from_tables(Study, tables, "test")


@pytest.mark.parametrize(
    ("measure", "against", "margin", "message"),
    [
        ("pass@7", ["grpo"], 0.1, "unknown measure 'pass@7'"),
        ("pass@1 at the end", ["x"], 0.1, "names arm 'x'"),
        ("pass@1 at the end", [], 0.1, "needs arms to compare with"),
        ("pass@1 at the end", ["fade"], 0.1, "has two arms called 'fade'"),
        ("pass@1 at the end", ["grpo", "grpo"], 0.1, "has two arms called 'grpo'"),
        ("pass@1 at the end", ["grpo"], 0.0, "a finite margin above 0"),
    ],
)
def test_a_comparison_that_is_none_is_refused(tables, measure, against, margin, message):
    part = tables["hypotheses"][0]["parts"][0]
    part |= {"measure": measure, "against": against, "margin": margin}
    with pytest.raises(UsageError, match=message):
        from_tables(Study, tables, "test")


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ('weight = "grpoo"', "run main.only.a.s0 of study t: unknown weight 'grpoo'"),
        ('weight = "power:alpha=-1"', "run main.only.a.s0 of study t: power needs"),
        ('weight = "grpo"\nset = ["optim.lr"]', "a field is set as FIELD=VALUE, got 'optim.lr'"),
        ('weight = "grpo"\nset = ["optim.rl=1"]', "unknown key 'optim.rl'"),
    ],
)
def test_a_mistake_in_an_arm_is_found_before_any_run(tmp_path, arm, message):
    file = tmp_path / "study.toml"
    file.write_text(f'name = "t"\n[[settings]]\nname = "only"\n[[arms]]\nname = "a"\n{arm}\n')
    with pytest.raises(UsageError, match=message):
        load_study(str(file))


@pytest.mark.parametrize("every", [0, 3])
def test_a_fitted_curve_needs_five_evaluations(tmp_path, every):
    text = f"""
        name = "t"
        recipe = {{train = {{steps = 9}}, eval = {{every = {every}}}}}
        settings = [{{name = "only"}}]
        arms = [{{name = "a", weight = "grpo"}}, {{name = "b", weight = "maxrl"}}]
        [[hypotheses]]
        name = "H1"
        claim = "a is faster"
        [[hypotheses.parts]]
        measure = "midpoint of pass@1"
        arm = "a"
        against = ["b"]
        direction = "lower"
        margin = 0.5
    """
    file = tmp_path / "study.toml"
    file.write_text(text)
    wanted = "need 5 evaluations or more, got [24]: set eval.every to at most 2"
    with pytest.raises(UsageError, match=wanted):
        load_study(str(file))
    file.write_text(text.replace(f"every = {every}", "every = 2"))
    assert load_study(str(file)).hypotheses


def test_equal_runs_have_equal_names_and_others_do_not():
    run = PlannedRun(kind="main", setting="a", arm="b", seed=1, lr=1e-4)
    assert run.name == replace(run, lr=2e-4).name == "main.a.b.s1"
    assert replace(run, kind="tuning").name == "tuning.a.b.lr-0.0001.s1"


def test_the_arms_are_all_that_are_asked_for():
    weights = {arm.weight.partition(":")[0] for arm in load_study("study_arms").arms}
    assert weights >= {
        *("reinforce", "grpo", "grpo_std", "power", "asym_grpo_delta", "sign_pure", "power_asym"),
        *("w_reinforce", "pkpo_sloo_minus_one", "maxrl", "rs_grpo", "fade", "constant_mass"),
        *("replay", "entropy_pi", "sign_by_noise", "history", "entropy_share", "open_loop"),
    }
    study = load_study("study_arms")
    (run,) = [r for r in main_runs(study, {}) if r.name == "main.maze.trl_entropy.s2000"]
    recipe = recipe_of(study, run)
    assert (recipe.entropy.is_adaptive, recipe.entropy.target) == (True, 0.2)
    assert recipe.weight == Grpo()


def test_what_has_a_history_sees_its_problems_again_and_batches_are_equally_large():
    study = load_study("study_beyond")
    for setting in study.settings:
        run = next(r for r in main_runs(study, {}) if r.setting == setting.name)
        train = recipe_of(study, run).train
        assert train.prompts_per_step * train.group_size == 256
        is_again = train.steps * train.prompts_per_step > train.num_problems
        assert is_again == setting.name.startswith("cycled")

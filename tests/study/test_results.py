"""What is kept of a run, against the rows of its run directory."""

import json
from statistics import fmean

import pytest

from gradmass.record import Run, RunWriter
from gradmass.study import PlannedRun, Study
from gradmass.study.results import check_same, distilled, keep_study
from gradmass.tables import from_tables, load_recipe, to_tables
from gradmass.types import UsageError

TINY = [
    *("--weight=fade", "--train.steps=4", "--train.num_problems=4", "--train.prompts_per_step=2"),
    *("--train.group_size=4", "--train.threads=1", "--eval.every=2", "--eval.num_problems=3"),
    *("--eval.num_samples=0", "--probe.every=4", "--probe.rank_every=0", "--probe.weights=[]"),
]
RUN = PlannedRun(kind="main", setting="countdown", arm="fade", seed=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from gradmass.config import Recipe
    from gradmass.training.train import train

    recipe = load_recipe(Recipe, None, TINY)
    env = {"packages": {}, "processor": "cpu", "commit": "abc", "is_dirty": False, "more": 1}
    config = {"label": recipe.weight.label, "recipe": to_tables(recipe)}
    path = tmp_path_factory.mktemp("study") / "run"
    writer = RunWriter.create(path, config, env)
    assert train(recipe, writer, lambda row: None)
    writer.close()
    return path


def test_curves_are_values_at_evaluations_and_means_between_them(folder):
    rows = {row["step"]: row for row in Run(folder).metrics}
    found = distilled(RUN, folder, "finished", weight="fade", has_trace=False)
    assert found.curves["step"] == [0, 2, 4]
    assert found.curves["rollouts"] == [0, 16, 32]
    assert found.curves["pass@1"] == pytest.approx(
        [rows[s]["test/pass@1"] for s in (0, 2, 4)], rel=1e-5
    )
    assert found.curves["alpha"][0] is None
    assert found.curves["alpha"][2] == pytest.approx(rows[4]["weight/alpha"], rel=1e-5)
    entropy = [rows[step]["entropy/mean_nats"] for step in (1, 2, 3, 4)]
    # Before the first update stands the first batch, which the start policy sampled.
    wanted = [entropy[0], fmean(entropy[:2]), fmean(entropy[2:])]
    assert found.curves["entropy"] == pytest.approx(wanted, rel=1e-5)
    assert found.curves["rho_right"][:2] == [None, None]
    evaluations = [row for row in Run(folder).evaluations if row["split"] == "test"]
    for kept, row in zip(found.solve_probability_EN, evaluations, strict=True):
        assert kept == pytest.approx(row["solve_probability"], rel=5e-3)
    assert found.label == "fade"
    assert found.trace == {}
    assert "more" not in found.environment


def test_a_trace_has_an_entry_a_batch(folder):
    rows = Run(folder).metrics[1:]
    found = distilled(RUN, folder, "finished", weight="fade", has_trace=True)
    pairs = [[row["weight/alpha"], row["weight/delta"]] for row in rows]
    assert [entry[0] for entry in found.trace["alpha_delta"]] == pytest.approx(
        [pair[0] for pair in pairs], rel=1e-5
    )
    assert [entry[1] for entry in found.trace["alpha_delta"]] == pytest.approx(
        [pair[1] for pair in pairs], rel=1e-5
    )
    masses = [row["mass/positive"] + row["mass/negative"] for row in rows]
    assert found.trace["mass"] == pytest.approx(masses, rel=1e-5)


def test_results_of_a_changed_study_are_not_mixed_with_those_before(tmp_path, tables):
    study = from_tables(Study, tables, "test")
    assert not check_same(tmp_path, study)
    assert list(tmp_path.iterdir()) == []
    keep_study(tmp_path, study)
    more = tables | {"num_seeds": 9, "arms": [*tables["arms"], {"name": "b", "weight": "maxrl"}]}
    for same in (tables, more, tables):
        keep_study(tmp_path, from_tables(Study, same, "test"))
        assert check_same(tmp_path, study)
    other_weight = more | {"arms": [*tables["arms"], {"name": "b", "weight": "grpo_std"}]}
    other_place = tables | {"settings": [*tables["settings"][:1], {"name": "there", "level": 0.3}]}
    for changed, message in (
        (tables | {"recipe": {"train": {"steps": 7}}}, "recipe.train.steps was 500 and is 7"),
        (other_weight, r'arm.b was \["maxrl", ""\] and is \["grpo_std", ""\]'),
        (other_place, r'setting.there was \["task.seed=3"\] and is \[\]; name another folder'),
        (tables | {"tuning": {"share_of_steps": 0.25}}, "tuning was"),
    ):
        for check in (check_same, keep_study):
            with pytest.raises(UsageError, match=message):
                check(tmp_path, from_tables(Study, changed, "test"))


def test_the_replay_of_another_seed_is_another_study(tmp_path, tables):
    def replaying(trace_seed):
        arms = [
            arm | {"trace_seed": trace_seed} if arm["name"] == "yoked" else arm
            for arm in tables["arms"]
        ]
        return from_tables(Study, tables | {"arms": arms}, "test")

    without = tables | {
        "arms": [arm for arm in tables["arms"] if arm["name"] != "yoked"],
        "hypotheses": tables["hypotheses"][:1],
    }
    file = tmp_path / "study.json"
    keep_study(tmp_path, from_tables(Study, without, "test"))
    keep_study(tmp_path, replaying("next"))
    keep_study(tmp_path, from_tables(Study, without, "test"))
    with pytest.raises(UsageError, match=r'trace_seed\.yoked was "next" and is "same"'):
        check_same(tmp_path, replaying("same"))
    before = json.loads(file.read_text())
    assert before.pop("trace_seed")["yoked"] == "next"
    file.write_text(json.dumps(before))  # as earlier versions left it
    assert check_same(tmp_path, replaying("same"))


@pytest.mark.parametrize("content", ["{", "[]", "7", '{"setting": {}, "arm": []}'])
def test_a_damaged_account_of_the_study_is_said(tmp_path, tables, content):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(UsageError, match=r"study\.json is damaged"):
        check_same(tmp_path, from_tables(Study, tables, "test"))

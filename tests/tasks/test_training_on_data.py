"""A run trains on a dataset of the user's with the user's reward, and its record leads back."""

import json

import pytest

from gradmass.cli import main
from gradmass.evaluation.judge import judge
from gradmass.record import Run
from gradmass.tasks import TASKS
from gradmass.types import UsageError

REWARD = """
def even(completion, problem):
    if problem.data["target"] % 7 == 0:
        return None  # cannot tell
    return len(completion) % 2 == 0
"""


def gradmass(*arguments) -> int:
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    return exit.value.code


def test_a_run_trains_on_a_dataset_with_a_reward_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    problems = TASKS["countdown"]().problems("train", 41)
    rows = [{"question": p.prompt, "target": i} for i, p in enumerate(problems)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    # Whom nobody can judge is left out of training, and an error in an evaluation.
    (tmp_path / "test.jsonl").write_text(json.dumps(rows[40]))
    (tmp_path / "my.py").write_text(REWARD)
    recipe = [
        "[task]",
        'type = "dataset"',
        'path = "data.jsonl"',
        'reward = "my.py:even"',
        'test_path = "test.jsonl"',
        "[train]",
        "steps = 2\nnum_problems = 40\nprompts_per_step = 20\ngroup_size = 2\nthreads = 1",
        "[eval]",
        "num_problems = 1\nnum_samples = 2\nevery = 0",
    ]
    (tmp_path / "recipe.toml").write_text("\n".join(recipe))
    assert gradmass("train", "recipe.toml", "--out", "run") == 0
    run = Run(tmp_path / "run")
    assert run.config["recipe"]["task"]["path"] == str(tmp_path / "data.jsonl")
    assert run.config["recipe"]["task"]["reward"] == f"{tmp_path / 'my.py'}:even"
    by_prompt = {row["question"]: row["target"] for row in rows}
    drawn = list(run.rollouts())
    assert len(drawn) == 80
    for row in drawn:
        if row["detail"] == "cut at max_new_tokens":
            assert row["verdict"] == "unparsed"
        elif by_prompt[row["prompt"]] % 7 == 0:
            assert (row["verdict"], row["weight"]) == ("error", 0)
        else:
            assert row["verdict"] == ("wrong" if len(row["completion"]) % 2 else "right")
    assert {row["verdict"] for row in drawn} >= {"error", "right", "wrong"}
    capsys.readouterr()
    monkeypatch.chdir("/")
    assert gradmass("eval", tmp_path / "run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["splits"][0]["split"] == "test"


def test_a_verifier_that_loses_an_answer_stops_the_run():
    class Loses(TASKS["countdown"]):
        def verify_batch(self, problems, completions):
            return super().verify_batch(problems, completions)[1:]

    task = Loses()
    problems = task.problems("train", 2)
    with pytest.raises(UsageError, match="a verdict for each of 3 answers, got 2"):
        judge(task, problems, ["a", "b", "c", "d"], [True, True, False, True])

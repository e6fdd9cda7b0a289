"""The verifiers as TRL's and verl's reward functions, called as those call them."""

import importlib.util
import json

import pytest

from gradmass.rewards import functions
from gradmass.rewards.functions import code_reward, maths_reward
from gradmass.types import UsageError

DOUBLE = {"tests": [{"stdin": "3", "stdout": "6"}, {"stdin": "0", "stdout": "0"}]}
RIGHT = "```python\nprint(2 * int(input()))\n```"


def as_trl_calls(function, completions, **columns):
    """GRPOTrainer's call: prompts, completions, ids, the dataset's columns and its own state."""
    return function(
        prompts=["p"] * len(completions),
        completions=completions,
        completion_ids=[[1, 2]] * len(completions),
        trainer_state=None,
        log_extra=print,
        **columns,
    )


def test_trl_gets_one_for_right_zero_for_not_and_none_for_unknown():
    texts = ["\\boxed{0.5}", "\\boxed{2}", "no box", "\\boxed{1}"]
    assert as_trl_calls(maths_reward(), texts, answer=["1/2", "1/2", "1/2", ""]) == [
        1.0,
        0.0,
        0.0,
        None,
    ]


def test_trl_chats_are_judged_by_their_last_message():
    chat = [{"role": "user", "content": "again?"}, {"role": "assistant", "content": "\\boxed{7}"}]
    assert as_trl_calls(maths_reward("gold"), [chat], gold=["7"]) == [1.0]


def test_settings_reach_the_verifier():
    function = maths_reward(extraction="last_number")
    assert as_trl_calls(function, ["so it is 7"], answer=["7"]) == [1.0]


@pytest.mark.parametrize("form", [json.dumps, lambda problem: problem | {"entry_point": None}])
def test_trl_runs_programs_against_the_tests_of_their_rows(form):
    function = code_reward("tests_of_row")
    texts = [RIGHT, "```python\nprint(6)\n```", "no program"]
    assert as_trl_calls(function, texts, tests_of_row=[form(DOUBLE)] * 3) == [1.0, 0.0, 0.0]


def test_trl_can_name_the_functions_in_its_logs():
    assert (maths_reward().__name__, code_reward().__name__) == ("maths", "code")


def test_a_missing_column_is_said_with_those_there_are():
    with pytest.raises(UsageError, match=r"maths_reward needs the dataset column 'answer' \(there"):
        as_trl_calls(maths_reward(), ["x"], solution=["1"])


@pytest.fixture
def module():
    """The file as verl loads it, by its path."""
    spec = importlib.util.spec_from_file_location("custom_module", functions.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_verl_scores_one_answer(module):
    said = module.compute_score(
        data_source="openai/gsm8k",
        solution_str="\\boxed{31}",
        ground_truth="31",
        extra_info={"index": 0},
    )
    assert said == {"score": 1.0, "acc": True, "verdict": "right", "detail": "31"}


def test_verl_scores_a_batch_of_both_kinds_in_order(module):
    said = module.compute_scores(
        data_sources=["math", "taco", "math", "taco"],
        solution_strs=["\\boxed{1}", RIGHT, "\\boxed{\\{1,2\\}}", "```python\nprint(1)\n```"],
        ground_truths=["1", json.dumps(DOUBLE), "\\{1, 2\\}", DOUBLE],
        extra_infos=[None] * 4,
    )
    assert [row["score"] for row in said] == [1.0, 1.0, 1.0, 0.0]
    assert [row["verdict"] for row in said] == ["right", "right", "right", "wrong"]
    assert len({tuple(row) for row in said}) == 1  # verl needs the same keys in every row


def test_verl_gets_zero_and_the_verdict_where_nothing_can_be_said(module):
    said = module.compute_score("math", "\\boxed{1}", "")
    assert (said["score"], said["verdict"]) == (0.0, "error")

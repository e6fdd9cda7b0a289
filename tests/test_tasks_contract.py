"""What holds of every registered task, of the base class, and of verdicts."""

import dataclasses
import itertools
from dataclasses import dataclass

import pytest

from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import TASKS, Problem, Task
from gradmass.tasks.dataset import DatasetTask
from gradmass.types import UsageError

NUM_PROBLEMS = 100


def golds_of(task: Task, split: str) -> list[tuple[Problem, str]]:
    """Problems of a split with a right answer: the task's solutions, else its demonstrations."""
    try:
        return [(p, task.solutions(p)[0]) for p in task.problems(split, NUM_PROBLEMS)]
    except UsageError:
        return list(itertools.islice(task.demonstrations(split), NUM_PROBLEMS))


def is_read_from_data(name: str) -> bool:
    """Whether a task's problems come from outside; tests/tasks holds those to their contract."""
    return issubclass(TASKS[name], DatasetTask) or name == "reasoning_gym"


@pytest.fixture(params=[name for name in TASKS.names() if not is_read_from_data(name)])
def task(request):
    return TASKS[request.param]()


def test_countdown_is_known_by_its_name():
    assert "countdown" in TASKS.names()
    assert TASKS["countdown"].name == "countdown"


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(UsageError, match="unknown task 'countdwn'; did you mean 'countdown'"):
        TASKS["countdwn"]


def test_every_gold_answer_is_right(task):
    for split in task.splits:
        golds = golds_of(task, split)
        assert len(golds) == NUM_PROBLEMS
        for problem, gold in golds:
            assert task.verify(problem, gold).outcome is Outcome.RIGHT


def test_wrong_answers_are_not_right_and_count_against_the_policy(task):
    golds = golds_of(task, task.splits[0])
    texts = ["", " ", "\n", "?", "\x00", "(" * 1_000, *(gold for _, gold in golds[:20])]
    for problem, gold in golds:
        solutions = task.solutions(problem)
        for text in [*texts, gold[: len(gold) // 2], gold + gold]:
            verdict = task.verify(problem, text)
            assert verdict.is_right == (text in solutions), (problem.id, text)
            assert verdict.is_scorable


def test_a_problem_is_its_id(task):
    for split in task.splits:
        problems = task.problems(split, NUM_PROBLEMS)
        assert len({problem.id for problem in problems}) == NUM_PROBLEMS
        assert len({problem.prompt for problem in problems}) == NUM_PROBLEMS
        assert len(set(problems)) == NUM_PROBLEMS  # equal problems are equal keys


def test_problems_are_the_same_every_time_and_a_prefix_of_more(task):
    for split in task.splits:
        problems = task.problems(split, NUM_PROBLEMS)
        assert type(task)().problems(split, NUM_PROBLEMS) == problems
        assert task.problems(split, NUM_PROBLEMS + 7)[:NUM_PROBLEMS] == problems
        assert tuple(itertools.islice(task.generate(split), NUM_PROBLEMS)) == problems


def test_a_task_with_a_seed_depends_on_it(task):
    if "seed" in {field.name for field in dataclasses.fields(task)}:
        other = dataclasses.replace(task, seed=task.seed + 1)
        for split in task.splits:
            assert other.problems(split, NUM_PROBLEMS) != task.problems(split, NUM_PROBLEMS)


def test_no_problem_is_in_two_splits(task):
    ids = [{p.id for p in task.problems(split, NUM_PROBLEMS)} for split in task.splits]
    for a, b in itertools.combinations(ids, 2):
        assert a.isdisjoint(b)


def test_the_alphabet_covers_prompts_and_answers(task):
    assert len(set(task.alphabet)) == len(task.alphabet)
    for split in task.splits:
        for problem, gold in golds_of(task, split):
            assert set(problem.prompt + gold) <= set(task.alphabet)


def test_solutions_are_in_a_fixed_order_each_once(task):
    for problem in task.problems(task.splits[0], 20):
        solutions = task.solutions(problem)
        assert len(set(solutions)) == len(solutions) > 0
        assert type(task)().solutions(problem) == solutions


@pytest.mark.parametrize("num_problems", [0, -1])
def test_fewer_than_one_problem_is_refused(task, num_problems):
    with pytest.raises(UsageError, match=f"num_problems must be at least 1, got {num_problems}"):
        task.problems(task.splits[0], num_problems)


def test_an_unknown_split_is_refused_with_the_nearest(task):
    split = task.splits[0]
    with pytest.raises(UsageError, match=f"no split '{split}x'; did you mean '{split}'"):
        task.problems(split + "x", 1)


def test_a_task_is_frozen(task):
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.seed = 7


@dataclass(frozen=True, kw_only=True)
class Parrot(Task):
    """Three problems in one split; the least that a task must define."""

    splits = ("train",)
    name = "parrot"

    def generate(self, split):
        for word in ("a", "b", "c"):
            yield Problem(id=word, prompt=word, data=word)

    def verify(self, problem, completion):
        return Verdict(Outcome.RIGHT if completion == problem.data else Outcome.WRONG)


def test_a_split_with_fewer_problems_says_how_many_it_has():
    assert [problem.id for problem in Parrot().problems("train", 3)] == ["a", "b", "c"]
    with pytest.raises(UsageError, match=r"'train' of task 'parrot' has only 3 problems, .* = 4"):
        Parrot().problems("train", 4)


def test_a_batch_is_judged_as_its_answers_are_one_by_one():
    problems = Parrot().problems("train", 3)
    verdicts = Parrot().verify_batch([*problems, problems[0]], ["a", "x", "c", ""])
    assert [verdict.outcome for verdict in verdicts] == ["right", "wrong", "right", "wrong"]
    with pytest.raises(ValueError, match="shorter"):
        Parrot().verify_batch(problems, ["a"])


def test_a_task_without_golds_has_none():
    assert Parrot().golds(Parrot().problems("train", 1)[0]) == ()
    assert Parrot().known_good() is None
    assert Parrot().defect(Parrot().problems("train", 1)[0]) is None


def test_a_task_without_solutions_or_demonstrations_says_so():
    assert Parrot().solutions(Parrot().problems("train", 1)[0]) is None
    with pytest.raises(UsageError, match="'parrot' has no demonstrations"):
        Parrot().demonstrations("train")


def test_a_task_without_a_verifier_cannot_be_made():
    class Silent(Task):
        def generate(self, split):
            yield from ()

    with pytest.raises(TypeError, match="verify"):
        Silent()


@pytest.mark.parametrize(
    ("outcome", "is_right", "is_scorable"),
    [
        (Outcome.RIGHT, True, True),
        (Outcome.WRONG, False, True),
        (Outcome.UNPARSED, False, True),
        (Outcome.TIMEOUT, False, True),
        (Outcome.ERROR, False, False),
    ],
)
def test_what_a_verdict_counts_as(outcome, is_right, is_scorable):
    verdict = Verdict(outcome, "why")
    assert (verdict.is_right, verdict.is_scorable) == (is_right, is_scorable)
    assert (str(verdict.outcome), verdict.detail) == (outcome.value, "why")


def test_there_are_five_outcomes():
    assert [str(outcome) for outcome in Outcome] == [
        "right",
        "wrong",
        "unparsed",
        "timeout",
        "error",
    ]

"""Splits, repeated questions, overlap, solve rates, unusable rows, prompts, own rewards."""

import gzip
import hashlib
import json
import warnings

import pytest

from gradmass.rewards import Outcome, Verdict
from gradmass.tables import from_spec, from_tables, to_tables, to_toml
from gradmass.tasks import TASKS, Problem, Task
from gradmass.tasks.dataset import is_held_out, question_key, verdict_of
from gradmass.types import UsageError

QUESTIONS = [f"What is {i} + {i}?" for i in range(400)]
REWARD = """
from gradmass.rewards import Outcome, Verdict

def exact(completion, problem):
    return completion == problem.data["answer"]

def shaped(completion, problem):
    return 0.5 - len(completion)

def absent(completion, problem):
    return None if completion == "?" else Verdict(Outcome.UNPARSED, "no")

def broken(completion, problem):
    return {}["key"]
"""


def jsonl(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def data(tmp_path) -> str:
    rows = [{"question": q, "answer": str(2 * i)} for i, q in enumerate(QUESTIONS)]
    return jsonl(tmp_path / "data.jsonl", rows)


@pytest.fixture
def reward(tmp_path) -> str:
    (tmp_path / "my.py").write_text(REWARD)
    return f"{tmp_path / 'my.py'}:exact"


def make(path, reward, **fields) -> Task:
    return TASKS["dataset"](path=path, reward=reward, **fields)


def questions(task, split) -> list[str]:
    return [problem.prompt for problem in task.generate(split)]


def test_the_key_of_a_question_is_the_hash_of_its_words():
    expected = hashlib.sha256(b"What is 2 + 2?").hexdigest()[:32]
    assert question_key(" What  is\n2 + 2? ") == expected
    assert question_key("Cafe\u0301") == question_key("Caf\u00e9")
    assert len({question_key(q) for q in ["x+1", "x-1", "X+1", "x²", "x2", "x + 1"]}) == 6


def test_the_held_out_share_is_the_hash_as_a_fraction_below_it():
    for question in QUESTIONS:
        digest = hashlib.sha256(question.encode()).hexdigest()
        fraction = int(digest[:13], 16) / 16**13
        for share in (0.0, 0.1, 0.5, 1.0):
            assert is_held_out(question_key(question), share) == (fraction < share)


def test_splits_are_disjoint_complete_in_order_and_stable_under_more_data(tmp_path, data, reward):
    task = make(data, reward, test_share=0.25)
    train, test = questions(task, "train"), questions(task, "test")
    assert sorted(train + test) == sorted(QUESTIONS)
    assert train == [q for q in QUESTIONS if q in train]
    assert 60 < len(test) < 140
    rows = [{"question": q, "answer": ""} for q in [*QUESTIONS[200:], "new?", *QUESTIONS[:200]]]
    other = make(jsonl(tmp_path / "other.jsonl", rows), reward, test_share=0.25)
    assert set(test) - {"new?"} == set(questions(other, "test")) - {"new?"}


def test_a_question_held_out_at_one_share_is_held_out_at_a_larger_one(data, reward):
    small, large = (questions(make(data, reward, test_share=s), "test") for s in (0.1, 0.4))
    assert set(small) < set(large)
    assert questions(make(data, reward, test_share=1.0), "train") == []
    assert questions(make(data, reward, test_share=0.0), "test") == []


def test_a_problem_has_the_hash_as_id_whatever_file_it_is_in(tmp_path, data, reward):
    problem = next(make(data, reward, test_share=0.0).generate("train"))
    assert problem.id == hashlib.sha256(b"What is 0 + 0?").hexdigest()[:16]
    moved = jsonl(tmp_path / "moved.jsonl", [{"question": "What is 0  + 0?", "answer": "0"}])
    assert next(make(moved, reward, test_share=0.0).generate("train")).id == problem.id


def test_repeated_questions_are_used_once_and_told(tmp_path, reward):
    rows = [{"question": q} for q in ["a", "b", "a ", "c", "b", "a"]]
    path = jsonl(tmp_path / "d.jsonl", rows)
    task = make(path, reward, test_share=0.0)
    with pytest.warns(UserWarning, match="a question is used once") as told:
        assert questions(task, "train") == ["a", "b", "c"]
    expected = f"{path}, row 3 asks what {path}, row 1 asks; a question is used once"
    assert [str(warning.message) for warning in told] == [expected]
    census = task.census("train")
    assert (census.num_rows, census.num_problems, census.left_out) == (6, 3, {"repeated": 3})


def test_repeated_questions_with_other_answers_are_told_apart(tmp_path):
    rows = [{"problem": "p", "answer": 1}, {"problem": "p", "answer": 2}]
    task = TASKS["deepscaler"](path=jsonl(tmp_path / "d.jsonl", rows), test_share=0.0)
    with pytest.warns(UserWarning, match=r"row 2 asks what .*row 1 asks but answers '2'"):
        (problem,) = task.generate("train")
    assert problem.data.gold == "1"
    assert task.census("train").left_out == {"contradicts": 1}


def test_no_question_of_the_test_data_is_trained_on(tmp_path, reward):
    train = jsonl(tmp_path / "train.jsonl", [{"question": q} for q in "abcd"])
    test = jsonl(tmp_path / "test.jsonl", [{"question": q} for q in ["b", "x", " d"]])
    task = make(train, reward, test_path=test)
    assert questions(task, "test") == ["b", "x", " d"]
    with pytest.warns(UserWarning, match="row 2 asks what a test problem asks; such problems are"):
        assert questions(task, "train") == ["a", "c"]
    assert task.census("train").left_out == {"overlap": 2}


def test_named_splits_of_one_folder(tmp_path, reward):
    jsonl(tmp_path / "train.jsonl", [{"question": "a"}, {"question": "b"}])
    jsonl(tmp_path / "test.jsonl", [{"question": "c"}])
    task = make(str(tmp_path), reward, split="train", test_split="test")
    assert (questions(task, "train"), questions(task, "test")) == (["a", "b"], ["c"])


UNUSABLE = [{"question": "a"}, {"q": "b"}, {"question": " "}, {"question": "c"}]


def test_a_row_that_makes_no_problem_stops_with_its_place_and_the_way_out(tmp_path, reward):
    path = jsonl(tmp_path / "d.jsonl", UNUSABLE)
    with pytest.raises(UsageError) as error:
        questions(make(path, reward, test_share=0.0), "train")
    assert str(error.value) == (
        f"{path}, row 2: has no field 'question' (it has: q); "
        'task.unusable = "skip" leaves such rows out'
    )


def test_rows_that_make_no_problem_are_left_out_when_asked_and_told(tmp_path, reward):
    path = jsonl(tmp_path / "d.jsonl", UNUSABLE)
    task = make(path, reward, test_share=0.0, unusable="skip")
    with pytest.warns(UserWarning, match="such rows are left out") as told:
        assert questions(task, "train") == ["a", "c"]
    (only,) = told
    assert str(only.message).startswith(f"{path}, row 2: has no field 'question'")
    assert task.census("train").left_out == {"unusable": 2}


def rates_of(data, reward) -> dict[str, float]:
    """Solve rates 0.0, 0.1, ... 0.9, 0.0, ... by problem."""
    problems = make(data, reward, test_share=0.0).generate("train")
    return {problem.id: (i % 10) / 10 for i, problem in enumerate(problems)}


@pytest.mark.parametrize("form", ["solve_rate", "correct", "verdict"])
def test_the_filter_keeps_training_problems_within_the_rates_ends_included(
    tmp_path, data, reward, form
):
    rows = []
    for name, rate in rates_of(data, reward).items():
        right = [True] * round(10 * rate) + [False] * round(10 - 10 * rate)
        if form == "solve_rate":
            rows.append({"problem_id": name, "solve_rate": rate})
        elif form == "correct":
            rows += [{"problem_id": name, "correct": x} for x in right]
        else:
            rows += [{"problem_id": name, "verdict": "right" if x else "wrong"} for x in right]
            rows.append({"problem_id": name, "verdict": "error"})
    file = tmp_path / "rates.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    task = make(
        data,
        reward,
        test_share=0.25,
        solve_rates=str(file),
        min_solve_rate=0.2,
        max_solve_rate=0.7,
    )
    with pytest.warns(UserWarning, match=r"is solved 0\.\d00 of the time; those outside \[0\.2, 0"):
        train = questions(task, "train")
    assert train == [
        q
        for i, q in enumerate(QUESTIONS)
        if 2 <= i % 10 <= 7 and not is_held_out(question_key(q), 0.25)
    ]
    # The benchmark stays what it is.
    assert len(questions(task, "test")) == len(
        questions(make(data, reward, test_share=0.25), "test")
    )


def test_problems_without_a_solve_rate_are_left_out_and_told(tmp_path, data, reward):
    (first, *_) = rates_of(data, reward)
    rates = jsonl(tmp_path / "r.jsonl", [{"problem_id": first, "solve_rate": 0.5}])
    task = make(data, reward, test_share=0.0, solve_rates=rates)
    with pytest.warns(UserWarning, match=r"row 2\) has no solve rate in .*r.jsonl"):
        assert questions(task, "train") == QUESTIONS[:1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem_id": "a"}, "row 1: has no field 'solve_rate' or 'correct' or 'verdict'"),
        ({"solve_rate": 0.5}, "row 1: has no field 'problem_id'"),
        (
            {"problem_id": "a", "solve_rate": 1.5},
            r"solve_rate must be a number in \[0, 1\], got 1.5",
        ),
        (
            {"problem_id": "a", "solve_rate": "x"},
            r"solve_rate must be a number in \[0, 1\], got 'x'",
        ),
        ({"problem_id": "a", "correct": 0.5}, "correct must be true, false, 1 or 0, got 0.5"),
        ({"problem_id": "a", "verdict": "rihgt"}, "verdict must be one of right, wrong, unparsed"),
        ({"problem_id": "a", "verdict": "error"}, "holds no solve rate"),
    ],
)
def test_a_file_of_solve_rates_is_read_strictly(tmp_path, data, reward, row, message):
    rates = jsonl(tmp_path / "r.jsonl", [row])
    with pytest.raises(UsageError, match=message):
        list(make(data, reward, solve_rates=rates).generate("train"))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"test_share": 1.1}, r"test_share must be in \[0, 1\], got 1.1"),
        ({"min_solve_rate": 0.8, "max_solve_rate": 0.2}, "min_solve_rate = 0.8 is above max_solve"),
        ({"max_solve_rate": 0.8}, "a filter by solve rate needs solve_rates, a file of them"),
        ({"template": "{question}"}, "template must hold {prompt} once, got '{question}'"),
        ({"path": ""}, "needs path, where its data is"),
        ({"reward": "nowhere.py:f"}, "there is no file"),
        ({"reward": ""}, "task dataset needs reward"),
    ],
)
def test_fields_that_make_no_task_are_refused(data, reward, fields, message):
    with pytest.raises(UsageError, match=message.replace("{", r"\{")):
        TASKS["dataset"](**({"path": data, "reward": reward} | fields))


def test_the_prompt_is_the_template_around_question_and_instruction(tmp_path, reward):
    path = jsonl(tmp_path / "d.jsonl", [{"question": "a{b}?"}])
    chat = "<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    task = make(path, reward, test_share=0.0, instruction=" Be brief.", template=chat)
    assert questions(task, "train") == [
        "<|im_start|>user\na{b}? Be brief.<|im_end|>\n<|im_start|>assistant\n"
    ]


def test_a_question_may_be_chat_messages(tmp_path, reward):
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "asked"}]
    path = jsonl(tmp_path / "d.jsonl", [{"prompt": messages}, {"prompt": [{"role": "user"}]}])
    task = make(path, reward, question="prompt", test_share=0.0)
    problems = task.generate("train")
    assert next(problems).prompt == "asked"
    with pytest.raises(UsageError, match="row 2: field 'prompt' holds no question"):
        next(problems)


def test_a_reward_function_of_ones_own_judges(data, reward):
    task = make(data, reward, test_share=0.0)
    problem = task.problems("train", 3)[2]
    assert [task.verify(problem, text).outcome for text in ("4", "5")] == ["right", "wrong"]
    verdicts = task.verify_batch([problem, problem], ["4", "5"])
    assert [verdict.is_right for verdict in verdicts] == [True, False]


def test_a_reward_function_replaces_the_verifier_of_any_dataset(tmp_path, reward):
    rows = [{"problem": "p", "answer": 1}]
    own = reward.replace(":exact", ":absent")
    task = TASKS["deepscaler"](path=jsonl(tmp_path / "d.jsonl", rows), test_share=0.0, reward=own)
    (problem,) = task.problems("train", 1)
    assert task.verify(problem, "\\boxed{1}") == Verdict(Outcome.UNPARSED, "no")
    # Abstaining leaves the rollout out of its group; it is no failure of the policy.
    assert task.verify(problem, "?").outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (True, "right"),
        (1, "right"),
        (1.0, "right"),
        (False, "wrong"),
        (0, "wrong"),
        (None, "error"),
    ],
)
def test_what_a_reward_function_may_return(value, outcome):
    assert verdict_of(value, "my.py:f", "p").outcome == outcome


@pytest.mark.parametrize("value", [0.5, -0.5, float("nan"), 2, "right", [1]])
def test_a_shaped_or_unreadable_reward_is_refused_with_its_problem(value):
    with pytest.raises(UsageError, match=r"reward my.py:f must return true or false, a Verdict or"):
        verdict_of(value, "my.py:f", "p")


def test_a_task_of_a_dataset_survives_its_record(tmp_path, data, reward, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = from_spec(Task, "dataset:path=data.jsonl,reward=my.py:exact,test_share=0.5")
    monkeypatch.chdir("/")
    again = from_tables(Task, to_tables(task), "the record", "task")
    assert again == task
    assert questions(again, "test") == questions(make(data, reward, test_share=0.5), "test")
    assert f'path = "{data}"' in to_toml(task)


def test_reading_does_not_go_beyond_the_problems_asked_for(tmp_path, reward):
    file = tmp_path / "d.jsonl"
    file.write_text('{"question": "a"}\n{"question": "b"}\nno json\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems = make(str(file), reward, test_share=0.0).problems("train", 2)
    assert [type(problem) for problem in problems] == [Problem, Problem]

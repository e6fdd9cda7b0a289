"""GSM8K, MATH, AIME, DeepScaleR and verl's form: what a row asks, its gold, and its verdicts."""

import json
from pathlib import Path

import pytest

from gradmass.tasks import TASKS
from gradmass.types import UsageError

DATA = Path(__file__).parents[1] / "fixtures" / "datasets"
BOXED = "\n\nReason step by step, and put the final answer in \\boxed{}."


def problems(name, path, **fields):
    task = TASKS[name](path=str(DATA / path), test_share=1.0, **fields)
    return task, list(task.generate("test"))


@pytest.mark.parametrize("path", ["gsm8k/test.jsonl", "gsm8k/main", "verl/gsm8k_test.parquet"])
def test_gsm8k_has_the_number_behind_the_marks(path):
    _, found = problems("gsm8k", path)
    assert [problem.data.gold for problem in found] == ["31", "2400", "-4"]


def test_gsm8k_asks_the_question_and_for_a_box():
    _, found = problems("gsm8k", "gsm8k/test_socratic.jsonl")
    assert found[0].prompt == (
        "A box holds 12 pens. Ana buys 3 boxes and gives away 5 pens. How many pens are left?"
        + BOXED
    )


@pytest.mark.parametrize(
    ("path", "golds"),
    [
        ("math/MATH-500_test.jsonl", ["\\frac{3}{4}", "\\{-2,2\\}", "\\text{Ana}"]),
        ("math/math.jsonl", ["\\frac{3}{4}", "\\{-2,2\\}", "90^\\circ"]),
        ("math/test", ["\\frac{3}{4}"]),
    ],
)
def test_math_has_its_answer_or_what_the_last_box_holds(path, golds):
    _, found = problems("math", path)
    assert [problem.data.gold for problem in found] == golds


def test_math_500_keeps_its_ids():
    _, found = problems("math", "math/MATH-500_test.jsonl")
    assert [problem.id for problem in found] == [
        "test/prealgebra/9001.json",
        "test/algebra/9002.json",
        "test/counting_and_probability/9003.json",
    ]


@pytest.mark.parametrize("file", sorted(file.name for file in (DATA / "aime").iterdir()))
def test_every_copy_of_aime_asks_the_same(file):
    _, found = problems("aime", f"aime/{file}")
    assert [(p.prompt, p.data.gold) for p in found] == [
        ("Find the remainder when $7^{3}$ is divided by $1000$." + BOXED, "343"),
        ("How many positive divisors does $4$ have?" + BOXED, "3"),
    ]


@pytest.mark.filterwarnings("ignore:.* asks what .* asks; a question is used once")
def test_verl_rows_have_the_last_message_and_the_ground_truth():
    task, found = problems(
        "deepscaler",
        "verl/dapo-math-17k.parquet",
        extraction="final_answer_line",
        instruction="",
    )
    assert found[0].prompt.startswith("Work out the problem below. End with one line that starts")
    assert found[0].data.gold == "12"
    assert task.verify(found[0], "3 * 4 = 12\nAnswer: $12$").is_right


def test_deepscaler_says_which_row_has_no_answer():
    with pytest.raises(
        UsageError, match=r"deepscaler.json, row 3: field 'answer' is empty; task.un"
    ):
        problems("deepscaler", "deepscaler")
    with pytest.warns(UserWarning, match="row 3: field 'answer' is empty; such rows are left out"):
        _, found = problems("deepscaler", "deepscaler", unusable="skip")
    assert [problem.data.gold for problem in found] == ["12", "\\frac{1}{6}"]


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("gsm8k", {"question": "q", "answer": "31"}, "field 'answer' has no '#### number'"),
        ("gsm8k", {"question": "q"}, "has no field 'answer'"),
        ("gsm8k", {"answer": "#### 1"}, "has no field 'problem' or 'question'"),
        ("math", {"problem": "p", "solution": "so 5"}, r"field 'solution' has no \boxed{answer}"),
        ("math", {"problem": "p", "answer": ""}, "field 'answer' is empty"),
        ("aime", {"problem": "p", "answer": "-3"}, "an integer from 0 to 999, got '-3'"),
        ("aime", {"problem": "p", "answer": 1000}, "an integer from 0 to 999, got '1000'"),
        ("aime", {"problem": "p", "answer": None}, "an integer from 0 to 999, got 'None'"),
        ("deepscaler", {"prompt": "p", "reward_model": {}}, "'reward_model' has no ground_truth"),
        ("deepscaler", {"problem": "p", "answer": True}, "field 'answer' must be a text, got True"),
    ],
)
def test_what_a_row_lacks_is_said_with_its_place(tmp_path, name, row, message):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row))
    with pytest.raises(UsageError) as error:
        list(TASKS[name](path=str(file)).generate("train"))
    assert str(error.value).startswith(f"{file}, row 1: ")
    assert message in str(error.value)


def test_answers_are_judged_for_equivalence_all_at_once():
    task, found = problems("math", "math/MATH-500_test.jsonl")
    texts = ["\\boxed{0.75}", "The set is $\\boxed{\\{2, -2\\}}$.", "\\boxed{Ana}"]
    assert [verdict.outcome for verdict in task.verify_batch(found, texts)] == ["right"] * 3
    wrong = ["\\boxed{\\frac{4}{3}}", "\\boxed{2}", "Ana"]
    outcomes = [verdict.outcome for verdict in task.verify_batch(found, wrong)]
    assert outcomes == ["wrong", "wrong", "unparsed"]


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({}, "\\boxed{31}"),
        ({"extraction": "final_answer_line"}, "Answer: 31"),
        ({"extraction": "last_number"}, "31"),
        ({"thinking": "require"}, "</think>\\boxed{31}"),
    ],
)
def test_the_gold_stands_where_the_rule_looks(fields, gold):
    task, found = problems("gsm8k", "gsm8k/test.jsonl", **fields)
    assert task.golds(found[0]) == (gold,)
    assert task.verify(found[0], gold).is_right
    assert task.verify(*task.known_good()).is_right


def test_an_unknown_rule_is_refused():
    with pytest.raises(UsageError, match="no extraction rule 'first_box'"):
        TASKS["gsm8k"](path="x", extraction="first_box")

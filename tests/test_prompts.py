"""What a model reads of a problem, and the format rule on what it answers."""

import copy
import json

import pytest

from gradmass.config import PromptConfig, SftRecipe
from gradmass.rewards import Outcome
from gradmass.rewards.layout import answer_in_layout
from gradmass.tables import load_recipe, to_tables
from gradmass.tasks import Problem, Task
from gradmass.tasks.countdown import Countdown
from gradmass.tasks.dressed import dress, why_unlisted
from gradmass.training.model import character_tokenizer
from gradmass.training.policy import dressed_task, prompt_renderer
from gradmass.training.rollout import end_tokens
from gradmass.training.solved import Rows
from gradmass.types import UsageError

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


@pytest.fixture
def chatty():
    tokenizer = character_tokenizer("abcdefghijklmnopqrstuvwxyz[]<>/ 0123456789+=:,.\n")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize(
    ("text", "layout", "answer"),
    [
        ("anything </answer>", "none", "anything </answer>"),
        ("so <answer> 4 </answer>\n", "answer", "4"),
        ("<answer></answer>", "answer", ""),
        ("<answer>4</answer> or so", "answer", None),
        ("<answer>4</answer><answer>5</answer>", "answer", None),
        ("<answer>4<answer></answer>", "answer", None),
        ("</answer>4<answer>", "answer", None),
        ("<answer>4", "answer", None),
        ("4", "answer", None),
        ("<think>hm</think>\n<answer>4</answer>", "think_answer", "4"),
        ("<think>hm</think> so <answer>4</answer>", "think_answer", None),
        ("so <think>hm</think><answer>4</answer>", "think_answer", None),
        ("<answer>4</answer><think>hm</think>", "think_answer", None),
        ("<think><answer>4</answer></think>", "think_answer", None),
        ("<think>hm</think></think><answer>4</answer>", "think_answer", None),
        ("", "think_answer", None),
        ("<answer>" * 100_000, "answer", None),
    ],
)
def test_an_answer_counts_only_where_the_completion_has_the_form(text, layout, answer):
    assert answer_in_layout(text, layout) == answer


def test_why_nothing_is_listed_names_the_format_where_it_is_the_reason():
    class Open(Countdown):
        solutions = Task.solutions

    problem = Countdown().problems("train", 1)[0]
    hidden = dress(Countdown(), lambda prompt: f"Q: {prompt}", "answer")
    shown = hidden.problems("train", 1)[0]
    said = "prompt.format = 'answer' leaves no end of right completions"
    assert why_unlisted(hidden, shown) == said
    for task in (Open(), dress(Open(), str, "answer")):
        assert why_unlisted(task, problem) == "task 'countdown' does not list its right answers"


def test_a_completion_is_right_where_format_and_answer_both_are():
    problem = Countdown().problems("train", 1)[0]
    gold = Countdown().solutions(problem)[0]
    task = dress(Countdown(), str, "answer")
    outcomes = [
        verdict.outcome
        for verdict in task.verify_batch(
            [problem] * 4,
            [f"<answer>{gold}</answer>", gold, "<answer>1+1</answer>", "<answer>x</answer>"],
        )
    ]
    assert outcomes == [Outcome.RIGHT, Outcome.UNPARSED, Outcome.WRONG, Outcome.UNPARSED]
    assert task.verify(problem, f"<answer>{gold}</answer>").is_right
    assert task.solutions(problem) is None  # any text may stand before
    assert all(task.verify(problem, text).is_right for text in task.golds(problem))
    solved, answer = next(task.demonstrations("train"))
    assert task.verify(solved, answer).is_right


def test_a_dressed_task_is_the_task_but_for_its_prompts():
    plain = Countdown(seed=4)
    task = dress(plain, lambda prompt: f"Q: {prompt}", "none")
    assert to_tables(task) == to_tables(plain)
    assert task.splits == plain.splits
    assert isinstance(task, Countdown)
    for shown, known in zip(task.problems("test", 5), plain.problems("test", 5), strict=True):
        assert shown.prompt == f"Q: {known.prompt}"
        assert (shown.id, shown.data) == (known.id, known.data)
        assert task.solutions(shown) == plain.solutions(known)
    assert plain.problems("test", 1)[0].prompt.startswith("Q: ") is False
    assert dress(plain, str, "none") is plain


class SeesPrompt(Countdown):
    """Judges by the prompt."""

    def verify(self, problem: Problem, completion: str):
        assert problem.prompt == self.problems("train", 1)[0].prompt
        return super().verify(problem, completion)


def test_the_verifier_sees_the_problem_as_its_task_made_it():
    task = dress(SeesPrompt(), lambda prompt: f"Q: {prompt}", "answer")
    problem = task.problems("train", 1)[0]
    assert problem.prompt.startswith("Q: ")
    assert not task.verify(problem, "<answer>1</answer>").is_right


def test_prompts_are_rendered_as_the_recipe_says(chatty):
    def render(**fields):
        return prompt_renderer(PromptConfig(**fields), chatty, "m")("one")

    assert render() == "one"
    assert render(instruction="think.") == "one\nthink."
    assert render(template="chat") == "[user]one<end>[assistant]"
    assert (
        render(template="chat", system="be", instruction="think.")
        == "[system]be<end>[user]one\nthink.<end>[assistant]"
    )
    started = copy.deepcopy(chatty)
    started.bos_token = "<pad>"
    started.add_bos_token = True
    text = prompt_renderer(PromptConfig(), started, "m")("one")
    expected = "<pad>one" if started("a")["input_ids"][0] == 0 else "one"
    assert text == expected
    task = dressed_task(PromptConfig(template="chat"), Countdown(), chatty, "m")
    assert task.problems("train", 1)[0].prompt.startswith("[user]")


def test_what_no_prompt_can_be_is_refused(chatty):
    with pytest.raises(UsageError, match=r"prompt.system is a message of a chat"):
        PromptConfig(system="be")
    chatty.chat_template = None
    with pytest.raises(UsageError, match="'m' has no chat template"):
        prompt_renderer(PromptConfig(template="chat"), chatty, "m")
    for flags, message in (
        (["--data.path=x"], "data.path = 'x' needs a model to go on from: set start.path"),
        (["--lora.rank=4"], "lora.rank = 4 needs a model to go on from"),
        (["--prompt.template=chat"], r"\[prompt\] needs a model to go on from"),
        (["--prompt.format=xml"], "prompt.format must be"),
    ):
        with pytest.raises(UsageError, match=message):
            load_recipe(SftRecipe, None, flags)


def rows_of(tmp_path, tokenizer, shipped, *rows, render=str):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return Rows(str(file), tokenizer, render, end_tokens(shipped[0], tokenizer))


def test_rows_of_every_form_are_learnt_up_to_their_end_token(tmp_path, chatty, shipped):
    talk = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
    ]
    rows = rows_of(
        tmp_path,
        chatty,
        shipped,
        {"prompt": "one", "completion": "two"},
        {"prompt": talk[:2], "completion": talk[2:3]},
        {"messages": talk, "id": 3},
        render=lambda prompt: f"{prompt}=",
    )
    found = [(chatty.decode(s.prompt), chatty.decode(s.target)) for s in rows._solved]
    asked = "[system]be<end>[user]one<end>[assistant]"
    assert found == [
        ("one=", "two<end>"),
        (asked, "two<end>"),
        (asked, "two<end>"),
        (f"{asked}two<end>[user]three<end>[assistant]", "four<end>"),
    ]
    stream = rows.shuffled(3)
    epochs = [[next(stream) for _ in range(4)] for _ in range(3)]
    assert all(sorted(map(id, epoch)) == sorted(map(id, rows._solved)) for epoch in epochs)
    again = rows.shuffled(3)
    assert [next(again) for _ in range(12)] == [s for epoch in epochs for s in epoch]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"completion": "x"}, "row 1: has no field 'prompt'"),
        ({"prompt": "x"}, "row 1: has no field 'completion'"),
        ({"prompt": "x", "completion": ""}, "row 1: field 'completion' is empty"),
        ({"prompt": "x", "completion": 3}, "row 1: field 'completion' must be a text"),
        ({"prompt": 3, "completion": "x"}, "row 1: field 'prompt' must be a text"),
        ({"messages": []}, "row 1: field 'messages' must be a list of messages"),
        ({"messages": "hi"}, "row 1: field 'messages' must be a list of messages"),
        ({"messages": [{"role": "user"}]}, "row 1: field 'messages' must be a list of messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "has no turn of the assistant"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "has no turn of the assistant"),
        (
            {"prompt": [{"role": "user", "content": "x"}], "completion": "y"},
            "field 'completion' must be a list of messages",
        ),
        (
            {
                "prompt": [{"role": "user", "content": "x"}],
                "completion": [{"role": "user", "content": "y"}],
            },
            "field 'completion' must hold one message of the assistant",
        ),
        ([1], "row 1: "),
        (
            {"prompt": "a+b=", "completion": "wörld"},
            "the tokenizer reads 'a\\+b=wörld' as 'a\\+b=wrld'",
        ),
    ],
)
def test_a_row_that_is_none_is_named(tmp_path, chatty, shipped, row, message):
    with pytest.raises(UsageError, match=message) as error:
        rows_of(tmp_path, chatty, shipped, row)
    assert "rows.jsonl" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_rows_no_template_and_one_that_rewrites_history_are_refused(tmp_path, chatty, shipped):
    turn = {"messages": [{"role": r, "content": "x"} for r in ("user", "assistant")]}
    with pytest.raises(UsageError, match="has no rows"):
        rows_of(tmp_path, chatty, shipped)
    chatty.chat_template = "{{ messages | length }}{{ add_generation_prompt }}"
    with pytest.raises(UsageError, match="writes what stands before a turn otherwise"):
        rows_of(tmp_path, chatty, shipped, turn)
    chatty.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(UsageError, match="row 1: the chat template fails on it: no"):
        rows_of(tmp_path, chatty, shipped, turn)
    chatty.chat_template = None
    with pytest.raises(UsageError, match="has messages, and the tokenizer has no chat template"):
        rows_of(tmp_path, chatty, shipped, turn)

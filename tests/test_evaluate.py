"""Exact evaluation against answers scored one by one, and against enumeration."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, OPTConfig

from gradmass.config import TinyModelConfig
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.tasks.countdown import Countdown
from gradmass.training import evaluate
from gradmass.training.evaluate import (
    ExactEvaluation,
    count_right,
    evaluate_exactly,
)
from gradmass.training.model import PAD, character_tokenizer, tiny_model
from gradmass.training.rollout import DIVERGED
from gradmass.types import UsageError

COUNTDOWN = Countdown()


@dataclass(frozen=True, kw_only=True)
class Listed(Task):
    """Problems whose right answers are given: ``data`` is the tuple of them."""

    splits: ClassVar[tuple[str, ...]] = ("train",)

    def generate(self, split: str) -> Iterator[Problem]:
        raise NotImplementedError

    def verify(self, problem: Problem, completion: str) -> Verdict:
        return Verdict(Outcome.RIGHT if completion in problem.data else Outcome.WRONG)

    def solutions(self, problem: Problem) -> tuple[str, ...]:
        return problem.data


def listed(prompt, *answers):
    return Problem(id=prompt, prompt=prompt, data=answers)


def literal_probability(model, tokenizer, prompt, answer):
    """Probability of an answer and the end token, scored alone: no padding, no cache."""
    prompt_tokens, answer_tokens = (tokenizer(text)["input_ids"] for text in (prompt, answer))
    answer_tokens = [*answer_tokens, tokenizer.eos_token_id]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt_tokens + answer_tokens]), use_cache=False)
    logits_TV = logits.logits[0].double()
    total = 0.0
    for t, token in enumerate(answer_tokens):
        row = logits_TV[len(prompt_tokens) - 1 + t]
        total += (row[token] - row.logsumexp(0)).item()
    return math.exp(total)


@pytest.fixture(scope="module")
def few(held_out):
    """Ten held-out problems with up to 40 right answers."""
    return [p for p in held_out if len(COUNTDOWN.solutions(p)) <= 40][:10]


@pytest.fixture(scope="module")
def few_evaluated(shipped, few):
    return evaluate_exactly(*shipped, COUNTDOWN, few)


def check_against_literal(model, tokenizer, problems, exact):
    for i, problem in enumerate(problems):
        p = [
            literal_probability(model, tokenizer, problem.prompt, answer)
            for answer in COUNTDOWN.solutions(problem)
        ]
        total = math.fsum(p)
        entropy = -math.fsum(x / total * math.log(x / total) for x in p)
        assert exact.solve_probability_N[i] == pytest.approx(total, rel=1e-4)
        assert exact.answer_entropy_nats_N[i] == pytest.approx(entropy, abs=1e-4)
        assert exact.num_effective_N[i] == pytest.approx(math.exp(entropy), rel=1e-4)


def test_exact_values_equal_answers_scored_one_by_one(shipped, few, few_evaluated):
    assert len({len(problem.prompt) for problem in few}) > 1
    assert sum(len(COUNTDOWN.solutions(problem)) for problem in few) > 50
    check_against_literal(*shipped, few, few_evaluated)


def test_so_they_do_for_policies_of_other_families(other_policy, tokenizer, few):
    exact = evaluate_exactly(other_policy, tokenizer, COUNTDOWN, few[:3])
    check_against_literal(other_policy, tokenizer, few[:3], exact)


def test_and_of_one_whose_head_reaches_into_its_body(tokenizer, few):
    shape = {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": 21, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        OPTConfig(**tokens, **shape, word_embed_proj_dim=32, max_position_embeddings=64)
    ).eval()
    exact = evaluate_exactly(model, tokenizer, COUNTDOWN, few[:2])
    check_against_literal(model, tokenizer, few[:2], exact)


@pytest.mark.parametrize("tokens_at_once", [1, 20, 64, 1_000])
def test_batches_of_any_size_give_the_same(
    monkeypatch, shipped, few, few_evaluated, tokens_at_once
):
    monkeypatch.setattr(evaluate, "TOKENS_AT_ONCE", tokens_at_once)
    again = evaluate_exactly(*shipped, COUNTDOWN, few)
    for name in ("solve_probability_N", "answer_entropy_nats_N", "num_effective_N"):
        assert getattr(again, name) == pytest.approx(getattr(few_evaluated, name), rel=1e-5)


@pytest.mark.parametrize("is_shipped", [True, False])
def test_a_forward_pass_holds_no_more_tokens_than_allowed(
    monkeypatch, shipped, other_policy, few, is_shipped
):
    model, tokenizer = shipped
    sizes, logprobs = [], evaluate.prompted_logprobs

    def counted(*arguments):
        sizes.append(arguments[4].numel())
        return logprobs(*arguments)

    monkeypatch.setattr(evaluate, "prompted_logprobs", counted)
    monkeypatch.setattr(evaluate, "TOKENS_AT_ONCE", 100)
    evaluate_exactly(model if is_shipped else other_policy, tokenizer, COUNTDOWN, few)
    num_answers = sum(len(COUNTDOWN.solutions(problem)) for problem in few)
    assert 0 < max(sizes) <= 100
    # And not many fewer: an answer a batch would be slow.
    assert len(sizes) < num_answers / 3


def test_an_impossible_padding_token_does_not_matter(policy, tokenizer, few):
    def without_padding(_, __, logits):
        return logits.index_fill(-1, torch.tensor([tokenizer.pad_token_id]), -math.inf)

    policy.lm_head.register_forward_hook(without_padding)
    exact = evaluate_exactly(policy, tokenizer, COUNTDOWN, few)
    check_against_literal(policy, tokenizer, few, exact)


def test_the_order_of_problems_changes_nothing(shipped, few, few_evaluated):
    again = evaluate_exactly(*shipped, COUNTDOWN, few[::-1])
    assert again.solve_probability_N[::-1] == pytest.approx(
        few_evaluated.solve_probability_N, rel=1e-5
    )
    assert again.num_effective_N[::-1] == pytest.approx(few_evaluated.num_effective_N, rel=1e-5)


def test_probabilities_of_all_strings_and_of_not_ending_sum_to_one():
    tokenizer, longest = character_tokenizer("ab"), 4
    shape = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    model = tiny_model(shape, tokenizer, 0).eval()
    with torch.no_grad():
        model.lm_head.weight *= 40  # far from uniform
    pieces = [PAD, "a", "b"]  # all that is not the end: a policy may write padding, too
    strings = [
        "".join(choice)
        for length in range(longest + 1)
        for choice in itertools.product(pieces, repeat=length)
    ]
    # Strings that do not end within longest + 1 tokens, one by one.
    not_ended = []
    for choice in itertools.product(pieces, repeat=longest + 1):
        tokens = tokenizer("ab" + "".join(choice))["input_ids"]
        with torch.no_grad():
            logits_TV = model(input_ids=torch.tensor([tokens])).logits[0].double()
        logprobs_TV = logits_TV.log_softmax(-1)
        not_ended.append(
            math.exp(sum(logprobs_TV[1 + t, tokens[2 + t]].item() for t in range(longest + 1)))
        )
    exact = evaluate_exactly(model, tokenizer, Listed(), [listed("ab", *strings)])
    assert 0.01 < math.fsum(not_ended) < 0.99
    assert exact.solve_probability_N[0] + math.fsum(not_ended) == pytest.approx(1, abs=1e-5)
    # Two halves of the strings are two events.
    halves = [listed("ab", *strings[::2]), listed("ab", *strings[1::2])]
    split = evaluate_exactly(model, tokenizer, Listed(), halves)
    assert split.solve_probability_N.sum() == pytest.approx(exact.solve_probability_N[0], rel=1e-5)


def test_a_problem_without_right_answers_is_never_solved(shipped):
    model, tokenizer = shipped
    problems = [listed("1,2=3:"), listed("1,2=3:", "1+2", "2+1"), listed("7:")]
    exact = evaluate_exactly(model, tokenizer, Listed(), problems)
    alone = literal_probability(model, tokenizer, "1,2=3:", "1+2")
    other = literal_probability(model, tokenizer, "1,2=3:", "2+1")
    assert exact.solve_probability_N.tolist() == pytest.approx([0, alone + other, 0], rel=1e-5)
    assert exact.answer_entropy_nats_N[[0, 2]].tolist() == [0, 0]
    assert exact.num_effective_N[[0, 2]].tolist() == [0, 0]
    none = evaluate_exactly(model, tokenizer, Listed(), problems[:1])
    assert none.summary() == {
        **dict.fromkeys(["pass@1", "pass@10", "pass@100"], 0.0),
        "answer_entropy_nats": 0.0,
        "num_effective_answers": 0.0,
    }


def test_the_empty_answer_is_the_end_token_alone(shipped):
    model, tokenizer = shipped
    exact = evaluate_exactly(model, tokenizer, Listed(), [listed("1,2=3:", "")])
    expected = literal_probability(model, tokenizer, "1,2=3:", "")
    assert exact.solve_probability_N[0] == pytest.approx(expected, rel=1e-5)


def test_a_task_without_finite_answers_is_refused(shipped, few):
    class Open(Listed):
        solutions = Task.solutions

    with pytest.raises(UsageError, match="does not list its right answers"):
        evaluate_exactly(*shipped, Open(), few)


def test_without_a_list_of_right_answers_sampling_stands_alone(shipped, few):
    class Open(Listed):
        solutions = Task.solutions

        def verify(self, problem, completion):
            return COUNTDOWN.verify(problem, completion)

    settings = {"max_new_tokens": 20, "seed": 3}
    row, exact = evaluate.evaluate(*shipped, Open(), few, num_samples=12, **settings)
    assert exact is None
    counts, _ = count_right(*shipped, COUNTDOWN, few, 12, 20, 3)
    assert row["sampled_pass@1"] == pytest.approx(counts.mean() / 12)
    assert not any(key.startswith("pass@") for key in row)
    with pytest.raises(UsageError, match="num_samples must be above 0"):
        evaluate.evaluate(*shipped, Open(), few, num_samples=0, **settings)


def test_a_limit_below_the_longest_right_answer_is_refused(shipped, few):
    longest = max(len(text) for problem in few for text in COUNTDOWN.solutions(problem)) + 1
    settings = {"num_samples": 2, "seed": 3}
    evaluate.evaluate(*shipped, COUNTDOWN, few, max_new_tokens=longest, **settings)
    with pytest.raises(UsageError, match=f"max_new_tokens = {longest - 1} cuts right answers"):
        evaluate.evaluate(*shipped, COUNTDOWN, few, max_new_tokens=longest - 1, **settings)


def test_a_diverged_policy_is_refused(policy, tokenizer, few):
    with torch.no_grad():
        policy.lm_head.weight[3, 0] = math.nan
    with pytest.raises(UsageError) as error:
        evaluate_exactly(policy, tokenizer, COUNTDOWN, few[:1])
    assert str(error.value) == DIVERGED


def test_the_summary_averages_over_problems():
    exact = ExactEvaluation(np.array([0.5, 0.0]), np.array([1.0, 0.0]), np.array([math.e, 0.0]), 3)
    assert exact.summary() == {
        "pass@1": 0.25,
        "pass@10": pytest.approx((1 - 0.5**10) / 2),
        "pass@100": pytest.approx((1 - 0.5**100) / 2),
        "answer_entropy_nats": 0.5,
        "num_effective_answers": pytest.approx(math.e / 2),
    }


class Writer:
    """A policy that writes one text for certain."""

    device = torch.device("cpu")
    generation_config = None

    def __init__(self, tokens, vocab_size):
        self.tokens, self.vocab_size, self.t = tokens, vocab_size, 0

    def __call__(self, *, input_ids, cache=None, **_):
        self.t = 0 if cache is None else self.t + 1
        logits = torch.full((len(input_ids), 1, self.vocab_size), -100.0)
        logits[:, :, self.tokens[self.t]] = 0.0
        cache = SimpleNamespace(layers=[], batch_select_indices=lambda rows: None)
        return SimpleNamespace(logits=logits, cache=cache)


def test_a_right_text_that_did_not_end_is_not_right(tokenizer):
    writer = Writer([*tokenizer("1+2")["input_ids"], tokenizer.eos_token_id], 21)
    problems = [listed("1,2=3:", "1+2"), listed("1,3=4:", "1+3")]
    assert count_right(writer, tokenizer, Listed(), problems, 5, 4, 0)[0].tolist() == [5, 0]
    assert count_right(writer, tokenizer, Listed(), problems, 5, 3, 0)[0].tolist() == [0, 0]

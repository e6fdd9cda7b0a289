"""Exact evaluation against answers scored one by one, against enumeration, and against sampling."""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import binom, chi2
from transformers import AutoModelForCausalLM, OPTConfig

from gradmass.config import EvalConfig, Recipe, TinyModelConfig, TrainConfig
from gradmass.metrics.intervals import mean_interval_within
from gradmass.record import RunWriter
from gradmass.rewards import Outcome, Verdict
from gradmass.tasks import Problem, Task
from gradmass.tasks.countdown import Countdown
from gradmass.training import evaluate, generate
from gradmass.training.evaluate import (
    Evaluator,
    ExactEvaluation,
    count_right,
    evaluate_exactly,
    sampled_summary,
)
from gradmass.training.generate import draws
from gradmass.training.model import END, PAD, character_tokenizer, tiny_model
from gradmass.training.rollout import DIVERGED, sample
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


def literal_pass_at_k(num_right, num_samples, k):
    """Share of the k-subsets with a right sample."""
    return 1 - math.comb(num_samples - num_right, k) / math.comb(num_samples, k)


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


@pytest.mark.slow
def test_sampled_and_exact_pass_at_k_agree(shipped, held_out, shipped_evaluation):
    """1,000 samples of each of 50 problems.

    The problems are fixed and their solve probabilities known, so the estimate's variance is known
    too: that of the unbiased estimator under Binomial(1000, p), summed over problems. z = 4 errs
    on a right program once in 16,000 seeds (at each k), and sees a bias of .006 at pass@1.
    """
    num_problems, num_samples = 50, 1_000
    problems, p_N = held_out[:num_problems], shipped_evaluation.solve_probability_N[:num_problems]
    assert max(len(answer) for p in problems for answer in COUNTDOWN.solutions(p)) < 20
    num_right_N, _ = count_right(*shipped, COUNTDOWN, problems, num_samples, 20, seed=0)
    index_C = np.arange(num_samples + 1)
    for k in (1, 10, 100):
        value_C = np.array([literal_pass_at_k(c, num_samples, k) for c in index_C.tolist()])
        variance = 0.0
        for p in p_N:
            mass_C = binom.pmf(index_C, num_samples, p)
            mean = (mass_C * value_C).sum()
            assert mean == pytest.approx(1 - (1 - p) ** k, abs=1e-9)  # unbiased
            variance += (mass_C * (value_C - mean) ** 2).sum()
        difference = value_C[num_right_N].mean() - (1 - (1 - p_N) ** k).mean()
        assert abs(difference) < 4 * math.sqrt(variance) / num_problems, k
    # Problem by problem, so that errors of both signs do not cancel.
    expected_N = num_samples * p_N
    is_common_N = (expected_N >= 5) & (expected_N <= num_samples - 5)
    assert is_common_N.sum() > 30
    statistic = ((num_right_N - expected_N) ** 2 / (expected_N * (1 - p_N)))[is_common_N].sum()
    assert statistic < chi2.isf(1e-4, df=is_common_N.sum())


def test_counts_are_fixed_by_the_seed(shipped, held_out):
    problems = held_out[:8]
    first, second, other = (
        count_right(*shipped, COUNTDOWN, problems, 40, 20, seed)[0] for seed in (0, 0, 1)
    )
    assert first.tolist() == second.tolist() != other.tolist()
    assert first.shape == (8,)
    assert first.dtype.kind == "i"
    assert 0 <= first.min() <= first.max() <= 40
    assert first.max() > 0


@pytest.mark.parametrize("tokens_at_once", [1, 400, 100_000])
def test_each_problem_is_counted_on_its_own_answers(monkeypatch, shipped, held_out, tokens_at_once):
    model, tokenizer = shipped
    problems, num_samples = held_out[:8], 30
    monkeypatch.setitem(generate.TOKENS_AT_ONCE, "cpu", tokens_at_once)
    expected = []
    for problem in problems:
        draws_BT = np.stack([draws(5, problem.id, j, 20) for j in range(num_samples)])
        rollouts = sample(model, tokenizer, [problem.prompt], draws_BT)
        num_right = 0
        for answer, mask in zip(rollouts.answer_BT, rollouts.answer_mask_BT, strict=True):
            text = tokenizer.decode(answer[mask])
            num_right += text.removesuffix(END) in COUNTDOWN.solutions(problem) and END in text
        expected.append(num_right)
    assert len(set(expected)) > 3
    if tokens_at_once == 1:  # a batch an answer is slow
        problems, expected = problems[:2], expected[:2]
    counts, _ = count_right(model, tokenizer, COUNTDOWN, problems, num_samples, 20, seed=5)
    assert counts.tolist() == expected


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


@pytest.mark.parametrize(
    ("num_samples", "ks"), [(1, [1]), (9, [1]), (10, [1, 10]), (100, [1, 10, 100])]
)
def test_the_sampled_summary_leaves_out_what_too_few_samples_cannot_tell(num_samples, ks):
    num_right_N = np.array([0, 1, num_samples // 2, num_samples])
    summary = sampled_summary(num_right_N, np.full_like(num_right_N, num_samples))
    expected = {}
    for k in ks:
        values = [literal_pass_at_k(c, num_samples, k) for c in num_right_N.tolist()]
        low, high = mean_interval_within(num_right_N, num_samples, k, level=0.95)
        expected[f"pass@{k}"] = pytest.approx(sum(values) / 4)
        expected |= {f"pass@{k}_low": low, f"pass@{k}_high": high}
    assert summary == expected


def test_an_evaluation_writes_a_row_a_split_and_returns_the_means(tmp_path, policy, tokenizer):
    recipe = Recipe(
        eval=EvalConfig(num_problems=3, num_samples=12), train=TrainConfig(max_new_tokens=20)
    )
    evaluator = Evaluator(recipe, policy)
    writer = RunWriter.create(tmp_path / "run", {}, {})
    at_start = evaluator.measure(policy, tokenizer, 0, writer)
    with torch.no_grad():
        policy.lm_head.weight[5] += 0.25
    later = evaluator.measure(policy, tokenizer, 7, writer)
    writer.close()

    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["step"], row["split"]) for row in rows] == [
        (0, "test"),
        (0, "ood"),
        (7, "test"),
        (7, "ood"),
    ]
    for row in rows[2:]:
        problems = recipe.task.problems(row["split"], 3)
        exact = evaluate_exactly(policy, tokenizer, recipe.task, problems)
        counts, _ = count_right(policy, tokenizer, recipe.task, problems, 12, 20, seed=0)
        assert row["problem_ids"] == [problem.id for problem in problems]
        assert row["solve_probability"] == exact.solve_probability_N.tolist()
        for key, value in exact.summary().items():
            assert later[f"{row['split']}/{key}"] == value
        for key, value in sampled_summary(counts, np.full_like(counts, 12)).items():
            assert later[f"{row['split']}/sampled_{key}"] == value
    assert not any("sampled_pass@100" in key for key in later)
    assert set(later) == set(at_start)
    assert at_start["rank/head_top1_share"] is None
    assert later["rank/head_top1_share"] == pytest.approx(1)
    assert later["time/eval_s"] > 0


def test_an_evaluation_without_samples_is_exact_only(tmp_path, policy, tokenizer):
    recipe = Recipe(eval=EvalConfig(num_problems=2, num_samples=0))
    writer = RunWriter.create(tmp_path / "run", {}, {})
    row = Evaluator(recipe, policy).measure(policy, tokenizer, 0, writer)
    writer.close()
    assert {"test/pass@1", "ood/pass@100"} < set(row)
    assert not any("sampled" in key for key in row)

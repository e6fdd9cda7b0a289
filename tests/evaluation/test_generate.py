"""Answers on this machine against a literal loop, and what may not move them."""

import hashlib
import math
from collections import Counter

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gradmass.config import TinyModelConfig
from gradmass.evaluation import Question, Sampling
from gradmass.tasks import Problem
from gradmass.training import generate
from gradmass.training.generate import LocalEngine, chat_renderer, draws, start_text
from gradmass.training.model import tiny_model
from gradmass.training.rollout import DIVERGED, end_tokens
from gradmass.types import UsageError


def questions(problems, num_samples):
    return [Question(problem, j) for problem in problems for j in range(num_samples)]


def ask(engine, asked, is_done=lambda question: False):
    found = [
        answer for answers in engine.answers(asked, is_done, lambda a: None) for answer in answers
    ]
    return {(answer.problem_id, answer.sample): answer for answer in found}


def literal_draws(seed, name, sample, number):
    """Philox from the words of its definition: key from a hash, counter from the sample."""
    key = hashlib.sha256(f"evaluation {seed} {name}".encode()).digest()[:16]
    words = int.from_bytes(key, "big")
    generator = np.random.Philox(key=words, counter=sample << 64)
    # A double is the upper 53 bits of a word.
    return [(int(word) >> 11) / 2**53 for word in generator.random_raw(number)]


def literal_answer(model, tokenizer, prompt, numbers, temperature, top_p):
    """One row, one token at a time, in Python floats: no cache, no padding, no batch."""
    tokens, answer = tokenizer(prompt)["input_ids"], []
    for number in numbers:
        with torch.no_grad():
            logits = model(torch.tensor([tokens + answer]), use_cache=False).logits[0, -1].tolist()
        if temperature == 0:
            answer.append(logits.index(max(logits)))
        else:
            odds = [math.exp((x - max(logits)) / temperature) for x in logits]
            p = {i: odd / sum(odds) for i, odd in enumerate(odds)}
            kept, mass = set(), 0.0
            for i in sorted(p, key=lambda i: -p[i]):
                if mass < top_p:
                    kept.add(i)
                    mass += p[i]
            place, reached = number * sum(p[i] for i in kept), 0.0
            for i in sorted(kept):
                reached += p[i]
                if reached > place:
                    break
            answer.append(i)
        if answer[-1] == tokenizer.eos_token_id:
            return tokenizer.decode(answer[:-1]), len(answer), False
    return tokenizer.decode(answer), len(answer), True


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.5), (0.0, 1.0)]
)
def test_answers_equal_a_literal_loop(shipped, held_out, temperature, top_p):
    model, tokenizer = shipped
    sampling = Sampling(temperature=temperature, top_p=top_p, max_new_tokens=12, seed=3)
    engine = LocalEngine(model, tokenizer, sampling, batch_size=5)
    answers = ask(engine, questions(held_out[:6], 4))
    assert len(answers) == 24
    for problem in held_out[:6]:
        for j in range(4):
            numbers = literal_draws(3, problem.id, j, 12)
            expected = literal_answer(model, tokenizer, problem.prompt, numbers, temperature, top_p)
            answer = answers[problem.id, j]
            assert (answer.completion, answer.num_tokens, answer.is_truncated) == expected
    texts = Counter(answer.completion for answer in answers.values())
    assert len(texts) == 6 if temperature == 0 else len(texts) > 12


def test_neither_batches_nor_order_nor_other_problems_move_an_answer(shipped, held_out):
    sampling = Sampling(max_new_tokens=20, seed=0)

    def asked(batch_size, problems, num_samples):
        engine = LocalEngine(*shipped, sampling, batch_size=batch_size)
        return ask(engine, questions(problems, num_samples))

    first = asked(1, held_out[:8], 6)
    for batch_size in (5, 48, 1000):
        assert asked(batch_size, held_out[:8], 6) == first
    assert asked(7, held_out[7::-1], 6) == first
    more = asked(16, held_out[:12], 9)
    assert {key: more[key] for key in first} == first


def test_a_resumed_engine_computes_the_very_batches_of_an_uninterrupted_one(shipped, held_out):
    model, tokenizer = shipped
    sampling, asked = Sampling(max_new_tokens=20), questions(held_out[:5], 6)
    batches = []

    class Spy(LocalEngine):
        def _generate(self, batch):
            batches.append([(q.problem.id, q.sample) for q in batch])
            return super()._generate(batch)

    engine = Spy(model, tokenizer, sampling, batch_size=8)
    whole = ask(engine, asked)
    all_batches, batches[:] = list(batches), []
    # The first batch and half of the second are done.
    done = {(q.problem.id, q.sample) for q in asked[:12]}
    rest = ask(engine, asked, lambda q: (q.problem.id, q.sample) in done)
    assert batches == all_batches[1:]
    assert rest == {key: whole[key] for key in whole if key not in done}
    batches.clear()
    assert ask(engine, asked, lambda q: True) == {}
    assert batches == []


def test_no_batch_is_larger_than_asked_whatever_the_number_of_samples(shipped, held_out):
    model, tokenizer = shipped
    rows = []

    class Spy(type(model)):
        def __call__(self, **kwargs):
            rows.append(len(kwargs["input_ids"]))
            return model(**kwargs)

    spy = object.__new__(Spy)
    spy.__dict__ = model.__dict__
    engine = LocalEngine(spy, tokenizer, Sampling(max_new_tokens=4), batch_size=64)
    asked = (Question(held_out[0], j) for j in range(10**9))
    stream = engine.answers(asked, lambda q: False, lambda answer: None)
    assert [len(next(stream)) for _ in range(3)] == [64, 64, 64]
    assert max(rows) == 64


def test_the_default_batch_holds_a_fixed_number_of_tokens(shipped):
    assert generate.default_batch_size(shipped[0], 12, 20) == 512
    assert generate.default_batch_size(shipped[0], 5_000, 32_768) == 1


def test_draws_are_the_words_of_a_counter_based_generator():
    assert draws(7, "a", 3, 5).tolist() == literal_draws(7, "a", 3, 5)
    assert draws(7, "a", 3, 500)[:5].tolist() == draws(7, "a", 3, 5).tolist()
    keys = [(s, n, j) for s in (0, 1) for n in ("a", "b") for j in (0, 1, 2**40)]
    assert len({draws(*key, 1)[0] for key in keys}) == len(keys)
    values = np.concatenate([draws(0, f"p{i}", j, 50) for i in range(20) for j in range(20)])
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    assert ((counts - 1000) ** 2 / 1000).sum() < 55  # chi2 of 19 degrees: 1 in 25,000


def test_a_stop_text_ends_an_answer_and_is_not_in_it(shipped, held_out):
    free = ask(
        LocalEngine(*shipped, Sampling(max_new_tokens=20), batch_size=40),
        questions(held_out[:10], 4),
    )
    sampling = Sampling(max_new_tokens=20, stop=(")*", "+"))
    stopped = ask(LocalEngine(*shipped, sampling, batch_size=40), questions(held_out[:10], 4))
    num_stopped = 0
    for key, answer in free.items():
        places = [p for p in map(answer.completion.find, sampling.stop) if p >= 0]
        if not places:
            assert stopped[key] == answer
            continue
        num_stopped += 1
        assert stopped[key].completion == answer.completion[: min(places)]
        assert not stopped[key].is_truncated
        assert stopped[key].num_tokens < answer.num_tokens
    assert num_stopped > 5


def test_an_answer_at_the_limit_is_truncated_unless_its_last_token_ends_it(shipped, held_out):
    asked = questions(held_out[:10], 4)
    free = ask(LocalEngine(*shipped, Sampling(max_new_tokens=20), batch_size=40), asked)
    limit = sorted(answer.num_tokens for answer in free.values())[20]
    cut = ask(LocalEngine(*shipped, Sampling(max_new_tokens=limit), batch_size=40), asked)
    for key, answer in free.items():
        if answer.num_tokens <= limit:
            assert cut[key] == answer
        else:
            assert cut[key].is_truncated
            assert cut[key].num_tokens == limit
            assert cut[key].completion == answer.completion[:limit]
    assert {answer.is_truncated for answer in cut.values()} == {True, False}


def test_a_diverged_model_and_too_little_memory_are_one_line(
    policy, tokenizer, held_out, monkeypatch
):
    asked = questions(held_out[:1], 2)

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    engine = LocalEngine(policy, tokenizer, Sampling(max_new_tokens=3), batch_size=2)
    with monkeypatch.context() as patch:
        patch.setattr(generate, "make_decoder", full)
        with pytest.raises(UsageError, match="not enough memory for 2 answers at once: give a sm"):
            ask(engine, asked)
    with torch.no_grad():
        policy.lm_head.weight[3, 0] = math.nan
    for temperature in (0, 1, 0.5):
        sampling = Sampling(max_new_tokens=3, temperature=temperature)
        with pytest.raises(UsageError) as error:
            ask(LocalEngine(policy, tokenizer, sampling, batch_size=2), asked)
        assert str(error.value) == DIVERGED


@pytest.mark.parametrize("temperature", [1e-30, 1e-300, 1e30])
def test_extreme_temperatures_are_their_limits(shipped, held_out, temperature):
    def texts(temperature):
        sampling = Sampling(max_new_tokens=20, temperature=temperature)
        engine = LocalEngine(*shipped, sampling, batch_size=40)
        return {key: a.completion for key, a in ask(engine, questions(held_out[:5], 3)).items()}

    if temperature < 1:
        assert texts(temperature) == texts(0)
    else:
        assert len(set(texts(temperature).values())) == 15


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"temperature": -1}, "temperature must be finite and at least 0, got -1"),
        ({"temperature": math.nan}, "temperature must be finite and at least 0, got nan"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1, got 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, got 1.5"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"stop": ("a", "")}, "a text to stop at must not be empty"),
    ],
)
def test_sampling_refuses_what_samples_nothing(fields, wanted):
    with pytest.raises(UsageError) as error:
        Sampling(**{"max_new_tokens": 5, **fields})
    assert str(error.value) == wanted


# Chat models

SPECIAL = ["<pad>", "<s>", "<|user|>", "<|model|>", "<|turn|>", "<|text|>"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|model|>{% endif %}"
)


def chat_tokenizer(template=TEMPLATE):
    """Characters and special tokens; puts <s> before every text, as Llama's does."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *"0123456789+=?ab "])}
    fast = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast,
        bos_token="<s>",
        eos_token="<|text|>",
        pad_token="<pad>",
        additional_special_tokens=SPECIAL[2:5],
        padding_side="left",
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def chat_model():
    """A model that ends turns with one token and texts with another."""
    tokenizer = chat_tokenizer()
    shape = TinyModelConfig(hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    model = tiny_model(shape, tokenizer, 0).eval()
    model.generation_config.eos_token_id = [4, 5]
    return model, tokenizer


def test_a_chat_prompt_is_a_users_turn_and_the_start_of_the_models(chat_model):
    render = chat_renderer(chat_model[1], "m")
    assert render("1+1=?") == "<s><|user|>1+1=?<|turn|><|model|>"
    seen = []

    class Spy(LocalEngine):
        def _generate(self, batch):
            seen.append(self._tokenizer(self._render(batch[0].problem.prompt),
                                        add_special_tokens=False)["input_ids"])  # fmt: skip
            return super()._generate(batch)

    engine = Spy(*chat_model, Sampling(max_new_tokens=3), batch_size=1, render=render)
    ask(engine, [Question(Problem("a", "1+1=?", None), 0)])
    names = chat_model[1].convert_ids_to_tokens(seen[0])
    assert names == ["<s>", "<|user|>", "1", "+", "1", "=", "?", "<|turn|>", "<|model|>"]


def test_every_end_token_of_the_generation_config_ends_an_answer(chat_model):
    model, tokenizer = chat_model
    ends = end_tokens(model, tokenizer)
    assert ends == {4, 5}
    sampling = Sampling(max_new_tokens=40)
    asked = questions([Problem("a", "1+1=?", None)], 60)
    answers = ask(LocalEngine(model, tokenizer, sampling, batch_size=60, ends=ends), asked)
    ended = [answer for answer in answers.values() if not answer.is_truncated]
    assert len(ended) > 20
    assert not any("<|turn|>" in a.completion or "<|text|>" in a.completion for a in ended)
    # Other special tokens stay: without them a wrong answer could read as a right one.
    assert any("<|user|>" in answer.completion for answer in answers.values())
    one = ask(LocalEngine(model, tokenizer, sampling, batch_size=60), asked)
    assert any("<|turn|>" in answer.completion for answer in one.values())


def test_plain_text_starts_with_the_token_the_tokenizer_puts_there(chat_model, tokenizer):
    assert start_text(chat_model[1]) == "<s>"
    assert start_text(tokenizer) == ""


def test_a_template_that_is_missing_or_fails_is_one_line():
    with pytest.raises(UsageError, match="'m' has no chat template: use --prompt plain"):
        chat_renderer(chat_tokenizer(None), "m")
    render = chat_renderer(chat_tokenizer("{{ raise_exception('no user first') }}"), "m")
    with pytest.raises(UsageError, match="template of 'm' fails on a user's message: no user fi"):
        render("1")

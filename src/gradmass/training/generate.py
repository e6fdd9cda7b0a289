"""Answers of a model on this machine, each fixed by the seed, the problem and the sample's number.

The random numbers of a sample are its own stream, whatever else is asked. Its logits may still
differ in the last bits with the batch it is computed in, as for any batched model; so batches are
put together from all questions in order, also from those answered before an interruption, and a
resumed evaluation computes what an uninterrupted one would.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gradmass.evaluation.answers import Answer, Question, Sampling, stream_key
from gradmass.training.decoder import Decoder, make_decoder
from gradmass.training.rollout import encode_prompts, pick, texts_of
from gradmass.types import UsageError

TOKENS_AT_ONCE = {"cpu": 16_384, "cuda": 65_536}
"""Prompt and answer tokens in a batch: enough to be busy, and a cache that most machines can hold
(8 GB for 65,536 tokens of an 8B Llama)."""


def draws(seed: int, problem_id: str, sample: int, num_tokens: int) -> np.ndarray:
    """Numbers uniform in [0, 1) for the tokens of one sample.

    A stretch of a counter-based generator (Philox) whose key is the seed and the problem, and whose
    counter starts at the sample: no other sample, split, order or limit moves them, and a longer
    limit leaves the first ones as they are.
    """
    generator = np.random.Philox(key=stream_key(seed, problem_id), counter=[0, sample, 0, 0])
    return np.random.Generator(generator).random(num_tokens)


def default_batch_size(model: PreTrainedModel, longest_prompt: int, max_new_tokens: int) -> int:
    """Answers in a batch so that it holds ``TOKENS_AT_ONCE`` on the model's device."""
    tokens = TOKENS_AT_ONCE["cpu" if model.device.type == "cpu" else "cuda"]
    return max(1, tokens // (longest_prompt + max_new_tokens))


class LocalEngine:
    """A model in this process.

    Args:
        model: The model, on its device.
        tokenizer: Its tokenizer.
        sampling: How answers are drawn.
        batch_size: Answers computed at once, at least 1.
        render: Makes the text that the model reads of a problem's prompt.
        ends: Tokens that end an answer; the tokenizer's end token if not given.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        sampling: Sampling,
        *,
        batch_size: int,
        render: Callable[[str], str] = str,
        ends: frozenset[int] | None = None,
    ) -> None:
        self._model, self._tokenizer, self._sampling = model, tokenizer, sampling
        self._batch_size, self._render = batch_size, render
        self._ends = frozenset({tokenizer.eos_token_id}) if ends is None else ends
        self._stops = _Stops(sampling.stop)

    def answers(
        self,
        questions: Iterable[Question],
        is_done: Callable[[Question], bool],
        keep: Callable[[Answer], None],
    ) -> Generator[list[Answer], None, None]:
        """Yield the answers of a batch after the other (see ``Engine``)."""
        questions = iter(questions)
        while batch := list(islice(questions, self._batch_size)):
            missing = [not is_done(question) for question in batch]
            if not any(missing):
                continue
            pairs = zip(self._generate(batch), missing, strict=True)
            answers = [answer for answer, is_missing in pairs if is_missing]
            for answer in answers:
                keep(answer)
            yield answers

    @torch.inference_mode()
    def _generate(self, batch: Sequence[Question]) -> list[Answer]:
        """Answers of a batch, which is computed as a whole."""
        sampling, device = self._sampling, self._model.device
        texts = [self._render(question.problem.prompt) for question in batch]
        prompts = list(dict.fromkeys(texts))
        row_of = {prompt: row for row, prompt in enumerate(prompts)}
        row_B = torch.tensor([row_of[text] for text in texts], device=device)
        rows = [
            draws(sampling.seed, question.problem.id, question.sample, sampling.max_new_tokens)
            for question in batch
        ]
        draws_BT = torch.as_tensor(np.stack(rows), device=device)
        try:
            prompts_PT = encode_prompts(self._tokenizer, prompts, device)
            writer = make_decoder(self._model, *prompts_PT, row_B, draws_BT.shape[1])
            tokens_BT, length_B, is_ended_B = self._write(writer, draws_BT)
        except torch.OutOfMemoryError as error:
            raise UsageError(
                f"not enough memory for {len(batch)} answers at once: give a smaller --batch-size"
            ) from error
        answers_BT = [
            row[:length] for row, length in zip(tokens_BT.tolist(), length_B.tolist(), strict=True)
        ]
        return [
            Answer(
                problem_id=question.problem.id,
                sample=question.sample,
                completion=self._stops.cut(text),
                is_truncated=not is_ended,
                num_tokens=len(tokens),
            )
            for question, text, tokens, is_ended in zip(
                batch, self._decode(answers_BT), answers_BT, is_ended_B.tolist(), strict=True
            )
        ]

    def _write(self, writer: Decoder, draws_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens of the answers, padded; how many are each one's; and whether it ended."""
        ends = torch.tensor(sorted(self._ends), device=draws_BT.device)
        token_BT = torch.full_like(draws_BT, self._tokenizer.pad_token_id, dtype=torch.long)
        length_B = torch.zeros_like(token_BT[:, 0])
        is_ended_B = torch.zeros_like(length_B, dtype=torch.bool)
        rows_N, is_live_N1 = (
            torch.arange(len(draws_BT), device=draws_BT.device),
            ~is_ended_B[:, None],
        )
        for t in range(draws_BT.shape[1]):
            token_N1 = _draw(writer.logits_BV, draws_BT[rows_N, t, None], self._sampling)
            live_N = is_live_N1[:, 0]
            live = rows_N[live_N]
            token_BT[live, t], length_B[live] = token_N1[live_N, 0], t + 1
            was_live_N1, is_live_N1 = is_live_N1, is_live_N1 & ~torch.isin(token_N1, ends)
            if self._stops.texts:
                first = max(0, t + 1 - self._stops.num_tokens)
                is_live_N1 = is_live_N1 & ~self._is_stopped(
                    token_BT[rows_N, first : t + 1], is_live_N1
                )
            is_ended_B[live] = ~is_live_N1[live_N, 0]
            if t + 1 == draws_BT.shape[1] or not bool(is_live_N1.any()):
                break
            kept = writer.retire(is_live_N1[:, 0])
            if kept is not None:
                rows_N, token_N1 = rows_N[kept], token_N1[kept]
                was_live_N1 = is_live_N1 = is_live_N1[kept]
            writer.feed(token_N1, was_live_N1)
        return token_BT[:, : t + 1], length_B, is_ended_B

    def _is_stopped(self, tail_NT: Tensor, is_live_N1: Tensor) -> Tensor:
        """Whether the last tokens of an answer hold a stop text; it ends there."""
        live = is_live_N1[:, 0].nonzero()[:, 0].tolist()
        tails = texts_of(self._tokenizer, [tail_NT[n].tolist() for n in live])
        is_stopped_N1 = torch.zeros_like(is_live_N1)
        for n, tail in zip(live, tails, strict=True):
            is_stopped_N1[n] = self._stops.is_in(tail)
        return is_stopped_N1

    def _decode(self, answers: Sequence[list[int]]) -> list[str]:
        """Texts without the end token; any other special token stays visible.

        What is left without one could be right, though the model did not write it.
        """
        return texts_of(
            self._tokenizer,
            [tokens[:-1] if tokens[-1] in self._ends else tokens for tokens in answers],
        )


@dataclass(frozen=True)
class _Stops:
    """Texts that end an answer."""

    texts: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """How many last tokens hold a stop text that has just been written.

        A token is a byte at least, and a few more may not be characters of their own yet.
        """
        return max((len(text.encode()) for text in self.texts), default=0) + 8

    def is_in(self, text: str) -> bool:
        """Whether any stands in a text."""
        return any(stop in text for stop in self.texts)

    def cut(self, text: str) -> str:
        """What stands before the first of them."""
        places = [place for stop in self.texts if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text


def _draw(logits_BV: Tensor, draws_B1: Tensor, sampling: Sampling) -> Tensor:
    """A token for each row, by temperature and nucleus (top-p)."""
    logits_BV = logits_BV.float()
    if sampling.temperature not in (0, 1):
        # From the largest down, and in float64, so that no temperature over- or underflows.
        below_BV = logits_BV.double() - logits_BV.amax(-1, keepdim=True)
        logits_BV = below_BV / sampling.temperature
    probabilities_BV = logits_BV.log_softmax(-1).exp()
    if sampling.temperature == 0:
        pick(probabilities_BV, draws_B1)  # refuses a model that diverged
        return logits_BV.argmax(-1, keepdim=True)
    if sampling.top_p < 1:
        sorted_BV, order_BV = probabilities_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = sorted_BV.double().cumsum(-1) - sorted_BV
        outside_BV = torch.zeros_like(probabilities_BV, dtype=torch.bool)
        outside_BV.scatter_(-1, order_BV, before_BV >= sampling.top_p)
        probabilities_BV = probabilities_BV.masked_fill(outside_BV, 0.0)
    return pick(probabilities_BV, draws_B1)


def start_text(tokenizer: PreTrainedTokenizerFast) -> str:
    """The token that the tokenizer puts before every text (Llama's, Gemma's), or nothing."""
    with_specials = tokenizer("a")["input_ids"]
    if tokenizer.bos_token is not None and with_specials[:1] == [tokenizer.bos_token_id]:
        return str(tokenizer.bos_token)
    return ""


def chat_renderer(
    tokenizer: PreTrainedTokenizerFast, name: str, system: str = ""
) -> Callable[[str], str]:
    """Render a prompt as a user's turn, with the start of the model's.

    Args:
        tokenizer: Whose chat template it is.
        name: Of the model, for messages.
        system: A system message before it; none if empty.

    Raises:
        UsageError: There is no chat template; on rendering, where the template fails.
    """
    if tokenizer.chat_template is None:
        raise UsageError(
            f"the tokenizer of {name!r} has no chat template: use --prompt plain, or in a recipe "
            'prompt.template = "plain"'
        )
    import jinja2

    before = [{"role": "system", "content": system}] if system else []

    def render(prompt: str) -> str:
        messages = [*before, {"role": "user", "content": prompt}]
        try:
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError as error:
            raise UsageError(
                f"the chat template of {name!r} fails on a user's message: {error}"
            ) from error
        assert isinstance(text, str)
        return text

    return render

"""Solved problems as tokens: what a supervised start learns from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import numpy as np
from transformers import PreTrainedTokenizerFast

from gradmass.tasks import Problem
from gradmass.tasks.rows import Row, read_rows
from gradmass.training.model import lost_characters
from gradmass.types import UsageError

Messages = list[dict[str, Any]]


@dataclass(frozen=True)
class Solved:
    """One solved problem.

    Args:
        prompt: Tokens that are read; at least one.
        target: Tokens that are learnt, with an end token.
        where: What to call it in a message.
    """

    prompt: list[int]
    target: list[int]
    where: str


def from_task(
    demonstrations: Iterator[tuple[Problem, str]], tokenizer: PreTrainedTokenizerFast
) -> Iterator[Solved]:
    """Yield a task's solved problems."""
    for problem, answer in demonstrations:
        target = [*_tokens(tokenizer, answer), tokenizer.eos_token_id]
        yield Solved(_tokens(tokenizer, problem.prompt), target, "a solved problem")


class Rows:
    """Solved problems of a user's rows.

    A row has ``prompt`` and ``completion`` as texts, both as lists of messages, or ``messages``.
    Of messages, the tokenizer's chat template makes the text; each turn of the assistant is learnt
    after all that stands before it, up to the token that ends the turn.

    Args:
        path: A file or folder of rows, as ``read_rows`` takes it.
        tokenizer: The model's.
        render: Makes what the model reads of a prompt that is a text.
        ends: Tokens that end an answer.

    Raises:
        UsageError: A row is none of these, the tokenizer loses characters of it, or the template
            does not build a conversation up turn by turn; the line names the row. There are no
            rows.
    """

    def __init__(
        self, path: str, tokenizer: PreTrainedTokenizerFast, render: Any, ends: frozenset[int]
    ) -> None:
        self._tokenizer, self._render, self._ends = tokenizer, render, ends
        self._solved = [solved for row in read_rows(path) for solved in self._read(row)]
        if not self._solved:
            raise UsageError(f"data.path = {path!r} has no rows")

    def __len__(self) -> int:
        return len(self._solved)

    def shuffled(self, seed: int) -> Iterator[Solved]:
        """Yield all, in an order fixed by the seed, then all again in another, without end."""
        epoch = 0
        while True:
            for i in np.random.default_rng([seed, epoch]).permutation(len(self._solved)):
                yield self._solved[i]
            epoch += 1

    def _read(self, row: Row) -> list[Solved]:
        if row.defect is not None:
            raise row.error(row.defect)
        if "messages" in row:
            messages = _messages(row, "messages")
            turns = [i for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
            if not turns:
                raise row.error("field 'messages' has no turn of the assistant after another")
            return [self._turn(row, messages[:i], messages[i]) for i in turns]
        if isinstance(row["prompt"], list):
            before, after = _messages(row, "prompt"), _messages(row, "completion")
            if len(after) != 1 or after[0]["role"] != "assistant":
                raise row.error("field 'completion' must hold one message of the assistant")
            return [self._turn(row, before, after[0])]
        prompt, completion = self._render(row.text("prompt")), row.text("completion")
        self._check(row, prompt + completion)
        target = [*_tokens(self._tokenizer, completion), self._tokenizer.eos_token_id]
        return [Solved(_tokens(self._tokenizer, prompt), target, row.where)]

    def _turn(self, row: Row, before: Messages, turn: dict[str, Any]) -> Solved:
        """A turn of the assistant after what stands before it, as the chat template writes them."""
        if self._tokenizer.chat_template is None:
            raise row.error("has messages, and the tokenizer has no chat template")
        try:
            prompt, whole = (
                self._tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=is_prompt
                )
                for messages, is_prompt in ((before, True), ([*before, turn], False))
            )
        except jinja2.TemplateError as error:
            raise row.error(f"the chat template fails on it: {error}") from error
        assert isinstance(prompt, str)
        assert isinstance(whole, str)
        if not whole.startswith(prompt):
            raise row.error("the chat template writes what stands before a turn otherwise with it")
        self._check(row, whole)
        target = []
        for token in _tokens(self._tokenizer, whole[len(prompt) :]):
            target.append(token)
            if token in self._ends:
                break
        else:
            target.append(self._tokenizer.eos_token_id)
        return Solved(_tokens(self._tokenizer, prompt), target, row.where)

    def _check(self, row: Row, text: str) -> None:
        """Refuse a text of which the model would learn something else."""
        for _, seen in lost_characters(self._tokenizer, [text]):
            raise row.error(f"the tokenizer reads {text[:80]!r} as {seen[:80]!r}")


def _messages(row: Row, name: str) -> Messages:
    value = row[name]
    is_list = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    if not is_list or not all(
        isinstance(m, dict)
        and isinstance(m.get("role"), str)
        and isinstance(m.get("content"), str)
        and m["content"].strip()
        for m in value
    ):
        raise row.error(
            f"field {name!r} must be a list of messages, each with a role and a content that are "
            "texts"
        )
    return [dict(message) for message in value]


def _tokens(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens

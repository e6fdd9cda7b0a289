"""Answers of a model behind an address: any server that speaks OpenAI's protocol.

One request a sample, so that each can be asked again alone. Every request is sent a seed of its
own that follows from the seed, the problem and the sample's number.
"""

import asyncio
import json
import math
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import openai

from gradmass.evaluation.answers import Answer, PromptFormat, Question, Sampling, request_seed
from gradmass.types import UsageError

TRANSIENT = {408, 409, 425, 429, *range(500, 600)} - {501}
"""HTTP statuses that another try may not see (501: the server does not know how)."""
LONGEST_WAIT_S = 60.0
"""Longest wait between two tries, unless the server asks for a longer one."""
LONGEST_ASKED_WAIT_S = 600.0
"""Longest wait that a server may ask for."""
SAID_EVERY_S = 10.0
"""Shortest time between two messages about what is tried again."""
SAID_FROM_S = 2.0
"""Shortest wait for another try that is worth a message."""
LAST_WAIT_S = 60.0
"""How long answers under way are waited for once the evaluation has failed."""
MAX_WAITING = 1_000
"""Answers that may wait for the verifier before no more are asked for."""


class _TryAgainError(Exception):
    """A failure that another try may not see.

    Args:
        reason: What happened, in a few words.
        wait_s: How long the server asks to wait.
    """

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass(kw_only=True)
class Endpoint:
    """A model behind an address.

    Args:
        url: Base address, such as ``http://localhost:8000/v1``.
        model: What the server calls the model.
        prompt_format: Messages to ``/chat/completions``, or bare text to ``/completions``.
        sampling: How answers are drawn; the server has to follow it.
        concurrency: Requests under way at once.
        timeout_s: Longest wait for one answer.
        num_tries: Tries of a request before the evaluation stops.
        first_wait_s: Wait before the second try, in seconds; it doubles with each.
        say: Told now and then, in one line, what is waited for.

    Raises:
        UsageError: No address of a server.
    """

    url: str
    model: str
    prompt_format: PromptFormat
    sampling: Sampling
    concurrency: int = 32
    timeout_s: float = 1800.0
    num_tries: int = 8
    first_wait_s: float = 1.0
    say: Callable[[str], None] = lambda line: None
    _last_said: float = field(default=-math.inf, init=False)
    _marks: dict[str, int] = field(default_factory=dict, init=False)
    _has_unique_ids: bool = field(default=True, init=False)
    _failure: Exception | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Refuse what is no address."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(
                f"--endpoint needs an address such as http://localhost:8000/v1, got {self.url!r}"
            )
        if self.concurrency < 1:
            raise UsageError(f"--concurrency must be at least 1, got {self.concurrency}")

    def check(self) -> None:
        """Ask the server for its models, so that a wrong address or key shows before all else.

        Raises:
            UsageError: Nobody answers there, the key is refused, or it is another kind of server.
        """
        with suppress(_TryAgainError):  # a busy server is asked again when it matters
            asyncio.run(self._list_models())

    async def _list_models(self) -> None:
        async with self._client() as client:
            try:
                raw = await client.models.with_raw_response.list()
            except openai.APIStatusError as error:
                # Not every server lists its models.
                if error.status_code not in (404, 405, 501):
                    self._raise_status(error)
            except openai.APIConnectionError as error:
                raise UsageError(f"no server answers at {self.url}: {_cause(error)}") from error
            else:
                self._json(raw.text)

    def answers(
        self,
        questions: Iterable[Question],
        is_done: Callable[[Question], bool],
        keep: Callable[[Answer], None],
    ) -> Generator[list[Answer], None, None]:
        """Yield answers as they come, in any order (see ``Engine``).

        Requests are made on a thread of their own, so that none waits for the verifier. After a
        failure that another try does not mend, no more is asked, answers under way are waited for
        and yielded, and the failure is raised.

        Raises:
            UsageError: The server refuses a request, or does not answer it in all tries.
        """
        todo = (question for question in questions if not is_done(question))
        inbox: queue.Queue[Answer | None] = queue.Queue()
        self._failure = None
        loop = asyncio.new_event_loop()
        asking = loop.create_task(self._ask_all(todo, keep, inbox))

        def run() -> None:
            try:
                with suppress(asyncio.CancelledError):
                    loop.run_until_complete(asking)
            except Exception as error:  # whatever it is, the reader must hear of it
                self._failure = self._failure or error
            finally:
                inbox.put(None)

        thread = threading.Thread(target=run, name="gradmass-endpoint", daemon=True)
        thread.start()
        try:
            is_open = True
            while is_open:
                received = [inbox.get()]
                while not inbox.empty():
                    received.append(inbox.get())
                is_open = received[-1] is not None
                if batch := [answer for answer in received if answer is not None]:
                    yield batch
        finally:
            loop.call_soon_threadsafe(asking.cancel)
            thread.join()
            loop.close()
        if self._failure is not None:
            raise self._failure

    async def _ask_all(
        self,
        questions: Iterator[Question],
        keep: Callable[[Answer], None],
        inbox: "queue.Queue[Answer | None]",
    ) -> None:
        async def work(client: openai.AsyncOpenAI) -> None:
            for question in questions:
                while inbox.qsize() > MAX_WAITING:
                    await asyncio.sleep(0.05)
                if self._failure is not None:
                    return
                answer = await self._ask(client, question)
                keep(answer)
                inbox.put(answer)

        async def work_until_failure(client: openai.AsyncOpenAI) -> None:
            try:
                await work(client)
            except Exception as error:
                # Raised on the thread of the caller; the first one is the reason.
                self._failure = self._failure or error

        async with self._client() as client:
            workers = [
                asyncio.create_task(work_until_failure(client)) for _ in range(self.concurrency)
            ]
            try:
                await self._wait_for(workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _wait_for(self, workers: Sequence[asyncio.Task[None]]) -> None:
        """Wait for all workers; after a failure, only so long for answers under way."""
        pending: set[asyncio.Task[None]] = set(workers)
        last_wait_s = LAST_WAIT_S
        while pending and last_wait_s > 0:
            _, pending = await asyncio.wait(pending, timeout=0.2)
            if self._failure is not None:
                last_wait_s -= 0.2

    async def _ask(self, client: openai.AsyncOpenAI, question: Question) -> Answer:
        reason = ""
        for number in range(self.num_tries):
            try:
                return self._answer(question, self._json(await self._post(client, question)))
            except _TryAgainError as error:
                reason = str(error)
                wait_s = min(LONGEST_WAIT_S, self.first_wait_s * 2**number)
                # Not all at the same moment.
                wait_s = max(wait_s * random.uniform(0.5, 1.0), error.wait_s)
            if number + 1 < self.num_tries:
                self._say(question, number + 2, wait_s, reason)
                await self._sleep(wait_s)
            if self._failure is not None:
                break
        raise UsageError(
            f"{self.url} gave no answer to problem {question.problem.id!r}, sample "
            f"{question.sample}, in {number + 1} tries; the last: {reason}"
        )

    def _say(self, question: Question, number: int, wait_s: float, reason: str) -> None:
        """Say what is waited for, unless that is short or something was said just now."""
        now = time.monotonic()
        if wait_s >= SAID_FROM_S and now - self._last_said >= SAID_EVERY_S:
            self._last_said = now
            self.say(
                f"asking {self.url} again in {wait_s:.0f} s (try {number} of {self.num_tries}) for "
                f"problem {question.problem.id!r}, sample {question.sample}: {reason}"
            )

    async def _sleep(self, wait_s: float) -> None:
        """Wait, but no longer than the evaluation goes on."""
        while wait_s > 0 and self._failure is None:
            await asyncio.sleep(min(wait_s, 0.2))
            wait_s -= 0.2

    async def _post(self, client: openai.AsyncOpenAI, question: Question) -> str:
        """The body of a response with status 200."""
        sampling = self.sampling
        settings: dict[str, Any] = {
            "model": self.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_new_tokens,
            "seed": request_seed(sampling.seed, question.problem.id, question.sample),
        }
        if sampling.stop:
            settings["stop"] = list(sampling.stop)
        prompt = question.problem.prompt
        try:
            if self.prompt_format == "chat":
                raw = await client.chat.completions.with_raw_response.create(
                    messages=[{"role": "user", "content": prompt}], **settings
                )
            else:
                raw = await client.completions.with_raw_response.create(prompt=prompt, **settings)
        except openai.APIStatusError as error:
            self._raise_status(error)
        except openai.APIConnectionError as error:  # a timeout is one, too
            raise _TryAgainError(_cause(error)) from error
        return str(raw.text)

    def _client(self) -> openai.AsyncOpenAI:
        # The client's own tries are off: it would try again what will not change.
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
            max_retries=0,
            timeout=openai.Timeout(self.timeout_s, connect=10.0),
        )

    def _raise_status(self, error: openai.APIStatusError) -> None:
        """Raise what an HTTP status other than 200 means."""
        words, code = _server_words(error.response.text)
        what = f"HTTP {error.status_code}: {words}"
        if error.status_code in (401, 403):
            raise UsageError(f"{self.url} refuses the key ({what}): set OPENAI_API_KEY") from error
        if error.status_code == 404:
            raise UsageError(
                f"{self.url} has no model {self.model!r}, or is not the address of a server's API, "
                f"which often ends in /v1 ({what})"
            ) from error
        if error.status_code not in TRANSIENT or code == "insufficient_quota":
            raise UsageError(f"{self.url} refuses the request ({what})") from error
        try:
            wait_s = float(error.response.headers.get("retry-after", 0))
        except ValueError:  # a date
            wait_s = 0.0
        if wait_s > LONGEST_ASKED_WAIT_S:
            raise UsageError(f"{self.url} asks to wait {wait_s:.0f} s ({what})") from error
        raise _TryAgainError(what, wait_s) from error

    def _json(self, text: str) -> Mapping[str, Any]:
        """The body as JSON.

        Raises:
            UsageError: A page for people: there is another kind of server.
        """
        if text.lstrip()[:1] == "<":
            raise UsageError(
                f"{self.url} answers with an HTML page: it is not the address of a server's API, "
                "which often ends in /v1"
            )
        try:
            body = json.loads(text)
        except ValueError as error:
            raise _TryAgainError(f"half an answer of {len(text)} characters") from error
        if not isinstance(body, dict):
            raise _TryAgainError(f"an answer that is no object: {text[:80]!r}")
        return body

    def _answer(self, question: Question, body: Mapping[str, Any]) -> Answer:
        """The answer in a response, or what is wrong with it."""
        # A server that gives a choice twice gives it under the same index.
        choices = [
            choice
            for choice in body.get("choices") or []
            if isinstance(choice, dict) and choice.get("index", 0) == 0
        ]
        if not choices:
            raise _TryAgainError(f"an answer without a choice: {json.dumps(body)[:200]}")
        choice, message = choices[0], choices[0].get("message") or {}
        reason = choice.get("finish_reason")
        if reason in (None, "abort", "error"):
            raise _TryAgainError(f"an answer broken off (finish_reason {reason})")
        text = message.get("content") if self.prompt_format == "chat" else choice.get("text")
        self._refuse_repeated(body, text)
        usage = body.get("usage") or {}
        is_withheld = reason == "content_filter"
        return Answer(
            problem_id=question.problem.id,
            sample=question.sample,
            completion=text or "",
            is_truncated=reason == "length",
            num_tokens=usage.get("completion_tokens"),
            reasoning=message.get("reasoning") or message.get("reasoning_content"),
            failure="withheld by the server's content filter" if is_withheld else None,
        )

    def _refuse_repeated(self, body: Mapping[str, Any], text: object) -> None:
        """Refuse a response that came before, as a proxy that mixes up requests gives.

        Some servers have one id for all or few to choose from; theirs are no sign, and refusing by
        text alone would make answers look more diverse than they are.
        """
        name, mark = str(body.get("id") or ""), hash((body.get("created"), text))
        if not name:
            return
        known = self._marks.get(name)
        if known is None:
            self._marks[name] = mark
        elif known != mark:
            self._has_unique_ids = False
        elif self._has_unique_ids:
            raise _TryAgainError(f"the answer to another question (id {name})")


def _server_words(text: str) -> tuple[str, object]:
    """Message and code of an error's body, in whichever shape the server writes it."""
    try:
        body = json.loads(text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        return ("an HTML page" if text.lstrip()[:1] == "<" else text[:200].strip() or "no words"), 0
    inner = body.get("error", body)
    if not isinstance(inner, dict):
        return str(inner), None
    return str(inner.get("message", inner)), inner.get("code")


def _cause(error: openai.APIConnectionError) -> str:
    """Why a connection failed: the client's own words say less than what is below them."""
    if isinstance(error, openai.APITimeoutError):
        return "no answer in time"
    cause = error.__cause__
    return str(error) if cause is None else f"{str(cause) or type(cause).__name__}"

"""Verdicts of mathematical answers, in batches, from any thread."""

import importlib.util
import time
from collections.abc import Sequence
from types import TracebackType

from gradmass.rewards.extract import check_rule, extract
from gradmass.rewards.maths.judge import shortcut
from gradmass.rewards.pool import Failure, Pool, Reply
from gradmass.rewards.verdict import Outcome, Verdict
from gradmass.types import UsageError

GOLD_BOX = "last_box_or_all"
"""How an answer is found in a gold: data sets store it bare, some in a box."""
OTHER_RULES = ("last_box", "final_answer_line", "last_number")
"""Where a right answer in the wrong format may stand."""


class MathsVerifier:
    r"""Judges answers against golds: math-verify with guards, in processes that can be killed.

    The rules of equality, and what they do not cover, are in ``docs/verifiers.md``. Plain numbers
    are compared at once; everything else goes to worker processes, started when first needed.

    Args:
        num_workers: Worker processes, at least 1.
        time_limit_s: Wall time of a single verdict in seconds, above 0. A slower one is a timeout.
        memory_mb: What a verdict may allocate, in MiB; an answer that needs more is wrong.
        extraction: Where in a completion the answer is: ``last_box`` (``\boxed{...}``),
            ``last_box_or_all``, ``last_math``, ``final_answer_line`` or ``last_number``.
        thinking: What of a ``<think>`` block counts: ``skip`` (nothing), ``require`` (nothing, and
            there has to be a ``</think>``) or ``count`` (everything).

    Raises:
        UsageError: A value that cannot be used, or math-verify is not installed.

    >>> with MathsVerifier() as verifier:
    ...     verdicts = verifier.verify(["1/2", "7"], [r"\boxed{0.5}", "seven"])
    >>> [(str(verdict.outcome), verdict.detail) for verdict in verdicts]
    [('right', '0.5'), ('unparsed', 'no answer by last_box')]
    """

    def __init__(
        self,
        num_workers: int = 2,
        time_limit_s: float = 5.0,
        memory_mb: int = 512,
        extraction: str = "last_box",
        thinking: str = "skip",
    ) -> None:
        check_rule(extraction, thinking)
        if importlib.util.find_spec("math_verify") is None:
            raise UsageError(
                "mathematics needs math_verify, which is not installed: "
                "pip install 'gradmass[math]'"
            )
        self._extraction, self._thinking = extraction, thinking
        self._pool = Pool(
            "gradmass.rewards.maths.judge",
            num_workers=num_workers,
            time_limit_s=time_limit_s,
            memory_mb=memory_mb,
        )

    def __enter__(self) -> "MathsVerifier":
        """Return the verifier."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the verifier."""
        self.close()

    def verify(self, golds: Sequence[str], completions: Sequence[str]) -> list[Verdict]:
        """Judge each completion against its gold.

        Args:
            golds: Right answers, bare or in a box. One that cannot be read, or that cannot be
                worked out within the limits, makes an error: its completions are unscorable.
            completions: What the policy wrote, as many as golds.

        Returns:
            A verdict for each completion, in their order. ``detail`` is the extracted answer, or
            why there is no judging it.

        Raises:
            UsageError: There are more golds than completions or fewer, or the verifier is closed.
        """
        if len(golds) != len(completions):
            raise UsageError(f"{len(golds)} golds for {len(completions)} completions")
        found = [
            self._extract(gold, completion)
            for gold, completion in zip(golds, completions, strict=True)
        ]
        # The rollouts of a group often agree: every pair is judged once.
        pairs = list(dict.fromkeys(pair for pair in found if not isinstance(pair, Verdict)))
        judged = dict(zip(pairs, self._judge(pairs), strict=True))
        return [pair if isinstance(pair, Verdict) else judged[pair] for pair in found]

    def close(self) -> None:
        """End the worker processes. Closing twice is fine."""
        self._pool.close()

    def _extract(self, gold: object, completion: object) -> Verdict | tuple[str, str]:
        """The gold and answer to compare, or a verdict where there is nothing to compare."""
        if not isinstance(gold, str):
            return Verdict(Outcome.ERROR, f"the gold is no text: {gold!r}"[:80], 0.0)
        if not isinstance(completion, str):
            return Verdict(Outcome.ERROR, f"the completion is no text: {completion!r}"[:80], 0.0)
        start = time.perf_counter()
        answer = extract(completion, self._extraction, self._thinking)
        bare_gold = extract(gold, GOLD_BOX, "count")
        seconds = time.perf_counter() - start
        if bare_gold is None:
            return Verdict(Outcome.ERROR, f"no answer in the gold {gold!r}"[:80], seconds)
        if answer is None:
            return Verdict(Outcome.UNPARSED, self._no_answer(bare_gold, completion), seconds)
        return bare_gold, answer

    def _no_answer(self, gold: str, completion: str) -> str:
        """Why there is no answer; says so where the right number stands in another format."""
        for rule in OTHER_RULES:
            other = extract(completion, rule, self._thinking)
            if other is not None and shortcut(gold, other) == ("right", other):
                return f"no answer by {self._extraction}; by {rule} it is right: {other}"
        return f"no answer by {self._extraction}"

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """A verdict for each gold and answer: at once for plain numbers, else by the workers."""
        verdicts: list[Verdict | None] = []
        for gold, answer in pairs:
            start = time.perf_counter()
            found = shortcut(gold, answer)
            seconds = time.perf_counter() - start
            verdicts.append(
                None if found is None else Verdict(Outcome(found[0]), found[1], seconds)
            )
        rest = [list(pair) for pair, found in zip(pairs, verdicts, strict=True) if found is None]
        replies = iter(self._pool.map(rest))
        return [verdict_of(next(replies)) if v is None else v for v in verdicts]


def verdict_of(reply: Reply) -> Verdict:
    """What a worker's reply, or its end, says of the answer.

    A failure before the gold was understood is the gold's, and the answer is unscorable.
    """
    if reply.failure is None:
        outcome, detail = reply.value
        return Verdict(Outcome(outcome), detail, reply.seconds)
    detail = f"{reply.failure}: {reply.detail}" if reply.detail else str(reply.failure)
    if reply.failure is Failure.MACHINERY:
        return Verdict(Outcome.ERROR, detail, reply.seconds)
    if reply.stage != "gold":
        return Verdict(Outcome.ERROR, f"the gold cannot be worked out ({detail})", reply.seconds)
    if reply.failure is Failure.TIMEOUT:
        return Verdict(Outcome.TIMEOUT, "time limit", reply.seconds)
    return Verdict(Outcome.WRONG, detail, reply.seconds)

"""A sample of a run's rollouts, small enough for a page, and how often each solve rate came up."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

from gradmass.record import Run

MAX_STEPS, ROWS_A_STEP, MOST_CHARACTERS = 40, 16, 800
MAX_BYTES = 1_000_000
"""Of all samples of a page together."""
SYMBOLS = {"right": "✓", "wrong": "✗", "unparsed": "?", "timeout": "…", "error": "!"}

Row = dict[str, Any]
Counts = Counter[tuple[int, int]]
"""Groups by their numbers of right and of judged rollouts."""


@dataclass(frozen=True)
class Batch:
    """The rollouts that one step sampled.

    Args:
        step: The step.
        num_rollouts: All that it sampled.
        verdicts: How many of each.
        rows: Up to ``ROWS_A_STEP`` of them, evenly spaced in the batch.
    """

    step: int
    num_rollouts: int
    verdicts: Counter[str]
    rows: list[Row]


@dataclass(frozen=True)
class Sample:
    """What the page needs of the rollouts of a run, from one reading of them.

    Args:
        batches: Up to twice ``MAX_STEPS`` and one, evenly spaced over the run; the first and the
            last are among them.
        counts_by_step: For each step that sampled, its groups by right and judged rollouts.
    """

    batches: list[Batch]
    counts_by_step: list[Counts]


def read_sample(run: Run) -> Sample:
    """Read the rollouts of a run once."""
    batches: list[Batch] = []
    counts_by_step: list[Counts] = []
    every, batch = 1, None
    for number, (step, rows) in enumerate(groupby(_rows(run), itemgetter("step"))):
        batch, counts = _batch(step, list(rows))
        counts_by_step.append(counts)
        if number % every == 0:
            batches.append(batch)
        if len(batches) > 2 * MAX_STEPS:
            batches, every = batches[::2], 2 * every
    if batch is not None and batches[-1] is not batch:
        batches.append(batch)
    return Sample(batches, counts_by_step)


def _rows(run: Run) -> Iterator[Row]:
    for row in run.rollouts():
        for key in ("prompt", "completion"):
            if len(row[key]) > MOST_CHARACTERS:
                row[key] = f"{row[key][:MOST_CHARACTERS]} … ({len(row[key])} characters)"
        yield row


def _batch(step: int, rows: list[Row]) -> tuple[Batch, Counts]:
    groups: dict[Any, list[int]] = {}
    for row in rows:
        counts = groups.setdefault(row["group"], [0, 0])
        # An error is no answer: it counts neither as right nor as wrong.
        counts[0] += row["verdict"] == "right"
        counts[1] += row["verdict"] != "error"
    batch = Batch(step, len(rows), Counter(row["verdict"] for row in rows), evenly(rows))
    return batch, Counter((right, judged) for right, judged in groups.values() if judged)


def evenly(rows: list[Any], most: int = ROWS_A_STEP) -> list[Any]:
    """At most so many items, evenly spaced, the first among them.

    >>> evenly(list(range(10)), 4), evenly([1, 2], 4)
    ([0, 2, 5, 7], [1, 2])
    """
    return rows if len(rows) <= most else [rows[i * len(rows) // most] for i in range(most)]


def packed(names: Sequence[str], samples: Sequence[Sample], max_bytes: int = MAX_BYTES) -> str:
    """The samples as JSON that may stand in a page, of at most so many bytes in all.

    Each run has an equal part. What is too much goes evenly: first rollouts of every step, down to
    one, then steps.

    Returns:
        ``{"runs": [name], "symbols": {verdict: sign}, "steps": [[run, step, rollouts, {verdict:
        number}]], "prompts": [text], "rows": [[run, step, problem, prompt, completion, verdict,
        detail, weight, tokens]]}``; runs and prompts of rows by their place.
    """
    shares = [_fitting(sample.batches, max_bytes // len(samples)) for sample in samples]
    return _encoded(names, shares)


def _fitting(batches: list[Batch], max_bytes: int) -> list[Batch]:
    most_rows, most_steps = ROWS_A_STEP, MAX_STEPS
    while True:
        # The last one counts as much as the first: it shows what the policy does now.
        kept = [*evenly(batches[:-1], most_steps - 1), *batches[-1:]]
        thinned = [
            Batch(b.step, b.num_rollouts, b.verdicts, evenly(b.rows, most_rows)) for b in kept
        ]
        if len(_encoded([""], [thinned])) <= max_bytes or (most_rows, most_steps) == (1, 2):
            return thinned
        if most_rows > 1:
            most_rows //= 2
        else:
            most_steps = max(2, most_steps // 2)


def _encoded(names: Sequence[str], samples: Sequence[Sequence[Batch]]) -> str:
    prompts: dict[str, int] = {}
    steps: list[list[Any]] = []
    rows: list[list[Any]] = []
    for run, batches in enumerate(samples):
        for batch in batches:
            steps.append([run, batch.step, batch.num_rollouts, batch.verdicts])
            for row in batch.rows:
                prompt = prompts.setdefault(row["prompt"], len(prompts))
                middle = [row[key] for key in ("completion", "verdict", "detail")]
                end = [round(row["weight"], 4), row["num_tokens"]]
                rows.append([run, batch.step, row["problem_id"], prompt, *middle, *end])
    table = {"runs": names, "symbols": SYMBOLS, "steps": steps}
    text = json.dumps(
        {**table, "prompts": list(prompts), "rows": rows}, separators=(",", ":"), allow_nan=False
    )
    # Nothing of a completion may end the script it stands in.
    return text.replace("<", "\\u003c")

"""What a weight may be told of a batch besides its rewards, checked."""

import math
from collections.abc import Mapping
from typing import Any

from array_api_compat import device

from gradmass.types import Array, UsageError
from gradmass.weights.groups import Groups

SIGNALS = frozenset(
    {
        "successes_PG",
        "num_success",
        "num_scored",
        "entropy_nats",
        "entropy_kind",
        "lengths_PG",
        "greedy_rewards_P",
        "solve_rate_P",
        "score_squares",
        "policy_lag",
        "step",
        "num_steps",
    }
)
"""Every measurement a weight may be passed besides the rewards; a weight ignores what it does not
need. ``successes_PG`` verdicts as booleans; ``num_success``, ``num_scored`` raw counts of the
batch before any filter; ``entropy_nats`` mean token entropy with its ``entropy_kind``;
``solve_rate_P`` what each problem's earlier visits say of it; ``score_squares`` mean squared norm
of grad log pi(answer) of right and of wrong rollouts, None where there is none; ``policy_lag``
updates between the sampling policy and the trained one; ``step`` updates done, of
``num_steps``."""


def success_counts(groups: Groups, signals: Mapping[str, Any]) -> tuple[float, float]:
    """Successes and scored rollouts of the batch, from the best source there is.

    Raw counts before any filter come first, then the verdicts, then rewards that are 0 or 1.

    Raises:
        UsageError: None of these is at hand, or the counts contradict each other.
    """
    num_success, num_scored = signals.get("num_success"), signals.get("num_scored")
    if (num_success is None) != (num_scored is None):
        raise UsageError("num_success and num_scored are given together or not at all")
    if num_success is not None and num_scored is not None:
        if not 0 <= num_success <= num_scored:
            raise UsageError(
                f"num_success = {num_success} is not within 0 to num_scored = {num_scored}"
            )
        return float(num_success), float(num_scored)
    xp, successes_PG = groups.xp, signals.get("successes_PG")
    if successes_PG is None:
        successes_PG = groups.rewards_PG == 1
        if not bool(xp.all(successes_PG | (groups.rewards_PG == 0))):
            raise UsageError(
                "rewards are not all 0 or 1, so they do not say which rollouts succeeded: "
                "pass successes_PG (the verdicts) or num_success and num_scored"
            )
    is_success_PG = xp.asarray(successes_PG, dtype=xp.bool, device=device(groups.mask_PG))
    if is_success_PG.shape != groups.mask_PG.shape:
        raise UsageError(
            f"successes_PG has shape {tuple(is_success_PG.shape)}, "
            f"rewards have shape {tuple(groups.mask_PG.shape)}"
        )
    num_success = xp.sum(is_success_PG & groups.mask_PG)
    return float(num_success), float(xp.sum(groups.num_scored_P1))


def lengths(groups: Groups, signals: Mapping[str, Any]) -> Array:
    """Tokens of each rollout from ``lengths_PG`` in float64, 0 where not scored.

    Raises:
        UsageError: Lengths of another shape, or a scored rollout without tokens.
    """
    xp, given_PG = groups.xp, signals["lengths_PG"]
    given_PG = xp.asarray(given_PG, dtype=xp.float64, device=device(groups.mask_PG))
    if given_PG.shape != groups.mask_PG.shape:
        raise UsageError(
            f"lengths_PG has shape {tuple(given_PG.shape)}, "
            f"rewards have shape {tuple(groups.mask_PG.shape)}"
        )
    lengths_PG = xp.where(groups.mask_PG, given_PG, 0.0)
    is_length_PG = (lengths_PG > 0) & xp.isfinite(lengths_PG)
    if not bool(xp.all(is_length_PG | ~groups.mask_PG)):
        first = int(xp.argmin(xp.astype(is_length_PG | ~groups.mask_PG, xp.uint8)))
        row, column = divmod(first, lengths_PG.shape[1])
        raise UsageError(
            f"lengths_PG is {lengths_PG[row, column].item()} for group {row}, rollout {column}: "
            "it must be finite and above 0; leave a rollout without tokens out with mask"
        )
    return lengths_PG


def solve_rates(groups: Groups, given_P: Array) -> Array:
    """A solve rate of each problem, ``solve_rate_P``, in float64 as a column.

    Raises:
        UsageError: Rates of another shape, or one that is not within [0, 1].
    """
    xp = groups.xp
    rate_P = xp.asarray(given_P, dtype=xp.float64, device=device(groups.mask_PG))
    if rate_P.shape != groups.mask_PG.shape[:1]:
        raise UsageError(
            f"solve_rate_P has shape {tuple(rate_P.shape)}, "
            f"rewards have shape {tuple(groups.mask_PG.shape)}"
        )
    is_rate_P = (rate_P >= 0) & (rate_P <= 1)
    if not bool(xp.all(is_rate_P)):
        first = int(xp.argmin(xp.astype(is_rate_P, xp.uint8)))
        raise UsageError(
            f"solve_rate_P is {rate_P[first].item()} for group {first}: it must be within 0 to 1"
        )
    return rate_P[:, None]


def score_squares(signals: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Mean squared norm of the scores of right and of wrong rollouts, None where not measured.

    Raises:
        UsageError: Not two numbers, or one that is negative or not finite.
    """
    given = signals["score_squares"]
    try:
        right, wrong = (None if value is None else float(value) for value in given)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"score_squares are two numbers, of right and of wrong rollouts, got {given!r}"
        ) from error
    if any(v is not None and not (math.isfinite(v) and v >= 0) for v in (right, wrong)):
        raise UsageError(f"score_squares must be finite and at least 0, got {given!r}")
    return right, wrong


def time_of(signals: Mapping[str, Any]) -> tuple[int, int]:
    """``step``, updates done, and ``num_steps``, their number.

    Raises:
        UsageError: The one is not within the other.
    """
    step, num_steps = signals["step"], signals["num_steps"]
    if not 0 <= step <= num_steps or num_steps < 1:
        raise UsageError(f"step = {step} is not within 0 to num_steps = {num_steps}")
    return step, num_steps

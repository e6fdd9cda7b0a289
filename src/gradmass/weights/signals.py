"""What a weight may be told of a batch besides its rewards, checked."""

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
        "policy_lag",
        "step",
        "num_steps",
    }
)
"""Every measurement a weight may be passed besides the rewards; a weight ignores what it does not
need. ``successes_PG`` verdicts as booleans; ``num_success``, ``num_scored`` raw counts of the
batch before any filter; ``entropy_nats`` mean token entropy with its ``entropy_kind``;
``policy_lag`` updates between the sampling policy and the trained one; ``step`` updates done, of
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

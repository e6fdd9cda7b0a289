"""A batch of verl as rollouts: sessions with several outputs, padding, verdicts, evicted groups."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradmass.engines.verl_settings import Settings
from gradmass.engines.weigher import Batch
from gradmass.rewards import Outcome
from gradmass.types import UsageError
from gradmass.weights.groups import as_integers, layout

PADDING = "pad"
"""Start of the group ids of verl's padding rows; those of rollouts are hexadecimal."""
END = re.compile(r"_(.*)_(\d+)", re.DOTALL)
"""What follows the uid in the name of a row: session and output."""


def sessions(keys: Sequence[str], uids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Which rows are outputs of one session, and which output is its last.

    Args:
        keys: Of the rows, ``{uid}_{session}_{output}``. Only what follows the uid is read, once for
            all rows that share it: there are tens of thousands of rows.
        uids: Of the rows.

    Returns:
        Row of each session's last output, and the session of each row, in the order of first sight.

    >>> last_R, session_B = sessions(["a_0_0", "a_0_1", "a_1_0"], ["a", "a", "a"])
    >>> last_R.tolist(), session_B.tolist()
    ([1, 2], [0, 0, 1])
    """
    ends_B = list(map(str.removeprefix, keys, uids))
    ends = list(dict.fromkeys(ends_B))
    parts = [END.fullmatch(end) for end in ends]
    if None in parts:
        row = ends_B.index(ends[parts.index(None)])
        raise UsageError(
            f"row {keys[row]!r} of verl's batch, of uid {uids[row]!r}, is not named "
            "UID_SESSION_OUTPUT (gradmass doctor verl says more)"
        )
    names, outputs = ([part[i] for part in parts if part] for i in (1, 2))
    if len(set(outputs)) <= 1 and len(set(keys)) == len(keys):
        return np.arange(len(keys)), np.arange(len(keys))  # one output each, as a rule
    end_B = as_integers(ends_B)
    rank_of = {output: rank for rank, output in enumerate(sorted(set(map(int, outputs))))}
    rank_B = np.array([rank_of[int(output)] for output in outputs])[end_B]
    name_B = as_integers(names)[end_B]
    session_B = as_integers((as_integers(uids) * len(names) + name_B).tolist())
    # Of two rows with the same output the first counts.
    order_B = np.lexsort((-np.arange(len(keys)), rank_B, session_B))
    is_last_B = np.diff(session_B[order_B], append=len(keys)) > 0
    return order_B[is_last_B], session_B


def rollouts(
    rewards_B: np.ndarray,
    uids_B: Sequence[Any],
    num_tokens_B: np.ndarray,
    settings: Settings,
    *,
    keys: Sequence[str] | None = None,
    infos_B: Sequence[Mapping[str, Any]] | None = None,
    host_B: np.ndarray | None = None,
    needs_verdicts: bool = True,
) -> tuple[Batch, np.ndarray]:
    """The rollouts behind the rows of a batch.

    A session counts once, by the reward and the verdict of its last output. Padding counts not at
    all. A rollout is unscorable if its reward or its verdict is NaN or None, or if ``verdict`` is
    ``error``, as the verifiers of ``gradmass.rewards`` say where they failed.

    Args:
        rewards_B: Reward of each row.
        uids_B: What the rows of one prompt share.
        num_tokens_B: Tokens of each row that reach the loss.
        settings: Which key of the results says who succeeded.
        keys: Names of the rows; None where verl hands none over: then each row is a rollout.
        infos_B: What the reward function returned for each row; None where it is not at hand.
        host_B: The engine's own weight of each row.
        needs_verdicts: Whether a weight, or a log, needs to know who succeeded.

    Returns:
        The rollouts, and for each row the index of its rollout.

    Raises:
        UsageError: Verdicts cannot be told from the rewards, or the key that says them is missing.
    """
    uids_R, infos_R = uids_B, infos_B
    last_R = session_B = np.arange(len(rewards_B))
    if keys is not None:
        last_R, session_B = sessions(keys, list(map(str, uids_B)))
    if len(last_R) < len(session_B):
        uids_R = [uids_B[row] for row in last_R.tolist()]
        infos_R = None if infos_B is None else [infos_B[row] for row in last_R.tolist()]
    rewards_R = np.asarray(rewards_B, dtype=np.float64)[last_R]
    groups = layout(uids_R)
    mask_R = ~np.isnan(rewards_R)
    is_padding_P = [str(uids_R[row]).startswith(PADDING) for row in groups.slots_PG[:, :1].flat]
    if any(is_padding_P):
        mask_R &= ~groups.flat(np.repeat(is_padding_P, groups.slots_PG.shape[1]))
    if infos_R is not None:
        verdicts_R = [info.get("verdict") for info in infos_R]
        if Outcome.ERROR in verdicts_R:
            mask_R &= np.array([verdict != Outcome.ERROR for verdict in verdicts_R])
    successes_R, mask_R = _verdicts(rewards_R, infos_R, mask_R, settings, needs_verdicts)
    num_tokens_R = np.bincount(session_B, weights=num_tokens_B, minlength=len(last_R))
    return (
        Batch(
            rewards_B=rewards_R,
            layout=groups,
            successes_B=successes_R,
            mask_B=mask_R,
            has_tokens_B=num_tokens_R > 0,
            lengths_B=num_tokens_R,
            host_weights_B=None if host_B is None else host_B[last_R],
        ),
        session_B,
    )


def _verdicts(
    rewards_R: np.ndarray,
    infos_R: Sequence[Mapping[str, Any]] | None,
    mask_R: np.ndarray,
    settings: Settings,
    needs_verdicts: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Which rollouts succeeded, and which are scored at all."""
    if settings.success is not None:
        infos_R = [{}] * len(mask_R) if infos_R is None else infos_R
        values_R = _numbers(settings.success, infos_R, mask_R)
        return values_R >= settings.success_at, mask_R & ~np.isnan(values_R)
    is_other_R = mask_R & (rewards_R != 0) & (rewards_R != 1)
    if needs_verdicts and is_other_R.any():
        raise UsageError(
            f"reward {rewards_R[is_other_R][0]:g} is neither 0 nor 1, so it does not say whether "
            "the rollout succeeded: name the key of the reward function's result that does, as in "
            "algorithm.gradmass.success=acc (the trainers gradmass_* read it)"
        )
    return rewards_R == 1, mask_R


def _numbers(key: str, infos_R: Sequence[Mapping[str, Any]], mask_R: np.ndarray) -> np.ndarray:
    """What the results of the reward function have under a key, NaN for None."""
    values_R = [info.get(key) for info in infos_R]
    if None in values_R:
        is_missing_R = mask_R & np.array([key not in info for info in infos_R], dtype=bool)
        if is_missing_R.any():
            found = sorted({name for info in infos_R for name in info})
            raise UsageError(
                f"success = {key!r}: the reward function's result has no such key "
                f"(it has {', '.join(found) or 'none'})"
            )
    return np.array([math.nan if value is None else _number(key, value) for value in values_R])


def _number(key: str, value: Any) -> float:
    """A verdict as a number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"success = {key!r}: the reward function's result has {value!r} there, no number"
        ) from error


def evicted(
    counts: Mapping[float, int] | None, group_size: int, settings: Settings
) -> tuple[int, int]:
    """Successes and rollouts of the groups that verl's filter took out before the batch.

    Args:
        counts: Groups by the value that all their rollouts share.
        group_size: Rollouts of a group.
        settings: What a success is.
    """
    least = 1.0 if settings.success is None else settings.success_at
    counts = counts or {}
    num_right = sum(count for value, count in counts.items() if float(value) >= least)
    return num_right * group_size, sum(counts.values()) * group_size

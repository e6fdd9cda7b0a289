"""A batch of verl as rollouts: sessions with several outputs, padding, verdicts, evicted groups."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

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
ERROR = str(Outcome.ERROR.value)
"""The verdict of a verifier that failed; a plain string, which others are compared to faster."""


class Results(NamedTuple):
    """What the reward function says of each row.

    Args:
        is_error_B: Where the verifier failed.
        values_B: What is under the key that says who succeeded, NaN for None and for what is no
            number; None without a key.
        is_missing_B: Where that key is missing.
        known: The keys there are, where one is missing; for messages.
        others: What is under the key and no number, by row.
    """

    is_error_B: np.ndarray
    values_B: np.ndarray | None = None
    is_missing_B: np.ndarray | None = None
    known: str = ""
    others: Mapping[int, Any] = MappingProxyType({})


def read_results(infos_B: Iterable[Mapping[str, Any]], success: str | None) -> Results:
    """Take out of the reward function's results what counts.

    They are tens of thousands of tables all over the memory: better walked once, and never again.

    Args:
        infos_B: What the reward function returned for each row.
        success: The key that says who succeeded; None: the rewards do.
    """
    infos_B = infos_B if success is None else list(infos_B)
    verdicts_B = [info.get("verdict") for info in infos_B]
    is_error_B = np.zeros(len(verdicts_B), dtype=bool)
    if ERROR in verdicts_B:
        is_error_B[:] = [verdict == ERROR for verdict in verdicts_B]
    if success is None:
        return Results(is_error_B)
    found_B = [info.get(success) for info in infos_B]
    is_missing_B, known = np.zeros(len(found_B), dtype=bool), ""
    if None in found_B:
        is_missing_B[:] = [success not in info for info in infos_B]
    if is_missing_B.any():
        known = ", ".join(sorted({name for info in infos_B for name in info})) or "none"
    numbers_B = [math.nan if value is None else _number(value) for value in found_B]
    others = {}
    if None in numbers_B:
        others = {row: found_B[row] for row, number in enumerate(numbers_B) if number is None}
    values_B = np.array(numbers_B, dtype=np.float64)
    return Results(is_error_B, values_B, is_missing_B, known, others)


def _number(value: Any) -> float | None:
    """A verdict as a number; None where it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def sessions(keys: Sequence[str], uids: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
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
    try:
        ends = set(map(str.removeprefix, keys, uids))
    except TypeError:  # ids of another kind, whose texts are in the names
        return sessions(keys, list(map(str, uids)))
    parts = {end: END.fullmatch(end) for end in ends}
    if None in parts.values():
        key, uid = next(
            (key, uid)
            for key, uid in zip(keys, uids, strict=True)
            if not parts[key.removeprefix(uid)]
        )
        raise UsageError(
            f"row {key!r} of verl's batch, of uid {uid!r}, is not named "
            "UID_SESSION_OUTPUT (gradmass doctor verl says more)"
        )
    names, outputs = ([part[i] for part in parts.values() if part] for i in (1, 2))
    if len(set(outputs)) <= 1 and len(set(keys)) == len(keys):
        return np.arange(len(keys)), np.arange(len(keys))  # one output each, as a rule
    number_of = {end: number for number, end in enumerate(parts)}
    end_B = np.array([number_of[end] for end in map(str.removeprefix, keys, uids)])
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
    uids_B: Sequence[Any] | np.ndarray,
    num_tokens_B: np.ndarray,
    settings: Settings,
    *,
    keys: Sequence[str] | None = None,
    results: Results | None = None,
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
        results: What the reward function says of each row; None where it is not at hand.
        host_B: The engine's own weight of each row.
        needs_verdicts: Whether a weight, or a log, needs to know who succeeded.

    Returns:
        The rollouts, and for each row the index of its rollout.

    Raises:
        UsageError: Verdicts cannot be told from the rewards, or the key that says them is missing
            or has no number.
    """
    uids_B = uids_B.tolist() if isinstance(uids_B, np.ndarray) else uids_B  # faster to walk
    last_R: np.ndarray = np.arange(len(rewards_B))
    session_B = last_R
    if keys is not None:
        last_R, session_B = sessions(keys, uids_B)
    uids_R: Sequence[Any] = uids_B
    num_tokens_R: np.ndarray = num_tokens_B.astype(np.float64)
    if len(last_R) < len(session_B):
        uids_R = [uids_B[row] for row in last_R.tolist()]
        num_tokens_R = np.bincount(session_B, weights=num_tokens_R, minlength=len(last_R))
    rewards_R = np.asarray(rewards_B, dtype=np.float64)[last_R]
    groups = layout(uids_R)
    mask_R = ~np.isnan(rewards_R)
    first_P = groups.slots_PG[:, :1].reshape(-1).tolist()
    is_padding_P = [str(uids_R[row]).startswith(PADDING) for row in first_P]
    if True in is_padding_P:
        mask_R &= ~groups.flat(np.repeat(is_padding_P, groups.slots_PG.shape[1]))
    if results is not None:
        mask_R &= ~results.is_error_B[last_R]
    if settings.success is None:
        successes_R = _by_rewards(rewards_R, mask_R, needs_verdicts)
    else:
        values_R = _by_results(settings.success, results, last_R, mask_R)
        successes_R, mask_R = values_R >= settings.success_at, mask_R & ~np.isnan(values_R)
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


def _by_rewards(rewards_R: np.ndarray, mask_R: np.ndarray, needs_verdicts: bool) -> np.ndarray:
    """Which rollouts succeeded, where the rewards say so."""
    is_right_R: np.ndarray = rewards_R == 1
    is_other_R = mask_R & ~is_right_R & (rewards_R != 0)
    if needs_verdicts and is_other_R.any():
        raise UsageError(
            f"reward {rewards_R[is_other_R][0]:g} is neither 0 nor 1, so it does not say whether "
            "the rollout succeeded: name the key of the reward function's result that does, as in "
            "algorithm.gradmass.success=acc (the trainers gradmass_* read it)"
        )
    return is_right_R


def _by_results(
    key: str, results: Results | None, last_R: np.ndarray, mask_R: np.ndarray
) -> np.ndarray:
    """What the results of the reward function have under a key, NaN for None.

    A session is judged by its last output: what others have under the key does not matter.
    """
    if results is None or results.values_B is None or results.is_missing_B is None:
        raise UsageError(f"success = {key!r}: the reward function's results are not at hand")
    if (mask_R & results.is_missing_B[last_R]).any():
        raise UsageError(
            f"success = {key!r}: the reward function's result has no such key "
            f"(it has {results.known})"
        )
    wrong = [row for row in last_R[mask_R].tolist() if row in results.others]
    if wrong:
        raise UsageError(
            f"success = {key!r}: the reward function's result has {results.others[wrong[0]]!r} "
            "there, no number"
        )
    values_R: np.ndarray = results.values_B[last_R]
    return values_R


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

"""What the answers of a log say: repeats, lengths by verdict, entropy from log-probabilities."""

from typing import Any

import numpy as np

from gradmass.logs.layout import Layout
from gradmass.logs.rollouts import Rollouts


def duplicates(log: Rollouts) -> dict[str, Any] | None:
    """Share of rollouts whose answer is that of an earlier one of their group.

    Returns:
        ``share`` of all, and with verdicts ``share_right`` of the right ones among each other;
        None without answers.
    """
    if log.completion_B is None:
        return None
    found: dict[str, Any] = {"share": _repeated(log.group_B, log.completion_B)}
    if log.verdicts is not None:
        is_right_B = log.verdicts.success_B == 1
        found["share_right"] = (
            _repeated(log.group_B[is_right_B], log.completion_B[is_right_B])
            if is_right_B.any()
            else None
        )
    return found


def _repeated(group_N: np.ndarray, answer_N: np.ndarray) -> float:
    order_N = np.lexsort((answer_N, group_N))
    group_N, answer_N = group_N[order_N], answer_N[order_N]
    is_repeat_N = (group_N[1:] == group_N[:-1]) & (answer_N[1:] == answer_N[:-1])
    return float(is_repeat_N.sum() / len(group_N))


def lengths_of(log: Rollouts, layout: Layout) -> dict[str, Any] | None:
    """Mean length of right and of wrong answers, over all and by window."""
    if log.size_B is None:
        return None
    size_B, unit = log.size_B
    found: dict[str, Any] = {
        "unit": unit,
        "mean": _mean(size_B),
        "longest": float(np.nanmax(size_B)) if np.isfinite(size_B).any() else None,
        "num_empty": int((size_B == 0).sum()),
    }
    if log.verdicts is not None:
        success_B = log.verdicts.success_B
        found |= {"right": _mean(size_B[success_B == 1]), "wrong": _mean(size_B[success_B == 0])}
        found["by_window"] = [
            {
                "right": _mean(size_B[at_B][success_B[at_B] == 1]),
                "wrong": _mean(size_B[at_B][success_B[at_B] == 0]),
            }
            for at_B in layout.window_rows
        ]
    return found


def entropy_of(log: Rollouts, layout: Layout) -> dict[str, Any] | None:
    """Entropy in nats: as logged, or from the log-probabilities of what was sampled.

    Minus the mean log-probability of sampled tokens is an unbiased estimate of the mean token
    entropy of the sampler, if answers were drawn from it at temperature 1 without truncation.
    """
    if log.entropy_B is not None:
        kind, values_B, unit = "logged", log.entropy_B, "token"
        means = [_mean(values_B[at_B]) for at_B in layout.window_rows]
    elif log.logprob_B is not None:
        kind, values_B = "log-probabilities of sampled tokens", -log.logprob_B
        unit = "answer" if log.length_B is None else "token"
        means = [_per(values_B, log.length_B, at_B) for at_B in layout.window_rows]
    else:
        return None
    length_B = None if kind == "logged" else log.length_B
    mean = _per(values_B, length_B, np.arange(len(log)))
    return {"from": kind, "unit": f"nats a {unit}", "mean": mean, "by_window": means}


def _per(values_B: np.ndarray, length_B: np.ndarray | None, at_B: np.ndarray) -> float | None:
    """Mean over rollouts, or over their tokens."""
    if length_B is None:
        return _mean(values_B[at_B])
    is_in = np.isfinite(values_B[at_B]) & np.isfinite(length_B[at_B])
    num_tokens = float(length_B[at_B][is_in].sum())
    return float(values_B[at_B][is_in].sum()) / num_tokens if num_tokens else None


def _mean(values_N: np.ndarray) -> float | None:
    values_N = values_N[np.isfinite(values_N)]
    return float(values_N.mean()) if len(values_N) else None

"""CurveRL: GRPO weighed by where a solve rate stands among those of the last batches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from array_api_compat import device

from gradmass.types import Array, State
from gradmass.weights.base import Groups, Weight, register_weight
from gradmass.weights.checks import check_whole


@register_weight("curverl")
@dataclass(frozen=True, kw_only=True)
class CurveRl(Weight):
    """GRPO times the share of recent groups as hard as this one, among those no easier.

    ``w_i = f(rbar) / F(rbar) (r_i - rbar)``: f the share of groups with this mean, F of those with
    this or a smaller one, among the groups of mixed rewards of the ``window`` batches before (of
    this batch itself as long as there is none). Gradient masses for binary rewards, large groups:
    ``m_S = m_F = p (1 - p) f(p) / F(p)``; in expectation the gradient of log F(p).

    Both are histograms with as many bins as the largest group of the batch has means.

    State: ``window``, one list a batch, the current one last, of ``[successes, scored, groups]``.

    Edge cases: 0 for groups of equal rewards and groups of one, and for a mean that the window does
    not hold. A batch in which no rollout is scored leaves the state alone.

    Source: Sun et al. 2026, arXiv 2605.24331; zhyzmath/CurveRL
    ``compute_curverl_outcome_advantage``.

    >>> import numpy as np
    >>> curverl = CurveRl()
    >>> rewards_PG = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]])
    >>> weights_PG, state = curverl.update(rewards_PG, curverl.init())
    >>> weights_PG
    array([[ 0.75 , -0.25 , -0.25 , -0.25 ],
           [ 0.125,  0.125,  0.125, -0.375]])
    >>> state
    {'window': [[[1, 4, 1], [3, 4, 1]]]}
    """

    scope: ClassVar = "run"
    zero_sum: ClassVar = True
    domain: ClassVar = "binary"

    window: int = 10
    """Batches before the current one that are counted, at least 0."""

    def __post_init__(self) -> None:
        """Refuse negative windows."""
        check_whole("curverl", "window", self.window, 0)

    def init(self) -> State:
        """No batch yet."""
        return {"window": []}

    def observe(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> State:
        """Append the batch, and forget those beyond the window."""
        num_success_P, num_scored_P = _counts(groups)
        if not any(num_scored_P):
            return state
        pairs = zip(num_success_P, num_scored_P, strict=True)
        counter = Counter(pair for pair in pairs if 0 < pair[0] < pair[1])
        batch = [[*pair, number] for pair, number in sorted(counter.items())]
        return {"window": [*state["window"], batch][-self.window - 1 :]}

    def formula(self, groups: Groups, state: State, signals: Mapping[str, Any]) -> Array:
        """Return ``f / F (r - rbar)``."""
        xp = groups.xp
        num_success_P, num_scored_P = _counts(groups)
        num_bins = max(num_scored_P) + 1
        factors = self._factors(state["window"], num_bins)
        factor_P = [
            factors[s * num_bins // n] if 0 < s < n else 0.0
            for s, n in zip(num_success_P, num_scored_P, strict=True)
        ]
        factor_P = xp.asarray(factor_P, dtype=xp.float64, device=device(groups.mask_PG))
        return factor_P[:, None] * groups.centred_PG

    def _factors(self, batches: list[list[list[int]]], num_bins: int) -> list[float]:
        """Return f / F of each bin; 0 where f is."""
        earlier = [entry for batch in batches[:-1] for entry in batch]
        counts = [0] * num_bins
        for num_success, num_scored, number in earlier or [e for b in batches[-1:] for e in b]:
            counts[num_success * num_bins // num_scored] += number
        up_to, factors = 0, []
        for count in counts:
            up_to += count
            factors.append(count / up_to if count else 0.0)
        return factors


def _counts(groups: Groups) -> tuple[list[int], list[int]]:
    """Successes and scored rollouts of each group."""
    xp = groups.xp
    num_success_P = xp.sum(groups.rewards_PG, axis=1)
    num_scored_P = xp.sum(groups.mask_PG, axis=1, dtype=xp.int64)
    return xp.astype(num_success_P, xp.int64).tolist(), num_scored_P.tolist()

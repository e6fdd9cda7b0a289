"""What a problem's earlier visits say of it, for weights that ask."""

from collections.abc import Sequence

import numpy as np

from gradmass.types import State

DISCOUNT = 0.75
"""What a visit counts at the next one, a number of rollouts for each verdict."""
PRIOR = (1.0, 1.0)
"""Right and wrong rollouts before any visit; they are not discounted."""


class Visits:
    """A discounted Beta posterior of the solve rate of each problem.

    A visit with s right and f wrong rollouts among the scored ones makes ``S = DISCOUNT S + s`` and
    ``F = DISCOUNT F + f``; the solve rate is the posterior mean, ``(1 + S) / (2 + S + F)``: 1/2
    where there was no visit. About 4 visits are remembered, as the policy moves on.

    Args:
        state: ``state`` of an earlier one, to go on from.

    Source: arXiv 2603.18444 (DBB), whose discount of .75 is that of its 8B runs; there the prior is
    discounted too, so that it is gone after some visits.
    """

    def __init__(self, state: State | None = None) -> None:
        self._counts: dict[str, tuple[float, float]] = {
            name: (float(right), float(wrong)) for name, (right, wrong) in (state or {}).items()
        }

    @property
    def state(self) -> State:
        """``[S, F]`` by the id of the problem, for those that were visited."""
        return {name: list(counts) for name, counts in self._counts.items()}

    def solve_rates(self, ids: Sequence[str]) -> np.ndarray:
        """Posterior mean of each problem before this visit, shape ``[P]``."""
        rates = []
        for name in ids:
            right, wrong = self._counts.get(name, (0.0, 0.0))
            rates.append((PRIOR[0] + right) / (sum(PRIOR) + right + wrong))
        return np.array(rates)

    def see(self, ids: Sequence[str], successes_PG: np.ndarray, mask_PG: np.ndarray) -> None:
        """Add a visit of each problem.

        Args:
            ids: Of the problems.
            successes_PG: Which rollouts are right.
            mask_PG: Which are scored; a problem without any was not visited.
        """
        right_P = (successes_PG & mask_PG).sum(1).tolist()
        scored_P = mask_PG.sum(1).tolist()
        for name, right, scored in zip(ids, right_P, scored_P, strict=True):
            if scored:
                before = self._counts.get(name, (0.0, 0.0))
                self._counts[name] = (
                    DISCOUNT * before[0] + right,
                    DISCOUNT * before[1] + scored - right,
                )

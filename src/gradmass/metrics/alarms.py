"""Warnings of a run while it runs: four rules, each with what it cannot tell.

They say what is so now. How often they come before a run is lost, and how often for nothing, was
not measured: none of them is a forecast.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOW = 20
"""Updates over which entropy and groups are averaged."""
ENTROPY_SHARE = 0.2
MIXED_SHARE = 0.1
PATIENCE = 50
"""Updates for which a controller has to be at its bound."""
TOP1_SHARE, TOP1_OVER_NOISE, HEAD_OVER_SHARE, NUM_MEASURED = 0.9, 3.0, 2.0, 3


@dataclass(frozen=True)
class Rule:
    """When a warning is given, and what it does not say.

    Args:
        name: What the warning is called.
        rule: The condition with its threshold.
        cannot_tell: What does not follow from it.
    """

    name: str
    rule: str
    cannot_tell: str


ENTROPY_COLLAPSE = Rule(
    "entropy collapse",
    f"mean token entropy of the last {WINDOW} updates below {ENTROPY_SHARE:g} of that of the "
    f"first {WINDOW}",
    "whether diversity that matters is lost: ways of being wrong count too; see pass@100 and the "
    "entropy over right answers",
)
VANISHING_SIGNAL = Rule(
    "vanishing signal",
    f"share of mixed groups over the last {WINDOW} updates below {MIXED_SHARE:g}",
    "whether the problems are solved for good or beyond reach: a larger group could still be "
    "mixed; weights that are not 0 on ties go on learning",
)
SATURATED = Rule(
    "controller saturated",
    f"alpha or delta at its outer bound for {PATIENCE} updates",
    "whether that bound is wrong: it only says that the controller follows nothing there, as a "
    "constant weight would",
)
RANK_CONCENTRATION = Rule(
    "rank concentration",
    f"at {NUM_MEASURED} measurements in a row r_1 of the head's change at least {TOP1_SHARE:g}, at "
    f"least {TOP1_OVER_NOISE:g} times its noise value and not falling, while the change grows and "
    f"the head holds at least {HEAD_OVER_SHARE:g} times its share of the parameters",
    "collapse: the first direction often carries the gain; compare pass@k with it kept and dropped",
)
RULES = (ENTROPY_COLLAPSE, VANISHING_SIGNAL, SATURATED, RANK_CONCENTRATION)


class Alarms:
    """Sees the rows of a run in order; each warning is given once, when its rule first holds.

    What it knows follows from the rows alone: shown the rows of a run up to a checkpoint, it goes
    on as if it had never been away.

    Args:
        bounds: Metrics that a controller sets, with their outer bounds.
    """

    def __init__(self, bounds: Mapping[str, float]) -> None:
        self._bounds = dict(bounds)
        self._given: set[str] = set()
        self._first_entropy: list[float] = []
        self._entropy: deque[float] = deque(maxlen=WINDOW)
        self._groups: deque[tuple[float, float, float]] = deque(maxlen=WINDOW)
        self._at_bound: dict[str, int] = dict.fromkeys(bounds, 0)
        self._ranks: deque[Mapping[str, Any]] = deque(maxlen=NUM_MEASURED)

    def see(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        """Take a row of metrics.

        Returns:
            The warnings that begin to hold with it: ``{"name", "message", "cannot_tell"}``.
        """
        found = [
            (ENTROPY_COLLAPSE, "", self._see_entropy(row.get("entropy/mean_nats"))),
            (VANISHING_SIGNAL, "", self._see_groups(row)),
            *((SATURATED, key, self._see_bound(key, row.get(key))) for key in self._bounds),
            (RANK_CONCENTRATION, "", self._see_rank(row)),
        ]
        warnings = []
        for rule, subject, message in found:
            if message and rule.name + subject not in self._given:
                self._given.add(rule.name + subject)
                warnings.append(
                    {"name": rule.name, "message": message, "cannot_tell": rule.cannot_tell}
                )
        return warnings

    def _see_entropy(self, entropy: float | None) -> str:
        if entropy is None:
            return ""
        if len(self._first_entropy) < WINDOW:
            self._first_entropy.append(entropy)
            return ""
        self._entropy.append(entropy)
        first, now = _mean(self._first_entropy), _mean(self._entropy)
        if len(self._entropy) < WINDOW or now >= ENTROPY_SHARE * first:
            return ""
        return (
            f"mean token entropy of the last {WINDOW} updates is {now:.3g} nats, "
            f"{now / first:.2f} of the {first:.3g} of the first {WINDOW}"
        )

    def _see_groups(self, row: Mapping[str, Any]) -> str:
        keys = ("groups/mixed", "groups/all_right", "groups/all_wrong")
        values = [row.get(key) for key in keys]
        if None in values:
            return ""
        self._groups.append(tuple(values))  # type: ignore[arg-type]
        mixed, right, wrong = (_mean(column) for column in zip(*self._groups, strict=True))
        if len(self._groups) < WINDOW or mixed >= MIXED_SHARE:
            return ""
        return (
            f"{mixed:.2f} of the groups of the last {WINDOW} updates are mixed, "
            f"{right:.2f} are all right and {wrong:.2f} all wrong"
        )

    def _see_bound(self, key: str, value: float | None) -> str:
        if value is None:
            return ""
        is_at = math.isclose(value, self._bounds[key], rel_tol=1e-9)
        self._at_bound[key] = self._at_bound[key] + 1 if is_at else 0
        if self._at_bound[key] < PATIENCE:
            return ""
        name = key.rpartition("/")[2]
        return f"{name} has been at its bound {self._bounds[key]:g} for {PATIENCE} updates"

    def _see_rank(self, row: Mapping[str, Any]) -> str:
        keys = [f"rank/head_{key}" for key in ("top1_share", "energy_share", "change_norm")]
        if None in [row.get(key) for key in keys]:
            return ""
        self._ranks.append(row)
        if len(self._ranks) < NUM_MEASURED or not all(map(_is_concentrated, self._ranks)):
            return ""
        share, energy, norm = ([row[key] for row in self._ranks] for key in keys)
        if share[-1] < share[0] or norm[-1] <= norm[0]:
            return ""
        return (
            f"r_1 of the output head's change is {share[-1]:.2f} (noise: "
            f"{row['rank/head_top1_share_noise']:.2f}) and not falling, and the head holds "
            f"{energy[-1]:.2f} of the change with {row['rank/head_parameter_share']:.2f} of the "
            "parameters"
        )


def _is_concentrated(row: Mapping[str, Any]) -> bool:
    share = row["rank/head_top1_share"]
    return bool(
        share >= max(TOP1_SHARE, TOP1_OVER_NOISE * row["rank/head_top1_share_noise"])
        and row["rank/head_energy_share"] >= HEAD_OVER_SHARE * row["rank/head_parameter_share"]
    )


def _mean(values: Any) -> float:
    values = list(values)
    return math.fsum(values) / len(values)

"""Whether a study repeated with other seeds comes out as its first time said it would."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradmass.metrics.seeds import Interval, replicate_interval
from gradmass.study import PlannedRun, Result, Study
from gradmass.study.plan import settings_of
from gradmass.study.verdicts import compare

MEASURES = (
    "pass@1 at the end",
    "pass@100 at the end",
    "area under pass@1",
    "pass@100 at equal pass@1",
    "entropy at the end",
    "r_1 over noise at the end",
    "r_1 over noise at equal pass@1",
)
"""Differences from the first arm that are looked at again."""


@dataclass(frozen=True)
class Repeated:
    """One difference, the first time and again.

    Args:
        what: Setting, arms and measure.
        interval: Where the new mean was expected: 95% prediction interval of as many seeds.
        again: The new mean.
    """

    what: str
    interval: Interval
    again: float

    @property
    def is_hit(self) -> bool:
        """Whether the new mean is where it was expected."""
        return self.interval.low <= self.again <= self.interval.high


def repeated(
    study: Study, results: Mapping[PlannedRun, Result], others: Mapping[PlannedRun, Result]
) -> list[Repeated]:
    """Every difference from the first arm that both have with two seeds or more.

    Args:
        study: The study.
        results: What was committed.
        others: The same arms with other seeds.
    """
    first, found = study.arms[0].name, []
    for setting, axes in settings_of(study):
        for arm in study.arms[1:]:
            for measure in MEASURES:
                pair = [
                    compare(each, setting, measure, arm.name, first, axes)
                    for each in (results, others)
                ]
                if all(item is not None and len(item.seeds) > 1 for item in pair):
                    once, again = (item.difference_S for item in pair if item is not None)
                    found.append(
                        Repeated(
                            f"{measure}, {arm.name} - {first}, {setting.name}",
                            replicate_interval(once),
                            float(np.mean(again)),
                        )
                    )
    return found


def replication_lines(found: Sequence[Repeated]) -> Iterator[str]:
    """How many were where they were expected, and those that were not."""
    misses = [item for item in found if not item.is_hit]
    yield (
        f"{len(found) - len(misses)} of {len(found)} differences are within the 95% prediction "
        "interval for a replicate (t interval times the root of 2)."
    )
    if misses:
        yield ""
        yield "| outside | expected | again |"
        yield "|---|---|---|"
    for item in misses:
        low, high = item.interval.low, item.interval.high
        yield f"| {item.what} | [{low:+.3f}, {high:+.3f}] | {item.again:+.3f} |"

"""Which rollouts are right: from a column of verdicts, or from rewards that say it."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gradmass.logs.arrays import numbers
from gradmass.logs.files import Batch
from gradmass.types import UsageError

WORDS = {"right": 1, "wrong": 0, "unparsed": 0, "timeout": 0, "error": -1}
"""This package's verdicts; an infrastructure error says nothing of the answer."""


@dataclass(frozen=True)
class Verdicts:
    """Which rollouts are right.

    Args:
        success_B: 1 right, 0 wrong, -1 not known.
        source: How it was told, in words.
    """

    success_B: np.ndarray
    source: str

    @property
    def is_known_B(self) -> np.ndarray:
        """Whether the rollout has a verdict."""
        known_B: np.ndarray = self.success_B >= 0
        return known_B


def from_column(batch: Batch, name: str) -> np.ndarray:
    """Verdicts of a column: true and false, 1 and 0, or words; null is not known.

    Raises:
        UsageError: Another value.
    """
    column = batch.columns[name]
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        words = column.to_pylist()
        unknown = next((word for word in words if word not in WORDS and word is not None), None)
        if unknown is not None:
            raise UsageError(
                f"{batch.file}, row {batch.first_row + words.index(unknown)}: expected a verdict "
                f"({', '.join(WORDS)}, true or false) in {name!r}, found {unknown[:60]!r}"
            )
        return np.array([-1 if word is None else WORDS[word] for word in words], dtype=np.int8)
    values_B, _ = numbers(batch, name)
    is_bad_B = ~np.isnan(values_B) & (values_B != 0) & (values_B != 1)
    if is_bad_B.any():
        at = int(np.argmax(is_bad_B))
        raise UsageError(
            f"{batch.file}, row {batch.first_row + at}: expected a verdict (1 or 0, true or "
            f"false) in {name!r}, found {values_B[at]:g}; for partial credit name the column with "
            "--reward and give --threshold"
        )
    return np.where(np.isnan(values_B), -1, values_B).astype(np.int8)


def from_rewards(
    rewards: Mapping[str, np.ndarray], total_B: np.ndarray, threshold: float | None
) -> Verdicts | None:
    """Verdicts by a threshold of the total reward, or of rewards that are 0 and 1, or -1 and 1.

    Args:
        rewards: By their function.
        total_B: Their sum; NaN where unscored.
        threshold: Total rewards of at least this are right.

    Returns:
        None where the rewards do not say: partial credit, or several functions that could.
    """
    if threshold is not None:
        return Verdicts(
            np.where(np.isnan(total_B), -1, total_B >= threshold).astype(np.int8),
            f"reward at least {threshold:g}",
        )
    for candidates in ({"reward": total_B}, dict(rewards)):
        binary = {name: values_B for name, values_B in candidates.items() if _is_binary(values_B)}
        if len(binary) == 1:
            ((name, values_B),) = binary.items()
            success_B = np.where(np.isnan(values_B), -1, values_B > 0).astype(np.int8)
            return Verdicts(success_B, f"{name} above 0")
    return None


def _is_binary(values_B: np.ndarray) -> bool:
    distinct = set(np.unique(values_B[~np.isnan(values_B)]).tolist())
    return bool(distinct) and (distinct <= {0.0, 1.0} or distinct <= {-1.0, 1.0})

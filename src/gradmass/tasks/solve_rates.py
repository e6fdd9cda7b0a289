"""How often each problem was solved: from a file of solve rates or of judged answers."""

from functools import lru_cache

from gradmass.rewards import Outcome
from gradmass.tasks.rows import Row, read_rows
from gradmass.types import UsageError


@lru_cache(maxsize=4)
def read_solve_rates(path: str) -> dict[str, float]:
    """Solve rate in [0, 1] of each problem by its id.

    Args:
        path: File of rows, as ``read_rows`` reads them, each with ``problem_id`` and one of
            ``solve_rate`` (in [0, 1]), ``correct`` (true, false, 1 or 0) and ``verdict`` (the
            outcome's name, as in a run's ``rollouts.jsonl.gz``; those that are ``error`` do not
            count). Rows of one problem are averaged.

    Raises:
        UsageError: The file cannot be read or holds no rate, or a row has other values.
    """
    values: dict[str, list[float]] = {}
    for row in read_rows(path, columns=("problem_id", "solve_rate", "correct", "verdict")):
        if row.defect is not None:
            raise row.error(row.defect)
        rate = _rate(row)
        if rate is not None:
            values.setdefault(str(row["problem_id"]), []).append(rate)
    if not values:
        raise UsageError(f"{path} holds no solve rate")
    return {name: sum(rates) / len(rates) for name, rates in values.items()}


def _rate(row: Row) -> float | None:
    """What a row says of its problem; None where it says nothing."""
    name = row.first_of("solve_rate", "correct", "verdict")
    value = row[name]
    if name == "verdict":
        if value not in set(Outcome):
            raise row.error(f"verdict must be one of {', '.join(Outcome)}, got {value!r}")
        return None if value == Outcome.ERROR else float(value == Outcome.RIGHT)
    allowed = (0, 1) if name == "correct" else None
    is_number = isinstance(value, int | float) and 0 <= value <= 1
    if not is_number or (allowed is not None and value not in allowed):
        what = "true, false, 1 or 0" if allowed else "a number in [0, 1]"
        raise row.error(f"{name} must be {what}, got {value!r}")
    return float(value)

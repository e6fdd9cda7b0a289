"""What is kept of a finished run: a few kilobytes, from which every figure and claim is made."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from gradmass.record import Run
from gradmass.record.files import write_json
from gradmass.study.design import Study
from gradmass.study.plan import PlannedRun, main_runs, tuning_runs
from gradmass.tables import differences, to_tables
from gradmass.types import UsageError

SCHEMA = 1
MEANS = {
    "entropy": "entropy/mean_nats",
    "m_S": "mass/positive",
    "m_F": "mass/negative",
    "solve_rate": "rollout/solve_rate",
    "sign_ratio": "mass/sign_ratio_fig4",
}
"""Means over the batches since the evaluation before."""
VALUES = {
    "alpha": "weight/alpha",
    "delta": "weight/delta",
    "r_1": "rank/head_top1_share",
    "r_1_noise": "rank/head_top1_share_noise",
    "norm": "rank/head_change_norm",
    "head_share": "rank/head_energy_share",
    "pass@1": "test/pass@1",
    "pass@10": "test/pass@10",
    "pass@100": "test/pass@100",
    "answer_entropy": "test/answer_entropy_nats",
    "rho_right": "states/rho_perp_right",
    "rho_wrong": "states/rho_perp_wrong",
}
"""Values at the evaluation."""


@dataclass(frozen=True)
class Result:
    """A finished run.

    Args:
        run: Which of the study.
        label: Its weight.
        status: ``finished``, or ``diverged``: the loss was no number any more, which ends a run.
        seconds: Wall time of its steps and evaluations.
        environment: Versions, machine, commit.
        curves: A list for each of ``MEANS``, ``VALUES``, ``step`` and ``rollouts``, an entry an
            evaluation; None where there is no value.
        solve_probability_EN: For each evaluation that of each test problem, three digits.
        trace: ``alpha_delta`` and ``mass`` of every batch, where another arm replays this one.
    """

    run: PlannedRun
    label: str
    status: Literal["finished", "diverged"]
    seconds: float
    environment: dict[str, Any]
    curves: dict[str, list[float | None]]
    solve_probability_EN: list[list[float]]
    trace: dict[str, list[Any]]

    @cached_property
    def rollouts(self) -> np.ndarray:
        """Rollouts up to each evaluation."""
        return self.curve("rollouts")

    def curve(self, name: str) -> np.ndarray:
        """A curve over evaluations, NaN where there is no value."""
        return np.array([math.nan if v is None else v for v in self.curves[name]], dtype=float)

    def last(self, name: str) -> float:
        """The last value of a curve."""
        return float(self.curve(name)[-1])


def distilled(
    run: PlannedRun,
    folder: Path,
    status: Literal["finished", "diverged"],
    *,
    weight: str,
    has_trace: bool,
) -> Result:
    """The result of a run from its run directory.

    Args:
        run: Which run.
        folder: Its run directory.
        status: How it ended.
        weight: Its weight as the study names it.
        has_trace: Whether another arm replays it.
    """
    record = Run(folder)
    rows = record.metrics
    curves: dict[str, list[float | None]] = {}
    since: list[Mapping[str, Any]] = []
    for row in rows:
        since.append(row)
        if "test/pass@1" not in row:
            continue
        values: dict[str, float | None] = {"step": row["step"], "rollouts": row["rollouts"]}
        values |= {name: _mean(since, key) for name, key in MEANS.items()}
        values |= {name: row.get(key) for name, key in VALUES.items()}
        for name, value in values.items():
            curves.setdefault(name, []).append(_rounded(value, 6))
        since = []
    first = next((row for row in rows if row.get("entropy/mean_nats") is not None), {})
    if curves.get("entropy"):
        curves["entropy"][0] = _rounded(first.get("entropy/mean_nats"), 6)
    batches = [row for row in rows if row["step"] > 0] if has_trace else []
    trace: dict[str, list[Any]] = {
        "alpha_delta": [
            [_rounded(row["weight/alpha"], 6), _rounded(row["weight/delta"], 6)]
            for row in batches
            if row.get("weight/alpha") is not None
        ],
        "mass": [_rounded(row["mass/positive"] + row["mass/negative"], 6) for row in batches],
    }
    env = record.env
    return Result(
        run=run,
        label=weight,
        status=status,
        seconds=round(
            sum(row.get("time/step_s", 0) + row.get("time/eval_s", 0) for row in rows), 1
        ),
        environment={key: env[key] for key in ("packages", "processor", "commit", "is_dirty")},
        curves=curves,
        solve_probability_EN=[
            [float(f"{p:.3g}") for p in row["solve_probability"]]
            for row in record.evaluations
            if row["split"] == "test"
        ],
        trace=trace if has_trace else {},
    )


def write_result(result: Result, file: Path) -> None:
    """Replace a result's file, whole."""
    content = {"schema": SCHEMA, **asdict(result)}
    content["run"]["axes"] = [list(pair) for pair in result.run.axes]
    write_json(file, content, indent=None)


def read_result(file: Path) -> Result:
    """Read a result.

    Raises:
        UsageError: It is damaged, or of another schema.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        schema = content.pop("schema")
        axes = tuple((field, value) for field, value in content["run"].pop("axes"))
        result = Result(**{**content, "run": PlannedRun(**content["run"], axes=axes)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"result {file} is damaged: {type(error).__name__}: {error}") from error
    if schema != SCHEMA:
        raise UsageError(f"result {file} has schema {schema}, this version reads {SCHEMA}")
    return result


def read_results(folder: Path, runs: Sequence[PlannedRun]) -> dict[PlannedRun, Result]:
    """The results in a folder of those runs that are finished.

    Raises:
        UsageError: A result is of another run than its name says, at another learning rate for one.
    """
    found = {}
    for run in runs:
        file = folder / f"{run.name}.json"
        if file.exists():
            found[run] = read_result(file)
            if found[run].run != run:
                raise UsageError(
                    f"{file} was made by {found[run].run}, the study now asks for {run}; "
                    "name another --out"
                )
    return found


def read_all(folder: Path, study: Study) -> dict[PlannedRun, Result]:
    """All results of a study in a folder, whatever the learning rates of its runs.

    Raises:
        UsageError: A result is damaged.
    """
    known = {(run.kind, run.setting, run.arm, run.axes) for run in main_runs(study, {})}
    known |= {(run.kind, run.setting, run.arm, run.axes) for run in tuning_runs(study)}
    found = {}
    for file in sorted(folder.glob("*.s*.json")):
        result = read_result(file)
        run = result.run
        if (run.kind, run.setting, run.arm, run.axes) in known:
            found[run] = result
    return found


def check_same(folder: Path, study: Study) -> bool:
    """See to it that what is in a folder and a study can stand beside each other.

    Settings, arms and seeds may be added or left out; one that was there before is the same.

    Returns:
        Whether the folder says what it was begun by.

    Raises:
        UsageError: The recipe, a setting or an arm is another than when the folder was begun.
    """
    return _begun_by(folder, study) is not None


def keep_study(folder: Path, study: Study) -> None:
    """Note in a folder what its results are of; what was noted before stays.

    Raises:
        UsageError: As in ``check_same``.
    """
    before, now = _begun_by(folder, study), _definitions(study)
    if before is not None:
        for kind in ("setting", "arm", "trace_seed"):
            now[kind] = before.get(kind, {}) | now[kind]
    write_json(folder / "study.json", now)


def _definitions(study: Study) -> dict[str, Any]:
    """What decides the numbers of a study's runs."""
    return {
        "recipe": to_tables(study.recipe),
        "setting": {setting.name: list(setting.set) for setting in study.settings},
        "arm": {arm.name: [arm.weight, *arm.set, arm.trace_of] for arm in study.arms},
        "trace_seed": {arm.name: arm.trace_seed for arm in study.arms if arm.trace_of},
        "tuning": [study.tuning.share_of_steps, *study.tuning.set],
    }


def _begun_by(folder: Path, study: Study) -> dict[str, Any] | None:
    """The definitions that a folder was begun by, which fit those of the study; None without."""
    file = folder / "study.json"
    if not file.exists():
        return None
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        changes = [
            f"{name} was {there} and is {here}"
            for name, here, there in differences(_definitions(study), before)
            if "null" not in (here, there)  # what is new, or left out
        ]
        # Which seed was replayed was not noted by earlier versions.
        tables = (before["setting"], before["arm"], before.get("trace_seed", {}))
        is_whole = all(isinstance(table, dict) for table in tables)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{file} is damaged: {type(error).__name__}: {error}") from error
    if not is_whole:
        raise UsageError(f"{file} is damaged: setting, arm or trace_seed is no table")
    if changes:
        raise UsageError(f"{folder} was begun by another study: {changes[0]}; name another folder")
    return dict(before)


def _mean(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None


def _rounded(value: float | None, digits: int) -> float | None:
    return value if value is None or isinstance(value, int) else float(f"{value:.{digits}g}")

"""The rollouts of a log as columns of numbers, grouped, with their verdicts."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from gradmass.logs.arrays import coded, hashes, lengths, numbers, sums_of_lists, texts
from gradmass.logs.files import Batch, Format, Source, find
from gradmass.logs.roles import Roles
from gradmass.logs.verdicts import Verdicts, from_column, from_rewards
from gradmass.types import UsageError

LARGEST = 1e100
"""Rewards beyond it count as infinite: their sums and squares would overflow."""


@dataclass(frozen=True)
class Rollouts:
    """A log in memory: numbers of each rollout, in the order of the files.

    Args:
        source: Where it comes from.
        roles: Which column is what.
        step_B: Optimiser step; 0 throughout where the log has none.
        group_B: Number of its group, 0 to P - 1 in the order of first rows.
        problem_B: Number of its problem.
        problems: Beginning of each problem's prompt, or its id.
        rewards: Values of each reward function, NaN where there is none.
        num_null: Rollouts of each reward function without a value.
        reward_B: Their sum with the factors; NaN where unscored.
        verdicts: Which rollouts are right, and how that was told; None where it cannot be.
        weight_B: What the trainer weighed the rollout by.
        completion_B: A number for each distinct answer.
        chars_B: Characters of the answer.
        length_B: Tokens of the answer.
        logprob_B: Sum of the log-probabilities of its tokens.
        entropy_B: Mean token entropy in nats.
        notes: What was decided in reading, one sentence each.
    """

    source: Source
    roles: Roles
    step_B: np.ndarray
    group_B: np.ndarray
    problem_B: np.ndarray
    problems: list[str]
    rewards: dict[str, np.ndarray]
    num_null: dict[str, int]
    reward_B: np.ndarray
    verdicts: Verdicts | None
    weight_B: np.ndarray | None
    completion_B: np.ndarray | None
    chars_B: np.ndarray | None
    length_B: np.ndarray | None
    logprob_B: np.ndarray | None
    entropy_B: np.ndarray | None
    notes: tuple[str, ...]

    def __len__(self) -> int:
        """Number of rollouts."""
        return len(self.step_B)

    @property
    def is_scored_B(self) -> np.ndarray:
        """Whether a rollout has a verdict, or without verdicts a reward."""
        if self.verdicts is not None:
            return self.verdicts.is_known_B
        has_B: np.ndarray = np.isfinite(self.reward_B)
        return has_B

    @property
    def size_B(self) -> tuple[np.ndarray, str] | None:
        """Lengths of the answers, in tokens if logged, else in characters; and the unit."""
        if self.length_B is not None:
            return self.length_B, "tokens"
        return None if self.chars_B is None else (self.chars_B.astype(np.float64), "characters")


def read_log(
    paths: Sequence[Path],
    asked: Format | Literal["auto"] = "auto",
    roles: Roles | None = None,
    *,
    threshold: float | None = None,
    group_size: int | None = None,
    on_batch: Callable[[Batch], None] = lambda _: None,
) -> Rollouts:
    """Read a log of rollouts, only the columns that are needed.

    A log may be read while it is written: a last line of JSON Lines that is cut is left out, which
    the notes say.

    Args:
        paths: As in ``files.find``.
        asked: Its format, or ``auto``.
        roles: Columns that are named; the others go by their usual names.
        threshold: Rewards of at least this count as right; None takes verdicts, or rewards that
            are 0 and 1, or -1 and 1.
        group_size: Rollouts of a group, where only consecutive rows tell groups apart (TRL).
        on_batch: Called with each batch, to show progress.

    Raises:
        UsageError: As in ``files.find`` and ``Roles.found_in``; a damaged file; values of a wrong
            kind; steps that are no whole numbers.
    """
    source = find(paths, asked)
    roles = (roles or Roles()).found_in(source)
    columns = _Columns(roles)
    cut: list[Path] = []
    for batch in source.batches(roles.columns(), cut.append):
        columns.take(batch)
        on_batch(batch)
    found = columns.finish(source, threshold, group_size)
    said = tuple(f"{file}: the last line is cut: left out" for file in cut)
    return replace(found, notes=(*found.notes, *said))


@dataclass
class _Columns:
    """What the batches add up to."""

    roles: Roles
    parts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    words: list[str | None] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    problem_codes: dict[int, int] = field(default_factory=dict)
    group_codes: dict[int, int] = field(default_factory=dict)
    num_null: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)

    def add(self, name: str, values: np.ndarray) -> None:
        self.parts.setdefault(name, []).append(values)

    def take(self, batch: Batch) -> None:
        roles = self.roles
        if not self.files or self.files[-1] != batch.file:
            self.files.append(batch.file)
        self.add("file", np.full(batch.num_rows, len(self.files), dtype=np.int32))
        if roles.step is not None:
            self.add("step", _whole(batch, roles.step))
        if roles.problem is not None:
            code_B, fresh = coded(batch, roles.problem, self.problem_codes, roles.gold)
            self.add("problem", code_B)
            self.problems += fresh
        if roles.group is not None:
            self.add("group", self._groups(batch, roles.group))
        if roles.completion is not None:
            answers = texts(batch, roles.completion)
            self.add("completion", hashes(answers))
            self.add("chars", lengths(answers))
        for name in roles.rewards:
            values_B, is_null_B = numbers(batch, name)
            self.num_null[name] += int(is_null_B.sum())
            is_huge_B = np.abs(values_B) > LARGEST
            self.add(f"reward {name}", np.where(is_huge_B, np.copysign(np.inf, values_B), values_B))
        if roles.success is not None:
            self.add("success", from_column(batch, roles.success))
        for role in ("advantage", "entropy"):
            name = getattr(roles, role)
            if name is not None:
                self.add(role, numbers(batch, name)[0])
        if roles.length is not None:
            self.add("length", numbers(batch, roles.length)[0])
        if roles.logprobs is not None:
            sum_B, length_B = sums_of_lists(batch, roles.logprobs)
            self.add("logprob", sum_B)
            if length_B is not None and roles.length is None:
                self.add("length", length_B)

    def _groups(self, batch: Batch, name: str) -> np.ndarray:
        """Numbers of groups; verl's ``uid`` is that of an output, ``sample_rollout_output``."""
        if name == "uid" and {"input", "output"} <= {self.roles.problem, self.roles.completion}:
            parts = [text.rsplit("_", 2) for text in texts(batch, name)]
            if all(len(part) == 3 for part in parts):
                self.add("rollout", hashes(["_".join(part[:2]) for part in parts]))
                codes = self.group_codes
                return np.array([codes.setdefault(hash(part[0]), len(codes)) for part in parts])
        return coded(batch, name, self.group_codes)[0]

    def column(self, name: str) -> np.ndarray | None:
        parts = self.parts.pop(name, None)
        return None if parts is None else np.concatenate(parts)

    def finish(self, source: Source, threshold: float | None, group_size: int | None) -> Rollouts:
        notes: list[str] = []
        file_B = self.column("file")
        assert file_B is not None  # a source has rows
        step_B = self.column("step")
        if step_B is None:
            step_B = np.zeros(len(file_B), dtype=np.int64)
        problem_B, group_B = self.column("problem"), self.column("group")
        if problem_B is None:
            problem_B = group_B
        assert problem_B is not None  # roles have one of them
        if group_size is not None and (group_B is not None or source.format != "trl"):
            shared = self.roles.group or self.roles.problem
            raise UsageError(
                f"a group size of {group_size} is given, but groups are told by {shared!r} here; "
                "it cuts consecutive rows of TRL's completions"
            )
        if group_B is not None:
            group_B = _dense(step_B, group_B)
            if num := _num_mixed_up(group_B, problem_B):
                notes.append(f"{num:,} of {group_B.max() + 1:,} groups hold several problems")
        elif source.format == "trl":
            group_B = _consecutive(file_B, step_B, problem_B, group_size)
            notes.append("groups are consecutive rows with the same prompt: TRL logs no group id")
        else:
            group_B = _dense(step_B, problem_B)
            notes.append("groups are the rows of a step with the same problem")
        rewards = {}
        for name in self.roles.rewards:
            values_B = self.column(f"reward {name}")
            assert values_B is not None  # every batch has all columns
            rewards[name] = values_B
        reward_B = _total(rewards, self.roles.rewards, len(file_B))
        success_B = self.column("success")
        verdicts: Verdicts | None
        if success_B is not None and threshold is None:
            verdicts = Verdicts(success_B, f"column {self.roles.success}")
        else:
            verdicts = from_rewards(rewards, reward_B, threshold)
        if verdicts is not None and not rewards:
            reward_B = np.where(verdicts.is_known_B, verdicts.success_B == 1, np.nan)
        found = Rollouts(
            source=source,
            roles=self.roles,
            step_B=step_B,
            group_B=group_B,
            problem_B=problem_B,
            problems=self.problems,
            rewards=rewards,
            num_null=dict(self.num_null),
            reward_B=reward_B,
            verdicts=verdicts,
            weight_B=self.column("advantage"),
            completion_B=self.column("completion"),
            chars_B=self.column("chars"),
            length_B=self.column("length"),
            logprob_B=self.column("logprob"),
            entropy_B=self.column("entropy"),
            notes=tuple(notes),
        )
        rollout_B = self.column("rollout")
        return found if rollout_B is None else _last_outputs(found, rollout_B)


def _whole(batch: Batch, name: str) -> np.ndarray:
    values_B, _ = numbers(batch, name)
    with np.errstate(invalid="ignore"):
        is_whole_B = np.isfinite(values_B) & (values_B == np.round(values_B))
    if not is_whole_B.all():
        at = int(np.argmin(is_whole_B))
        raise UsageError(
            f"{batch.file}, row {batch.first_row + at}: expected a whole number of steps in "
            f"{name!r}, found {values_B[at]:g}"
        )
    return values_B.astype(np.int64)


def _dense(step_B: np.ndarray, key_B: np.ndarray) -> np.ndarray:
    """Numbers of the pairs of step and key, in the order of first rows."""
    _, pair_B = np.unique(step_B, return_inverse=True)
    return _by_first_row(pair_B.astype(np.int64) * (int(key_B.max()) + 1) + key_B)


def _num_mixed_up(group_B: np.ndarray, problem_B: np.ndarray) -> int:
    """Groups with more than one problem: their id is perhaps none."""
    _, first_U = np.unique(_dense(group_B, problem_B), return_index=True)
    return int((np.bincount(group_B[first_U]) > 1).sum())


def _by_first_row(key_B: np.ndarray) -> np.ndarray:
    _, first_U, place_B = np.unique(key_B, return_index=True, return_inverse=True)
    rank_U = np.empty(len(first_U), dtype=np.int64)
    rank_U[np.argsort(first_U)] = np.arange(len(first_U))
    return rank_U[place_B.reshape(-1)]


def _consecutive(
    file_B: np.ndarray, step_B: np.ndarray, problem_B: np.ndarray, size: int | None
) -> np.ndarray:
    """Numbers of the stretches of rows with one prompt, cut into groups of a size if given."""
    is_new_B = np.ones(len(file_B), dtype=bool)
    for values_B in (file_B, step_B, problem_B):
        is_new_B[1:] &= values_B[1:] == values_B[:-1]
    is_new_B[1:] = ~is_new_B[1:]
    if size is not None:
        start_B = np.maximum.accumulate(np.where(is_new_B, np.arange(len(is_new_B)), 0))
        is_new_B |= (np.arange(len(is_new_B)) - start_B) % size == 0
    group_B: np.ndarray = np.cumsum(is_new_B) - 1
    return group_B


def _total(rewards: dict[str, Any], factors: dict[str, float], num_rows: int) -> np.ndarray:
    """Sum of the rewards a rollout has, as TRL adds them; NaN where it has none or one is NaN."""
    total_B, has_B = np.zeros(num_rows), np.zeros(num_rows, dtype=bool)
    for name, values_B in rewards.items():
        total_B += factors[name] * np.nan_to_num(values_B, nan=0.0, posinf=np.inf, neginf=-np.inf)
        has_B |= ~np.isnan(values_B)
    with np.errstate(invalid="ignore"):
        return np.where(has_B & np.isfinite(total_B), total_B, np.nan)


def _last_outputs(log: Rollouts, rollout_B: np.ndarray) -> Rollouts:
    """Of a rollout of several outputs, which verl dumps as rows of their own, the last one."""
    reversed_B = rollout_B[::-1]
    _, first_U = np.unique(reversed_B, return_index=True)
    keep_U = np.sort(len(rollout_B) - 1 - first_U)
    if len(keep_U) == len(rollout_B):
        return log
    dropped = len(rollout_B) - len(keep_U)
    note = f"{dropped} earlier outputs of rollouts with several are left out"

    def kept(values: Any) -> Any:
        return values[keep_U] if isinstance(values, np.ndarray) else values

    fields = {name: kept(getattr(log, name)) for name in log.__dataclass_fields__}
    fields["rewards"] = {name: kept(values_B) for name, values_B in log.rewards.items()}
    if log.verdicts is not None:
        fields["verdicts"] = Verdicts(kept(log.verdicts.success_B), log.verdicts.source)
    fields["notes"] = (*log.notes, note)
    return Rollouts(**fields)

"""Judged samples, counted by problem: of each, how many were right, wrong, or unscorable?"""

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradmass.types import UsageError

VERDICTS = {True: 1, False: 0, None: -1}
NOT_GIVEN: Any = ...
"""In place of an answer that a file does not tell."""

Votes = Counter[tuple[str | None, bool]]
"""How many samples of a problem gave each answer (None: no answer), and whether it is right."""


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "problem"), counted(2, "problem")
    ('1 problem', '2 problems')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(frozen=True)
class Judged:
    """Judged samples of one model on one set of problems, in order of the problems' ids.

    Args:
        source: The file.
        part: Which part of the file (a split, a step), empty where it has one part.
        score: Which of the file's verdicts was counted.
        problem_ids: Ids as text.
        num_correct_N: Right samples of each problem.
        num_samples_N: Scorable samples of each problem.
        num_unscorable_N: Samples of each problem of which nothing is known.
        line_N: The line on which each problem comes first; 0 where the file has no lines.
        votes: Answers of each problem's scorable samples, None where the file does not tell them.
        num_graded: How many samples a threshold judged, over all problems of the file.
        note: What a reader of the result has to know; may be empty.
    """

    source: Path
    part: str
    score: str
    problem_ids: tuple[str, ...]
    num_correct_N: np.ndarray
    num_samples_N: np.ndarray
    num_unscorable_N: np.ndarray
    line_N: np.ndarray
    votes: tuple[Votes, ...] | None = None
    num_graded: int = 0
    note: str = ""

    @property
    def name(self) -> str:
        """The file, and the part of it."""
        return f"{self.source} ({self.part})" if self.part else str(self.source)

    def only(self, problem_ids: Iterable[str]) -> "Judged":
        """The same of some of the problems, in the order of this object."""
        wanted = set(problem_ids)
        keep = [i for i, name in enumerate(self.problem_ids) if name in wanted]
        return replace(
            self,
            problem_ids=tuple(self.problem_ids[i] for i in keep),
            num_correct_N=self.num_correct_N[keep],
            num_samples_N=self.num_samples_N[keep],
            num_unscorable_N=self.num_unscorable_N[keep],
            line_N=self.line_N[keep],
            votes=None if self.votes is None else tuple(self.votes[i] for i in keep),
        )

    def scored(self) -> "Judged":
        """The problems that have a scorable sample; of the others nothing is known.

        Raises:
            UsageError: There is none.
        """
        if not self.num_samples_N.any():
            samples = counted(int(self.num_unscorable_N.sum()), "sample")
            raise UsageError(f"{self.name}: none of its samples is scorable (it has {samples})")
        pairs = zip(self.problem_ids, self.num_samples_N.tolist(), strict=True)
        return self.only(name for name, num_samples in pairs if num_samples)

    def line_of(self, problem_id: str) -> int:
        """The line on which a problem comes first; 0 where the file has no lines."""
        return int(self.line_N[self.problem_ids.index(problem_id)])

    def check_ks(self, ks: Sequence[int]) -> None:
        """Refuse a k for which a problem has too few scorable samples.

        Raises:
            UsageError: Names the file and the problem with the fewest samples.
        """
        i = int(self.num_samples_N.argmin())
        n, lost, k = int(self.num_samples_N[i]), int(self.num_unscorable_N[i]), max(ks)
        if k > n:
            few, beside = int((self.num_samples_N < k).sum()), f" beside {lost} unscorable ones"
            raise UsageError(
                f"{self.name}: pass@{k} needs {k} scorable samples of every problem, but {few} of "
                f"{counted(len(self.problem_ids), 'problem')} {'has' if few == 1 else 'have'} "
                f"fewer, {self.problem_ids[i]!r} only {n}"
                f"{beside if lost else ''}; lower k to {n}"
            )


@dataclass
class Tally:
    """Samples of one part of a file on their way to being counted.

    Args:
        source: The file.
        threshold: Scores of at least this count as right; None takes only clear verdicts.
        part: As in ``Judged``.
    """

    source: Path
    threshold: float | None = None
    part: str = ""
    _index: dict[str, int] = field(default_factory=dict)
    _problem: "array[int]" = field(default_factory=lambda: array("q"))
    _verdict: "array[int]" = field(default_factory=lambda: array("b"))
    _sample: "array[int]" = field(default_factory=lambda: array("q"))
    _line: "array[int]" = field(default_factory=lambda: array("q"))
    _votes: dict[int, Votes] = field(default_factory=dict)
    _all_answer: bool = True
    _num_graded: int = 0

    def add(
        self,
        problem_id: Any,
        score: Any,
        where: str,
        *,
        sample: Any = None,
        answer: Any = NOT_GIVEN,
        line: int = 0,
    ) -> None:
        """Count one sample.

        Args:
            problem_id: Text or whole number.
            score: True, false, None, or a number.
            where: File and place, for messages.
            sample: Its number within the problem, if it has one; no two may share it.
            answer: Text, a number, or None for no answer.
            line: Line of the file.

        Raises:
            UsageError: One of them is of another kind, or a score needs a threshold.
        """
        if isinstance(problem_id, bool) or not isinstance(problem_id, str | int):
            raise UsageError(f"{where}: problem_id must be text or a number, got {problem_id!r}")
        if sample is not None and (type(sample) is not int or sample < 0):
            raise UsageError(f"{where}: sample must be a whole number, got {sample!r}")
        index = self._index.setdefault(str(problem_id), len(self._index))
        verdict = self._judge(score, where)
        self._problem.append(index)
        self._verdict.append(verdict)
        self._sample.append(-1 if sample is None else sample)
        self._line.append(line)
        if answer is not None and not isinstance(answer, str | int | float):
            self._all_answer = False
        elif verdict >= 0 and self._all_answer:
            answer = None if answer is None else str(answer)
            self._votes.setdefault(index, Counter())[answer, bool(verdict)] += 1

    def add_batch(self, rows: Sequence[Mapping[str, Any]], lines: Sequence[int]) -> bool:
        """Count plain rows at once; False, and nothing counted, if one needs a closer look."""
        try:
            ids, scores = [row["problem_id"] for row in rows], [row["correct"] for row in rows]
        except KeyError:
            return False
        samples = [row.get("sample", -1) for row in rows]
        answers = [row.get("answer", NOT_GIVEN) for row in rows]
        kinds = [{*map(type, column)} for column in (ids, scores, samples, answers)]
        is_plain = kinds[0] == {str} and kinds[1] <= {bool, type(None)} and kinds[2] == {int}
        has_answers = kinds[3] <= {str, type(None)}
        if not is_plain or not (has_answers or kinds[3] == {type(NOT_GIVEN)}) or min(samples) < -1:
            return False
        index = self._index
        problems = [index.setdefault(id_, len(index)) for id_ in ids]
        self._problem.extend(problems)
        self._verdict.extend([VERDICTS[score] for score in scores])
        self._sample.extend(samples)
        self._line.extend(lines)
        self._all_answer = self._all_answer and has_answers
        if self._all_answer:
            for problem, answer, score in zip(problems, answers, scores, strict=True):
                if score is not None:
                    self._votes.setdefault(problem, Counter())[answer, score] += 1
        return True

    def judged(self, score: str, note: str = "") -> Judged:
        """All that was counted.

        Raises:
            UsageError: Nothing was; or a problem has two samples of the same number.
        """
        if not self._index:
            raise UsageError(f"{self.source} has no rows")
        problem_B = np.frombuffer(self._problem, dtype=np.int64)
        verdict_B = np.frombuffer(self._verdict, dtype=np.int8)
        self._refuse_doubles(problem_B)
        ids = list(self._index)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        num_right_N, num_wrong_N, num_unscorable_N = (
            np.bincount(problem_B[verdict_B == verdict], minlength=len(ids))[order]
            for verdict in (1, 0, -1)
        )
        _, first_N = np.unique(problem_B, return_index=True)
        has_votes = self._all_answer and self._votes
        return Judged(
            self.source,
            self.part,
            score,
            tuple(ids[i] for i in order),
            num_right_N,
            num_right_N + num_wrong_N,
            num_unscorable_N,
            np.frombuffer(self._line, dtype=np.int64)[first_N][order],
            tuple(self._votes.get(i, Counter()) for i in order) if has_votes else None,
            self._num_graded,
            note,
        )

    def _judge(self, score: Any, where: str) -> int:
        """1 right, 0 wrong, -1 unscorable."""
        if score is None or isinstance(score, bool):
            return VERDICTS[score]
        if not isinstance(score, int | float) or score != score:
            raise UsageError(
                f"{where}: a verdict is true, false, null (unscorable) or a score, got {score!r}"
            )
        if self.threshold is not None:
            self._num_graded += 1
            return int(score >= self.threshold)
        if score in (0, 1):
            return int(score)
        raise UsageError(
            f"{where}: {score!r} is neither right nor wrong; say what score counts as right, such "
            "as --threshold 0.5"
        )

    def _refuse_doubles(self, problem_B: np.ndarray) -> None:
        sample_B = np.frombuffer(self._sample, dtype=np.int64)
        order_B = np.lexsort((sample_B, problem_B))
        problem_B, sample_B = problem_B[order_B], sample_B[order_B]
        is_double_B = (np.diff(problem_B) == 0) & (np.diff(sample_B) == 0) & (sample_B[1:] >= 0)
        if is_double_B.any():
            i = int(is_double_B.argmax())
            first, second = sorted(self._line[int(order_B[j])] for j in (i, i + 1))
            raise UsageError(
                f"{self.source}, line {second}: sample {sample_B[i]} of problem "
                f"{list(self._index)[int(problem_B[i])]!r} was already on line {first}"
            )

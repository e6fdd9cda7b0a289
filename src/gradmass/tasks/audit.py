"""Can a task's verifier be trusted? Golds, junk, cut answers, order, threads, tests, overlap."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gradmass.rewards import Verdict
from gradmass.tasks.base import Problem, Task
from gradmass.tasks.dataset import DatasetTask, Tally, question_key
from gradmass.types import UsageError

JUNK = (
    "",
    " \n",
    "?",
    "\x00",
    "I do not know.",
    "\\boxed{}",
    "<answer></answer>",
    "```python\n```",
    "```python\nimport sys\nsys.exit(0)\n```",
    "```python\nimport os\nos._exit(0)\n```",
    "```python\nprint('all tests passed')\n```",
    "(" * 2_000,
)
"""Right answers to nothing: empty, no answer, a broken format, programs that leave at once."""
NUM_THREADS = 4
NUM_REPEATED = 50
"""Answers of each kind that are judged again in another order and from several threads."""
AT_ONCE = 64
SCAN_S = 3.0
"""Seconds for which problems beyond the audited ones are drawn, where they come from no file."""
NUM_EXAMPLES = 5

Answer = tuple[Problem, str]


@dataclass(frozen=True)
class Check:
    """One question the audit asked.

    Args:
        name: What should hold.
        num_checked: How often it was looked at; 0 where there was nothing to look at.
        failures: Where it did not hold, a line each.
    """

    name: str
    num_checked: int
    failures: list[str] = field(default_factory=list)

    @property
    def is_passed(self) -> bool:
        """Whether it held each time."""
        return not self.failures


@dataclass(frozen=True)
class SplitScan:
    """The problems of a split.

    Args:
        num_problems: How many there are, or were looked at.
        is_all: Whether that is all of them.
        left_out: How many rows made no problem, by the reason; empty for tasks without rows.
        first_left_out: The first row of each reason.
    """

    num_problems: int
    is_all: bool
    left_out: dict[str, int]
    first_left_out: dict[str, str]


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Args:
        checks: What was asked.
        splits: The problems, by split.
        num_golds: Gold answers judged.
        num_without_gold: Audited problems without one.
        num_unscorable: Golds whose verdict was an error of the machinery or of the gold itself.
        num_lookalike: Test problems that differ from a training problem in case, white space or
            the punctuation of sentences alone.
        num_shared: Golds that are right for the next problem too, of ``num_golds``.
        seconds_per_verdict: Wall time of all verdicts over their number.
        slowest_s: The longest verdict, where the task measures them.
    """

    checks: list[Check]
    splits: dict[str, SplitScan]
    num_golds: int
    num_without_gold: int
    num_unscorable: int
    num_lookalike: int
    num_shared: int
    seconds_per_verdict: float
    slowest_s: float | None

    @property
    def is_passed(self) -> bool:
        """Whether every check passed."""
        return all(check.is_passed for check in self.checks)


def audit(task: Task, num_problems: int, on_progress: Callable[[int, int], None]) -> Audit:
    """Ask of a task what has to hold before a policy is trained on its verdicts.

    Args:
        task: The task.
        num_problems: Problems of each split whose golds, junk and cut answers are judged.
        on_progress: Called with the number of verdicts so far, and of all.

    Raises:
        UsageError: The data cannot be read, or there is no problem at all.
    """
    scans, problems, repeated, overlap, num_lookalike = scan(task, num_problems)
    if not problems:
        raise UsageError(f"task {task.name!r} has no problem to audit in any split")
    golds = [(problem, gold) for problem in problems for gold in task.golds(problem)]
    cut = [(problem, gold[: len(gold) // 2]) for problem, gold in golds]
    junk = [(problem, text) for problem in problems for text in JUNK]
    known = task.known_good()
    shifted = list(zip([p for p, _ in golds[1:]], [gold for _, gold in golds], strict=False))

    parts = [golds, cut, junk, shifted, [known] if known else []]
    num_sampled = len(golds[:NUM_REPEATED]) + len(junk[:: max(1, len(junk) // NUM_REPEATED)])
    bench = Bench(task, sum(map(len, parts)) + 2 * num_sampled, on_progress)
    gold_verdicts, cut_verdicts, junk_verdicts, shifted_verdicts, known_verdicts = map(
        bench.judge, parts
    )
    # By number: a problem's data need not be hashable.
    judged = list(zip([*golds, *junk], gold_verdicts + junk_verdicts, strict=True))
    step = max(1, len(junk) // NUM_REPEATED)
    sampled = judged[: min(NUM_REPEATED, len(golds))] + judged[len(golds) :: step]
    return Audit(
        checks=[
            Check(
                "a known answer is right", len(known_verdicts), _not_right(known, known_verdicts)
            ),
            Check("every problem can be judged", len(problems), _defects(task, problems)),
            Check("golds are right", len(golds), _wrong_golds(golds, gold_verdicts)),
            Check("golds cut in half are not", len(cut), _right(task, cut, cut_verdicts)),
            Check("junk is not right", len(junk), _right(task, junk, junk_verdicts)),
            Check("junk can be scored", len(junk), _unscorable(junk, junk_verdicts)),
            Check("order and threads change nothing", len(sampled), bench.unstable(sampled)),
            Check(
                "no problem is there twice", sum(s.num_problems for s in scans.values()), repeated
            ),
            Check("no test problem is trained on", _num_tests(task, scans), overlap),
        ],
        splits=scans,
        num_golds=len(golds),
        num_without_gold=len({p.id for p in problems} - {p.id for p, _ in golds}),
        num_unscorable=sum(not verdict.is_scorable for verdict in gold_verdicts),
        num_lookalike=num_lookalike,
        num_shared=sum(
            verdict.is_right and a != b
            for (a, _), (b, _), verdict in zip(golds, shifted, shifted_verdicts, strict=False)
        ),
        seconds_per_verdict=bench.seconds / max(1, bench.num_done),
        slowest_s=bench.slowest_s,
    )


class Bench:
    """Judges answers in batches, with time and progress.

    Args:
        task: Whose verifier judges.
        num_all: Verdicts there will be.
        on_progress: Called after each batch.
    """

    def __init__(self, task: Task, num_all: int, on_progress: Callable[[int, int], None]) -> None:
        self._task, self._num_all, self._on_progress = task, num_all, on_progress
        self.num_done, self.seconds = 0, 0.0
        self.slowest_s: float | None = None

    def judge(self, answers: Sequence[Answer]) -> list[Verdict]:
        """A verdict for each answer."""
        verdicts: list[Verdict] = []
        for start in range(0, len(answers), AT_ONCE):
            batch = answers[start : start + AT_ONCE]
            begun = time.perf_counter()
            found = self._task.verify_batch([p for p, _ in batch], [text for _, text in batch])
            self.seconds += time.perf_counter() - begun
            if len(found) != len(batch) or not all(isinstance(v, Verdict) for v in found):
                raise UsageError(
                    f"verify_batch of task {self._task.name!r} must return a Verdict for each of "
                    f"{len(batch)} answers, got {found!r}"[:300]
                )
            verdicts += found
            self._done(found)
        return verdicts

    def unstable(self, judged: Sequence[tuple[Answer, Verdict]]) -> list[str]:
        """Answers that get another verdict in reverse order, or one by one in several threads."""
        answers = [answer for answer, _ in judged]
        backwards = self.judge(answers[::-1])[::-1]
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            alone = list(threads.map(lambda answer: self._task.verify(*answer), answers))
        self._done(alone)
        lines = []
        for (answer, first), *others in zip(judged, backwards, alone, strict=True):
            for way, verdict in zip(("in reverse order", "in a thread"), others, strict=True):
                if verdict.outcome != first.outcome:
                    lines.append(f"{_of(answer)} {first.outcome}, {way} {verdict.outcome}")
        return lines

    def _done(self, verdicts: Sequence[Verdict]) -> None:
        measured = [v.seconds for v in verdicts if v.seconds is not None]
        if measured:
            self.slowest_s = max(*measured, self.slowest_s or 0.0)
        self.num_done += len(verdicts)
        self._on_progress(self.num_done, self._num_all)


def scan(
    task: Task, num_problems: int
) -> tuple[dict[str, SplitScan], list[Problem], list[str], list[str], int]:
    """Read the splits: what is there, the first problems of each, what is there twice.

    Returns:
        The splits; the problems to audit; problems that are there twice in a split; problems of
        another split that are in the first; how many of those look like one of the first.
    """
    scans: dict[str, SplitScan] = {}
    audited: list[Problem] = []
    repeated: list[str] = []
    overlap: list[str] = []
    num_lookalike = 0
    trained: set[str] = set()
    trained_loosely: set[str] = set()
    for split in task.splits:
        tally = Tally(is_told=False)
        names: Counter[str] = Counter()
        num_seen, is_all = 0, True
        for problem in _problems(task, split, num_problems, tally):
            if problem is None:
                is_all = False
                break
            num_seen += 1
            if num_seen <= num_problems:
                audited.append(problem)
            keys = {problem.id, question_key(problem.prompt)}
            for key in keys:
                names[key] += 1
            if any(names[key] == 2 for key in keys):
                repeated.append(f"{split}: {problem.id}")
            loose = _loosely(problem.prompt)
            if split == task.splits[0]:
                trained |= keys
                trained_loosely.add(loose)
            elif trained & keys:
                overlap.append(f"{split}: {problem.id}")
            elif loose in trained_loosely:
                num_lookalike += 1
        scans[split] = SplitScan(num_seen, is_all, tally.left_out, tally.first)
    return scans, audited, repeated, overlap, num_lookalike


def _problems(task: Task, split: str, num_problems: int, tally: Tally) -> Iterator[Problem | None]:
    """All problems of a file; of a generator as many as its time allows, and then a None."""
    if isinstance(task, DatasetTask):
        yield from task.walk(split, tally)
        return
    begun = time.monotonic()
    for i, problem in enumerate(task.generate(split)):
        if i >= num_problems and time.monotonic() - begun > SCAN_S:
            yield None
            return
        yield problem


def _loosely(text: str) -> str:
    """A text without its case and the punctuation of sentences; that of formulas counts."""
    return " ".join(re.sub(r"[.,;:!?'\"`$]", " ", text.casefold()).split())


def _num_tests(task: Task, scans: dict[str, SplitScan]) -> int:
    return sum(scans[split].num_problems for split in task.splits[1:])


def _of(answer: Answer) -> str:
    problem, text = answer
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    return f"{problem.id}: {shown!r} is"


def _said(verdict: Verdict) -> str:
    detail = f" ({verdict.detail[:100]})" if verdict.detail else ""
    return f"{verdict.outcome}{detail}"


def _not_right(known: Answer | None, verdicts: Sequence[Verdict]) -> list[str]:
    if known is None:
        return []
    return [f"{_of(known)} {_said(verdict)}" for verdict in verdicts if not verdict.is_right]


def _defects(task: Task, problems: Sequence[Problem]) -> list[str]:
    found = [(problem.id, task.defect(problem)) for problem in problems]
    return [f"{name}: {what}" for name, what in found if what is not None]


def _wrong_golds(answers: Sequence[Answer], verdicts: Sequence[Verdict]) -> list[str]:
    pairs = zip(answers, verdicts, strict=True)
    return [f"{_of(answer)} {_said(verdict)}" for answer, verdict in pairs if not verdict.is_right]


def _right(task: Task, answers: Sequence[Answer], verdicts: Sequence[Verdict]) -> list[str]:
    """Answers that are right and should not be; the task may list them as solutions."""
    return [
        f"{_of(answer)} right"
        for answer, verdict in zip(answers, verdicts, strict=True)
        if verdict.is_right and answer[1] not in (task.solutions(answer[0]) or ())
    ]


def _unscorable(answers: Sequence[Answer], verdicts: Sequence[Verdict]) -> list[str]:
    pairs = zip(answers, verdicts, strict=True)
    return [
        f"{_of(answer)} {_said(verdict)}" for answer, verdict in pairs if not verdict.is_scorable
    ]

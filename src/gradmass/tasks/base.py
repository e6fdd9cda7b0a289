"""What a task is: problems in a fixed order, a verifier, and all right answers where finite."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from gradmass.registry import Registry, nearest
from gradmass.rewards import Verdict
from gradmass.types import UsageError


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a task.

    Args:
        id: Stable name, unique within the task; equal problems have equal ids.
        prompt: The text given to the model.
        data: What the task's verifier needs to judge an answer.
    """

    id: str
    prompt: str
    data: Any


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A family of problems; the fields of a subclass are its parameters.

    A subclass decorated with ``@register_task("name")`` in a file of this package is known to
    recipes and to the command under that name. It validates its fields in ``__post_init__`` and
    shows the offending value.
    """

    name: ClassVar[str] = ""
    spec: ClassVar[str] = ""
    """What finds the class again: the registered name, or the file's absolute path and its name."""
    splits: ClassVar[tuple[str, ...]]
    """Names of the splits; no problem is in two of them. The first is trained on."""
    alphabet: ClassVar[str] = ""
    """Every character of the task's prompts and solutions, for a character tokenizer."""

    @abstractmethod
    def generate(self, split: str) -> Iterator[Problem]:
        """Yield the problems of a split in their fixed order, each once; the same every time."""

    @abstractmethod
    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Judge a completion (the text after the prompt, without the end token)."""

    def verify_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> list[Verdict]:
        """Judge each completion as an answer to the problem at its place.

        A loop over ``verify``; tasks whose verifier works on many at once do better. Batches come
        one at a time, but with a policy lag from another thread than the main one.

        Args:
            problems: One for each completion.
            completions: Texts after the prompt, without the end token.

        Returns:
            A verdict for each, in order, the same as ``verify`` gives.
        """
        pairs = zip(problems, completions, strict=True)
        return [self.verify(problem, completion) for problem, completion in pairs]

    def solutions(self, problem: Problem) -> tuple[str, ...] | None:
        """All completions that ``verify`` calls right, in fixed order; None if they are not finite.

        Where they are known, a policy is evaluated exactly; else by sampling alone.
        """
        return None

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """Completions that are right whatever ``verify`` says of them, for ``gradmass audit``.

        What the data brings along: a reference program, the stored answer in the asked form. By
        default the first three of ``solutions``.
        """
        return (self.solutions(problem) or ())[:3]

    def defect(self, problem: Problem) -> str | None:
        """Why a problem cannot be judged at all (it has no tests), or None; for the audit."""
        return None

    def known_good(self) -> tuple[Problem, str] | None:
        """A problem outside the data with a completion that is right wherever the verifier works.

        What an audit asks first: where even this fails, the machine is at fault, not the data.
        """
        return None

    def demonstrations(self, split: str) -> Iterator[tuple[Problem, str]]:
        """Yield solved problems of a split without end, for a supervised start.

        Raises:
            UsageError: The task has none (the default).
        """
        raise UsageError(f"task {self.name!r} has no demonstrations for a supervised start")

    def problems(self, split: str, num_problems: int) -> tuple[Problem, ...]:
        """The first ``num_problems`` problems of a split.

        Raises:
            UsageError: Unknown split, ``num_problems`` below 1, a split with fewer problems, or
                with two of one id.
        """
        if split not in self.splits:
            raise UsageError(
                f"task {self.name!r} has no split {split!r}{nearest(split, self.splits)}"
            )
        if num_problems < 1:
            raise UsageError(f"num_problems must be at least 1, got {num_problems}")
        found = tuple(islice(self.generate(split), num_problems))
        if len(found) < num_problems:
            raise UsageError(
                f"split {split!r} of task {self.name!r} has only {len(found)} problems, "
                f"num_problems = {num_problems} asks for more"
            )
        ids = [problem.id for problem in found]
        if len(set(ids)) < len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise UsageError(f"split {split!r} of task {self.name!r} has two problems {twice!r}")
        return found


TASKS: Registry[Task] = Registry(
    "task",
    "gradmass.tasks",
    Task,  # type: ignore[type-abstract]
    file_hint="a file of problems goes to the task that reads it, as in gsm8k:path={}",
)
register_task = TASKS.register

"""What an evaluation is of: which problems, and which model."""

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from gradmass.registry import nearest
from gradmass.tasks import Problem, Task
from gradmass.types import UsageError

MOST_PROBLEMS = 10_000
"""Above so many problems a limit has to be given: the split may have no end."""
CHUNK_BYTES = 1 << 16
"""Of a large file, what is read at the start, in the middle and at the end."""
MODEL_FILES = ("*.json", "*.safetensors", "*.bin", "*.jinja", "*.model", "*.txt")


def first_problems(task: Task, split: str, limit: int | None) -> tuple[Problem, ...]:
    """The first problems of a split, at most ``limit``; all of them without one.

    Raises:
        UsageError: Unknown split, a limit below 1, no problem, two problems of one id, or no limit
            and more than ``MOST_PROBLEMS``.
    """
    if split not in task.splits:
        raise UsageError(f"task {task.name!r} has no split {split!r}{nearest(split, task.splits)}")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, got {limit}")
    found = tuple(islice(task.generate(split), MOST_PROBLEMS + 1 if limit is None else limit))
    if not found:
        raise UsageError(f"split {split!r} of task {task.name!r} has no problems")
    if limit is None and len(found) > MOST_PROBLEMS:
        raise UsageError(
            f"split {split!r} of task {task.name!r} has more than {MOST_PROBLEMS} problems: "
            "say with --limit how many to ask"
        )
    seen: set[str] = set()
    for problem in found:
        if problem.id in seen:
            raise UsageError(
                f"split {split!r} of task {task.name!r} has two problems {problem.id!r}"
            )
        seen.add(problem.id)
    return found


def problems_sha256(problems: Sequence[Problem]) -> str:
    """What tells one list of problems from another: ids and prompts, in order."""
    digest = hashlib.sha256()
    for problem in problems:
        for text in (problem.id, problem.prompt):
            data = text.encode(errors="surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def model_sha256(folder: Path) -> str:
    """What tells one model from another, wherever its folder lies.

    Names, sizes and content of its files; of a large one a piece of the start, the middle and the
    end, so that a 70B model takes no longer than a small one. A step of training changes all of
    them.
    """
    digest = hashlib.sha256()
    files = {file for pattern in MODEL_FILES for file in folder.glob(pattern)}
    for file in sorted(files, key=lambda file: file.name):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as stream:
            for place in (0, size // 2, max(0, size - CHUNK_BYTES)):
                stream.seek(place)
                digest.update(stream.read(CHUNK_BYTES))
    return digest.hexdigest()

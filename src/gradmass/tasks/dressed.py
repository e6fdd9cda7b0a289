"""A task whose problems are shown to a model in a form, and whose answers must have one."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradmass.rewards import Outcome, Verdict
from gradmass.rewards.layout import Layout, answer_in_layout
from gradmass.tasks.base import Problem, Task


def dress(task: Task, render: Callable[[str], str], layout: Layout) -> Task:
    """The task with its prompts rendered, and with a rule on the form of completions.

    Everything else (name, fields, splits, order, ids) is the task's own.

    Args:
        task: The task.
        render: Makes what the model reads of a problem's prompt.
        layout: The rule of ``answer_in_layout``; a completion that breaks it is unparsed, and the
            verifier sees the answer alone.
    """
    if layout == "none" and render is str:
        return task
    dressed = copy.copy(task)
    # A class between the task and its own: fields, registered name and isinstance stay true.
    cls = type(type(task).__name__, (_Dressed, type(task)), {})
    object.__setattr__(dressed, "__class__", cls)
    object.__setattr__(dressed, "_dress", (render, layout, {}))
    return dressed


def why_unlisted(task: Task, problem: Problem) -> str:
    """Why there is no list of the right answers to a problem, for a message.

    A form of ``prompt.format`` leaves what stands before the answer free, so that even of a task
    that lists its right answers there is no end of completions.
    """
    if isinstance(task, _Dressed):
        _, layout, plain = task._dress
        if task._undressed().solutions(plain.get(problem.id, problem)) is not None:
            return f"prompt.format = {layout!r} leaves no end of right completions"
    return f"task {task.name!r} does not list its right answers"


class _Dressed(Task):
    """What differs from the task underneath, which ``super()`` is."""

    _dress: tuple[Callable[[str], str], Layout, dict[str, Problem]]

    def problems(self, split: str, num_problems: int) -> tuple[Problem, ...]:
        """The task's problems, rendered."""
        return tuple(map(self._rendered, super().problems(split, num_problems)))

    def verify(self, problem: Problem, completion: str) -> Verdict:
        """Judge one completion."""
        return self.verify_batch([problem], [completion])[0]

    def verify_batch(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> list[Verdict]:
        """Verdicts of the task on those completions that have the form."""
        _, layout, plain = self._dress
        answers = [answer_in_layout(text, layout) for text in completions]
        there = [i for i, answer in enumerate(answers) if answer is not None]
        known = [plain.get(problem.id, problem) for problem in problems]
        judged = self._undressed().verify_batch(
            [known[i] for i in there], [answers[i] or "" for i in there]
        )
        verdicts = [Verdict(Outcome.UNPARSED, f"not of the form {layout}") for _ in completions]
        for i, verdict in zip(there, judged, strict=True):
            verdicts[i] = verdict
        return verdicts

    def solutions(self, problem: Problem) -> tuple[str, ...] | None:
        """The task's, where completions are free; with a form there is no end of them."""
        _, layout, plain = self._dress
        known = plain.get(problem.id, problem)
        return self._undressed().solutions(known) if layout == "none" else None

    def golds(self, problem: Problem) -> tuple[str, ...]:
        """The task's, in the form."""
        known = self._dress[2].get(problem.id, problem)
        return tuple(map(self._formed, self._undressed().golds(known)))

    def demonstrations(self, split: str) -> Iterator[tuple[Problem, str]]:
        """The task's, rendered and in the form."""
        for problem, answer in super().demonstrations(split):
            yield self._rendered(problem), self._formed(answer)

    def _rendered(self, problem: Problem) -> Problem:
        render, _, plain = self._dress
        plain[problem.id] = problem
        return replace(problem, prompt=render(problem.prompt))

    def _formed(self, answer: str) -> str:
        formed = {
            "none": answer,
            "answer": f"<answer>{answer}</answer>",
            "think_answer": f"<think></think>\n<answer>{answer}</answer>",
        }
        return formed[self._dress[1]]

    def _undressed(self) -> Task:
        """The task itself: its ``verify`` and ``verify_batch`` may call one another."""
        task = copy.copy(self)
        object.__setattr__(task, "__class__", type(self).__mro__[2])
        return task

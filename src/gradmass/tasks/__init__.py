"""Tasks: seeded problems with a verifier. One file a task; ``TASKS`` finds them by name."""

from gradmass.tasks.base import TASKS, Problem, Task, register_task

__all__ = ["TASKS", "Problem", "Task", "register_task"]

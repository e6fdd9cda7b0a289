"""Recipes of a second, and a file of weights that go wrong in every way."""

TINY = [
    "--train.steps=2",
    "--train.num_problems=2",
    "--train.prompts_per_step=2",
    "--train.group_size=2",
    "--eval.num_problems=2",
    "--eval.num_samples=2",
]
FEW = ["--task.min_numbers=2", "--task.max_numbers=2", "--task.max_number=5"]


WEIGHTS_FILE = '''
import numpy as np
from dataclasses import dataclass
from gradmass.weights import Weight


class Base(Weight):
    """A weight that works until its formula is asked for."""

    needs_group = False
    on_ties = "value"


class Nan(Base):
    def formula(self, groups, state, signals):
        return groups.rewards_PG * float("nan")


class Raises(Base):
    def formula(self, groups, state, signals):
        raise KeyError("first line\\nsecond line")


class NanReport(Base):
    def formula(self, groups, state, signals):
        return groups.rewards_PG

    def report(self, state):
        return {"spread": float("nan")}


class ArrayState(Base):
    scope = "run"

    def init(self):
        return {"mean": np.zeros(2)}

    def formula(self, groups, state, signals):
        return groups.rewards_PG


@dataclass(frozen=True, kw_only=True)
class Picky(Base):
    level: float = 1.0

    def __post_init__(self):
        raise ValueError(f"level {self.level} is too low")

    def formula(self, groups, state, signals):
        return groups.rewards_PG


class Formless(Base):
    pass


class NoWeight:
    pass
'''


def in_mine(text):
    """File and line of a text in the file above."""
    (number,) = (i for i, line in enumerate(WEIGHTS_FILE.splitlines(), 1) if text in line)
    return f"HERE/mine.py, line {number}"

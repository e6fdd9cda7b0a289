"""Studies and results made up for the tests, so that nothing has to be trained."""

import tomllib
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
import pytest

from gradmass.study import PlannedRun, Result, Study
from gradmass.study.execute import Job
from gradmass.tables import from_tables

TEXT = """
name = "test"
first_seed = 10
num_seeds = 7

[[settings]]
name = "here"
level = 0.3

[[settings]]
name = "there"
set = ["task.seed=3"]
level = 0.3

[[arms]]
name = "grpo"
weight = "grpo"

[[arms]]
name = "fade"
weight = "fade:entropy_form=relative"

[[arms]]
name = "yoked"
weight = "replay:what=alpha_delta"
trace_of = "fade"
trace_seed = "next"
rate_of = "fade"

[tuning]
rates = [1e-4, 2e-4]
first_seed = 0
num_seeds = 2
set = ["task.seed=1"]

[[hypotheses]]
name = "H1"
claim = "FADE ends higher"

[[hypotheses.parts]]
measure = "pass@1 at the end"
arm = "fade"
against = ["grpo"]
direction = "higher"
margin = 0.02

[[hypotheses]]
name = "H2"
claim = "FADE is there earlier"

[[hypotheses.parts]]
measure = "doublings of rollouts to the level"
arm = "fade"
against = ["grpo", "yoked"]
direction = "lower"
margin = 0.25
"""
CURVES = [
    *("entropy", "m_S", "m_F", "solve_rate", "sign_ratio", "alpha", "delta", "r_1", "r_1_noise"),
    *("norm", "head_share", "pass@10", "pass@100", "answer_entropy", "rho_right", "rho_wrong"),
]
ROLLOUTS = [0, 1000, 2000, 3000, 4000, 5000]


@pytest.fixture
def tables() -> dict:
    return tomllib.loads(TEXT)


@pytest.fixture
def study(tables) -> Study:
    return from_tables(Study, tables, "test")


def result_of(run: PlannedRun, status: str = "finished", **curves: list[float | None]) -> Result:
    """A result whose pass@1 rises from .1 to .6 unless it is told otherwise."""
    rising = [0.1 + 0.1 * i for i in range(len(ROLLOUTS))]
    flat: dict[str, list[float | None]] = {name: [0.5] * len(ROLLOUTS) for name in CURVES}
    return Result(
        run=run,
        label=run.arm,
        status=status,  # type: ignore[arg-type]
        seconds=1.0,
        environment={
            "packages": {"torch": "1", "numpy": "2"},
            "processor": "cpu",
            "commit": "abc",
            "is_dirty": False,
        },
        curves=flat
        | {"step": list(range(6)), "rollouts": list(ROLLOUTS), "pass@1": rising}
        | curves,
        solve_probability_EN=np.linspace([0.1, 0.2, 0.3], [0.5, 0.6, 0.7], 6).tolist(),
        trace={"alpha_delta": [[1.0, 1.0]], "mass": [0.2]},
    )


class FakeExecutor:
    """Ends every run when it is submitted, with the outcome that a function gives."""

    num_jobs = 2

    def __init__(self, outcome: Callable[[Job], Result] | None = None) -> None:
        self.outcome = outcome or (lambda job: result_of(job.run))
        self.submitted: list[Job] = []

    def submit(self, job: Job) -> "Future[Result]":
        self.submitted.append(job)
        future: Future[Result] = Future()
        try:
            future.set_result(self.outcome(job))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        pass


@pytest.fixture(name="result_of")
def result_maker() -> Callable[..., Result]:
    """Makes a result of a run."""
    return result_of


@pytest.fixture(name="fake_executor")
def executor_class() -> type[FakeExecutor]:
    """Ends every run at once."""
    return FakeExecutor

"""Judge one program after the other with sandboxes that belong to one thread.

What is expected stays here, outside: the sandbox of the program sees an input or arguments, and
says what it printed or returned. Assert-style tests run in another sandbox (``code_tests``).
"""

import contextlib
import reprlib
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

from gradmass.rewards.code_problem import AssertTest, CallTest, CodeProblem, StdinTest, Test
from gradmass.rewards.code_tests import Tester, cause_of
from gradmass.rewards.outputs import same_text, same_value
from gradmass.rewards.sandbox import Code, Ended, Limits, Worker
from gradmass.rewards.sandbox.inside import plain, wire
from gradmass.rewards.sandbox.inside.roles import IN_PRELUDE, REPLY_BYTES
from gradmass.rewards.verdict import Outcome, Verdict

SHOWN, DETAIL = 60, 300


@dataclass(frozen=True)
class _Result:
    """Of one test."""

    outcome: Outcome
    detail: str = ""


RIGHT = _Result(Outcome.RIGHT)


class Judge:
    """Judges programs, one at a time.

    Args:
        start: Starts a sandbox.
        stop_at_first_failure: Skip the tests after the first that is not passed.
    """

    def __init__(self, start: Callable[[], Worker], *, stop_at_first_failure: bool) -> None:
        self._start = start
        self._stops_early = stop_at_first_failure
        self._program: Worker | None = None
        self._tester: Tester | None = None

    def prepare(self) -> Worker:
        """Start the sandbox of the programs, if it does not run yet.

        Raises:
            SandboxLost: It does not start.
        """
        self._program = self._program or self._start()
        return self._program

    def judge(self, problem: CodeProblem, program: str) -> Verdict:
        """Run a program on the tests of a problem.

        Raises:
            SandboxLost: Nothing is known about the program; call ``discard``, then try again.
        """
        started = time.monotonic()
        results: list[_Result] = []
        with contextlib.closing(self._results(problem, program)) as found:
            for result in found:
                results.append(result)
                if result is not RIGHT and self._stops_early:
                    break
        num_tests = len(problem.tests)
        failures = [
            (number, result) for number, result in enumerate(results, 1) if result is not RIGHT
        ]
        number, worst = failures[0] if failures else (0, RIGHT)
        where = f"test {number} of {num_tests}: " if failures and num_tests > 1 else ""
        return Verdict(
            worst.outcome,
            where + _one_line(worst.detail),
            seconds=time.monotonic() - started,
            num_passed=sum(result is RIGHT for result in results),
            num_tests=num_tests,
        )

    def discard(self) -> None:
        """End all sandboxes; the next program gets new ones."""
        for sandbox in (self._program, self._tester):
            if sandbox is not None:
                sandbox.close()
        self._program = self._tester = None

    def _results(self, problem: CodeProblem, program: str) -> Generator[_Result]:
        tests = list(problem.tests)
        while tests:
            if isinstance(tests[0], StdinTest):
                yield self._run(problem, program, tests.pop(0))
            elif isinstance(tests[0], AssertTest):
                yield self._check(problem, program, tests.pop(0))
            else:
                num_calls = next(
                    (n for n, test in enumerate(tests) if not isinstance(test, CallTest)),
                    len(tests),
                )
                # One process answers calls until it fails to; a new one answers those after.
                for result in self._call(problem, program, tests[:num_calls]):
                    tests.pop(0)
                    yield result

    def _run(self, problem: CodeProblem, program: str, test: Test) -> _Result:
        assert isinstance(test, StdinTest)
        limits = Limits(wall_s=problem.time_limit_s, memory_mb=problem.memory_mb)
        code = Code(program, problem.prelude)
        ended = self.prepare().run("script", code, limits, test.stdin)
        fault = _fault(ended, problem)
        if fault is not None:
            return self._unless_prelude(fault, problem)
        printed = ended.stdout.decode("utf-8", "replace")
        if problem.checker is not None:
            return _checked(problem, test, printed)
        if same_text(printed, test.stdout, problem.comparison):
            return RIGHT
        if not printed.strip():
            return _Result(Outcome.WRONG, "it ended without printing anything")
        return _Result(
            Outcome.WRONG, f"printed {_short(printed.strip())}, not {_short(test.stdout.strip())}"
        )

    def _call(self, problem: CodeProblem, program: str, tests: list[Test]) -> Iterator[_Result]:
        """Results of calls, up to the first that leaves no process to call."""
        worker = self.prepare()
        host, theirs = socket.socketpair()
        limits = Limits(wall_s=problem.time_limit_s * len(tests) + 1.0, memory_mb=problem.memory_mb)
        code = Code(program, problem.prelude)
        with host:
            with theirs:
                worker.begin("serve", code, limits, channel=theirs)
            try:
                for test in tests:
                    assert isinstance(test, CallTest)
                    yield self._answer(problem, test, host)
            except (EOFError, ConnectionError):
                fault = _fault(worker.end(), problem) or _Result(
                    Outcome.WRONG, "it ended by itself before it answered"
                )
                yield self._unless_prelude(fault, problem)
                return
            except TimeoutError:
                worker.stop()
                yield _timeout(worker.end(), problem)
                return
            except BaseException:
                # The reader wants no more results.
                worker.stop()
                worker.end()
                raise
        worker.stop()
        worker.end()

    def _answer(self, problem: CodeProblem, test: CallTest, host: socket.socket) -> _Result:
        deadline = time.monotonic() + problem.time_limit_s
        args = [plain.encode(value) for value in test.args]
        host.settimeout(problem.time_limit_s)
        wire.send(host, {"name": problem.entry_point, "args": args})
        try:
            reply, _ = wire.receive(host, limit=REPLY_BYTES, deadline=deadline)
            if "error" in reply:
                return _raised(str(reply["error"]), str(reply["message"]), problem)
            value = plain.decode(reply["value"])
        except wire.MessageTooLong:
            return _Result(Outcome.WRONG, f"output limit: an answer above {REPLY_BYTES >> 20} MiB")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            return _Result(Outcome.WRONG, f"it returned no plain data ({error})")
        if problem.checker is not None:
            return _checked(problem, test, value)
        if same_value(value, test.expected, problem.comparison):
            return RIGHT
        return _Result(Outcome.WRONG, f"returned {_short(value)}, not {_short(test.expected)}")

    def _check(self, problem: CodeProblem, program: str, test: Test) -> _Result:
        assert isinstance(test, AssertTest)
        worker = self.prepare()
        self._tester = self._tester or Tester(self._start)
        limits = Limits(wall_s=problem.time_limit_s, memory_mb=problem.memory_mb)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                worker.begin("serve", Code(program, problem.prelude), limits, channel=theirs)
            said = self._tester.check(
                Code(test.code, problem.prelude, problem.entry_point), limits, ours
            )
        worker.stop()
        ended = worker.end()
        if said["passed"]:
            never = _Result(Outcome.ERROR, "the test never calls the program")
            return RIGHT if said["calls"] else never
        if said.get("gone"):
            gone = _Result(Outcome.WRONG, "it ended by itself before it answered")
            return self._unless_prelude(_fault(ended, problem) or gone, problem)
        if said.get("timeout"):
            return _timeout(ended, problem)
        return self._unless_prelude(_Result(Outcome.WRONG, said["detail"]), problem)

    def _unless_prelude(self, fault: _Result, problem: CodeProblem) -> _Result:
        """The fault, unless the prelude fails without the program too: then no one's.

        A process that ran the program can say anything of the prelude. What it says is a reason to
        run the prelude alone, and only how that ends counts. No job may be running.
        """
        if not problem.prelude or IN_PRELUDE not in fault.detail:
            return fault
        limits = Limits(wall_s=problem.time_limit_s, memory_mb=problem.memory_mb)
        ended = self.prepare().run("script", Code("", problem.prelude), limits)
        alone = _fault(ended, problem)
        if alone is None or IN_PRELUDE not in alone.detail:
            return fault
        return _Result(Outcome.ERROR, f"the problem's prelude fails by itself: {alone.detail}")


def _fault(ended: Ended, problem: CodeProblem) -> _Result | None:
    """What is wrong with how a process ended, whatever it printed before."""
    code = ended.code
    if ended.forced == "timeout":
        return _timeout(ended, problem)
    if ended.is_full:
        return _Result(Outcome.WRONG, "output limit: it printed too much")
    if not code:
        return None
    if (
        code < 0
        and -code in (signal.SIGKILL, signal.SIGXCPU)
        and ended.cpu_s > problem.time_limit_s
    ):
        return _timeout(ended, problem)
    cause = cause_of(ended)
    if "MemoryError" in cause:
        return _Result(Outcome.WRONG, f"memory limit of {problem.memory_mb} MiB ({cause})")
    return _Result(Outcome.WRONG, cause)


def _timeout(ended: Ended, problem: CodeProblem) -> _Result:
    return _Result(
        Outcome.TIMEOUT,
        f"no end within {problem.time_limit_s:g} s ({ended.cpu_s:.1f} s of processor time)",
    )


def _raised(name: str, message: str, problem: CodeProblem) -> _Result:
    if name == "MemoryError":
        return _Result(Outcome.WRONG, f"memory limit of {problem.memory_mb} MiB (MemoryError)")
    if name == "SystemExit":
        return _Result(Outcome.WRONG, f"it ended by itself before it answered (exit {message})")
    return _Result(Outcome.WRONG, f"raised {name}: {message}")


def _checked(problem: CodeProblem, test: Test, output: Any) -> _Result:
    assert problem.checker is not None
    try:
        is_right = problem.checker(test, output)
    except Exception as error:
        # A checker reads what a model made up; that it cannot read it is the answer's fault.
        return _Result(Outcome.WRONG, f"the checker raised {type(error).__name__}: {error}")
    return RIGHT if is_right else _Result(Outcome.WRONG, f"the checker refuses {_short(output)}")


def _short(value: Any) -> str:
    """A value as a person would want to see it, however long it is."""
    if isinstance(value, str):
        return repr(value[:SHOWN]) + "..." * (len(value) > SHOWN)
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to show integers of thousands of digits
        return "a number too long to show"


def _one_line(text: str) -> str:
    """What a program had a part in, fit for a terminal: short, and nothing that commands it."""
    return "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "\N{REPLACEMENT CHARACTER}"
        for letter in text[:DETAIL]
    )

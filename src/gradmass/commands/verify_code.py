"""``gradmass verify code``: does this program solve this problem?"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gradmass.commands.arguments import parse
from gradmass.rewards.code import CodeProblem, CodeVerifier
from gradmass.rewards.sandbox import Isolation
from gradmass.rewards.verdict import Outcome, Verdict
from gradmass.types import UsageError


@dataclass(frozen=True)
class Arguments:
    """Run a program on all tests of a problem, in a sandbox.

    Exit code 0 right, 1 not right, 2 bad input or a sandbox that failed.
    """

    problem: Annotated[Path, tyro.conf.arg(metavar="FILE.json")]
    """{"tests": [{"stdin", "stdout"} | {"args", "expected"} | {"check"}], and "entry_point",
    "time_limit_s", "memory_mb", "prelude", "comparison" where needed}."""
    program: Annotated[Path, tyro.conf.arg(metavar="FILE.py")]
    """Python, as it is; no code blocks."""
    isolation: Isolation = "bubblewrap"
    """process is weaker: the program sees and can change what you can."""
    json: bool = False
    """Print {"verdict", "detail", "seconds", "passed", "total"}."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    arguments = parse(Arguments, "verify code", argv)
    problem = read_problem(arguments.problem)
    program = _text(arguments.program, "--program")
    with CodeVerifier(
        num_workers=1,
        isolation=arguments.isolation,
        stop_at_first_failure=False,
        code_block="whole",
    ) as verifier:
        (verdict,) = verifier.verify([problem], [program])
    print(_as_json(verdict) if arguments.json else _as_text(verdict))
    return {Outcome.RIGHT: 0, Outcome.ERROR: 2}.get(verdict.outcome, 1)


def read_problem(path: Path) -> CodeProblem:
    """Read a problem from a JSON file.

    Raises:
        UsageError: It cannot be read or is no problem; the line names the file.
    """
    text = _text(path, "--problem")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f'{path} is no JSON ({error}); --problem takes {{"tests": [...], ...}}, which '
            "gradmass verify code --help shows"
        ) from error
    except (ValueError, RecursionError) as error:  # a number too long, nested too deep
        raise UsageError(f"{path}: {error}") from error
    try:
        return CodeProblem.from_json(data)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _text(path: Path, flag: str) -> str:
    kind = {"--problem": "a JSON file with tests", "--program": "a file of Python"}[flag]
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist; {flag} takes {kind}") from error
    except IsADirectoryError as error:
        raise UsageError(f"{path} is a folder; {flag} takes {kind}") from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read ({error.strerror}); {flag} takes {kind}"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no UTF-8 text ({error}); {flag} takes {kind}") from error


def _as_json(verdict: Verdict) -> str:
    return json.dumps(
        {
            "verdict": verdict.outcome,
            "detail": verdict.detail,
            "seconds": verdict.seconds,
            "passed": verdict.num_passed,
            "total": verdict.num_tests,
        }
    )


def _as_text(verdict: Verdict) -> str:
    tests = f"{verdict.num_passed or 0} of {verdict.num_tests} tests"
    seconds = "" if verdict.seconds is None else f", {verdict.seconds:.2f} s"
    detail = f": {verdict.detail}" if verdict.detail else ""
    return f"{verdict.outcome} ({tests}{seconds}){detail}"

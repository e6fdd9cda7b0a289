"""Problems whose answer is a program, with the tests it has to pass."""

import re
import reprlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from gradmass.registry import nearest
from gradmass.rewards.outputs import Comparison
from gradmass.rewards.sandbox.inside import plain
from gradmass.types import UsageError

MIN_MEMORY_MB, MAX_MEMORY_MB = 64, 1 << 20
MAX_TIME_S = 86400.0


@dataclass(frozen=True)
class StdinTest:
    """Run the program on an input; compare what it prints.

    Args:
        stdin: What it can read.
        stdout: What it should print.
    """

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CallTest:
    """Call the entry point; compare what it returns.

    Args:
        args: Plain data.
        expected: Plain data; a list also stands for a tuple.
    """

    args: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class AssertTest:
    """Run Python code that calls the program and raises where it is wrong.

    The code runs in a process of its own. The names it uses and does not define are functions of
    the program there: what they take and return travels as plain data. If it defines ``check``,
    that is called with the entry point, as HumanEval does.

    Args:
        code: The test.
    """

    code: str


Test: TypeAlias = StdinTest | CallTest | AssertTest
Checker: TypeAlias = Callable[[Test, Any], bool]
"""Whether an output (text, or a value as plain data) is right for a test with many right ones."""

FORMS: dict[type[Test], dict[str, Any]] = {
    StdinTest: {"stdin": str, "stdout": str},
    CallTest: {"args": list, "expected": object},
    AssertTest: {"check": str},
}
"""Kinds of tests in JSON: the keys of each, in the order of its fields, and their types."""

A_TEST = " or ".join("{" + ", ".join(kinds) + "}" for kinds in FORMS.values())
PROBLEM_KINDS: dict[str, Any] = {
    "tests": list,
    "entry_point": str | None,
    "time_limit_s": int | float,
    "memory_mb": int,
    "prelude": str,
    "comparison": dict,
}
COMPARISON_KINDS: dict[str, Any] = {
    "tolerance": int | float,
    "match_lines": bool,
    "match_case": bool,
}
KIND_WORDS: dict[Any, str] = {
    str: "text",
    str | None: "text or null",
    int | float: "a number",
    bool: "true or false",
    list: "a list",
}
KEY_WORDS = {
    "tests": f"a list of {A_TEST}",
    "time_limit_s": f"a number of seconds above 0 and at most {MAX_TIME_S:g}",
    "memory_mb": f"a whole number of MiB from {MIN_MEMORY_MB} to {MAX_MEMORY_MB}",
    "comparison": f"an object with any of {', '.join(COMPARISON_KINDS)}",
}


@dataclass(frozen=True)
class CodeProblem:
    """What a program has to do, and within which bounds.

    Args:
        tests: At least one.
        entry_point: The function that is called, or the method of a class ``Solution``; None for
            programs that read and print.
        time_limit_s: Seconds a test may take, 6 as in LiveCodeBench; at most a day.
        memory_mb: MiB of address space, interpreter included; from 64 to 2**20.
        checker: Decides on outputs where several are right; what it raises means no.
        prelude: Code the problem gives (imports, helper functions): it runs before the program in
            its process, and before the assert-style tests in theirs.
        comparison: How outputs are compared where there is no checker.

    Raises:
        UsageError: No tests; a bound out of range; tests that call without an entry point, or whose
            arguments are no plain data; a prelude or an assert-style test that does not compile.
    """

    tests: tuple[Test, ...]
    entry_point: str | None = None
    time_limit_s: float = 6.0
    memory_mb: int = 1024
    checker: Checker | None = None
    prelude: str = ""
    comparison: Comparison = field(default_factory=Comparison)

    def __post_init__(self) -> None:
        if not self.tests:
            raise UsageError("a problem without tests: every program would pass")
        if not 0 < self.time_limit_s <= MAX_TIME_S:
            raise UsageError(
                f"time_limit_s must be above 0 and at most {MAX_TIME_S:g}, a day; "
                f"got {self.time_limit_s!r}"
            )
        if not MIN_MEMORY_MB <= self.memory_mb <= MAX_MEMORY_MB:
            raise UsageError(
                f"memory_mb must be from {MIN_MEMORY_MB} to {MAX_MEMORY_MB}, got {self.memory_mb!r}"
            )
        _check_compiles(self.prelude, "the prelude")
        for number, test in enumerate(self.tests, start=1):
            if isinstance(test, AssertTest):
                _check_compiles(test.code, f"test {number}")
            needs_name = isinstance(test, CallTest) or (
                isinstance(test, AssertTest) and re.search(r"^def check\(", test.code, re.M)
            )
            if needs_name and not self.entry_point:
                raise UsageError(f"test {number} calls a function; name it: entry_point")
            if isinstance(test, CallTest):
                try:
                    plain.encode(test.args)
                except plain.NotPlain as error:
                    raise UsageError(f"args of test {number}: {error}") from error

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "CodeProblem":
        """Read a problem from decoded JSON.

        Args:
            data: ``tests``, a list of ``{"stdin", "stdout"}``, ``{"args", "expected"}`` or
                ``{"check"}`` (assert-style code); and any of ``entry_point``, ``time_limit_s``,
                ``memory_mb``, ``prelude``, ``comparison`` (``tolerance``, ``match_lines``,
                ``match_case``).

        Raises:
            UsageError: Another form, in one line that shows what is wrong.
        """
        fields = _checked(data, PROBLEM_KINDS, "a problem")
        if "tests" not in fields:
            raise UsageError("a problem needs tests")
        fields["tests"] = tuple(
            _test_of(test, f"test {number}") for number, test in enumerate(fields["tests"], 1)
        )
        if "comparison" in fields:
            fields["comparison"] = Comparison(
                **_checked(fields["comparison"], COMPARISON_KINDS, "a comparison")
            )
        return cls(**fields)


def _check_compiles(text: str, what: str) -> None:
    fault = _syntax_fault(text)
    if fault:
        raise UsageError(f"{what} does not compile: {fault}")


@lru_cache(maxsize=256)
def _syntax_fault(text: str) -> str:
    """Why this is no Python, with its line; "" if it is. Nothing of it is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes and comparisons in code of others
            compile(text, "code", "exec", dont_inherit=True)
    except SyntaxError as error:
        line = " ".join((error.text or "").split())[:80]
        where = f"line {error.lineno}: {line}" if line else f"line {error.lineno}"
        return f"{error.msg} ({where})" if error.lineno else error.msg
    except (ValueError, MemoryError, RecursionError) as error:  # lone surrogates; nested too deep
        return f"{type(error).__name__} {error}".strip()
    return ""


def _test_of(data: Any, where: str) -> Test:
    for cls, kinds in FORMS.items():
        if isinstance(data, Mapping) and data.keys() == kinds.keys():
            values = _checked(data, kinds, where)
            values = {key: tuple(v) if kinds[key] is list else v for key, v in values.items()}
            return cls(*(values[key] for key in kinds))
    found = "{" + ", ".join(data) + "}" if isinstance(data, Mapping) else repr(data)
    raise UsageError(f"{where} is {found}, and should be {A_TEST}")


def _checked(data: Any, kinds: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Known keys with values of their kinds."""
    if not isinstance(data, Mapping):
        raise UsageError(f"{what} is a JSON object, got {type(data).__name__}")
    for key, value in data.items():
        if key not in kinds:
            raise UsageError(f"{what} has no {key!r}{nearest(key, kinds)}")
        is_number = kinds[key] in (int, int | float)
        if not isinstance(value, kinds[key]) or (is_number and isinstance(value, bool)):
            words = KEY_WORDS.get(key) or KIND_WORDS[kinds[key]]
            raise UsageError(f"{what}: {key} may not be {reprlib.repr(value)}; it is {words}")
    return dict(data)

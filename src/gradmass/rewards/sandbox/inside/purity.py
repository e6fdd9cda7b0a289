"""Whether a test can run in a process that later tests will share.

A new process for each test is safe and slow. Most tests import a few harmless modules, call the
program and compare: code that provably changes nothing which outlives its own names may share one.
"""

import dis
import sys
from collections.abc import Iterator
from types import CodeType

MODULES = {
    "bisect", "cmath", "collections", "copy", "heapq", "itertools", "math", "random", "string",
    "typing",
}  # fmt: skip
"""What these hold cannot be changed but by setting attributes, or is set anew for each test."""
CHANGES = {"STORE_ATTR", "DELETE_ATTR"}
NAMES = {
    "breakpoint", "compile", "delattr", "dispatch_table", "eval", "exec", "exit", "getattr",
    "globals", "input", "locals", "open", "quit", "register", "setattr", "vars",
    # Modules are within reach as attributes of others, too.
    *(sys.stdlib_module_names - MODULES),
}  # fmt: skip
"""What can change, or reach, anything else."""


def is_pure(code: CodeType) -> bool:
    r"""Whether code leaves nothing behind, as far as its text shows; in doubt it does not.

    Args:
        code: A compiled module.

    >>> is_pure(compile("import math\nassert math.sqrt(f(4)) == 2", "", "exec"))
    True
    >>> is_pure(compile("import math\nmath.sqrt = f", "", "exec"))
    False
    """
    return all(_is_harmless(part) for part in _parts(code))


def _is_harmless(code: CodeType) -> bool:
    if any(name.startswith("_") or name in NAMES for name in code.co_names):
        return False
    for instruction in dis.get_instructions(code):
        if instruction.opname in CHANGES:
            return False
        if instruction.opname == "IMPORT_NAME" and instruction.argval not in MODULES:
            return False
    return True


def _parts(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)

"""What a jailed process does: run a script, answer calls, or check what another one answers."""

import _thread
import atexit
import builtins
import contextlib
import os
import random
import socket
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

from . import plain, wire
from .purity import is_pure

REPLY_BYTES = 16 << 20
"""The longest answer to a call, in JSON."""
CHANNEL = 3
IN_PRELUDE = "in the prelude: "
"""Before what it raises: a process that ran a program may say this too, whatever happened."""


def run_script(prelude: str, program: str) -> int:
    """Run a program as ``python program.py`` would; returns its exit code."""
    return _until_exit(lambda: _load("__main__", prelude, program))


def answer_calls(prelude: str, program: str) -> int:
    """Load a program, then call what the other side of the channel names, until it hangs up."""

    def serve() -> None:
        namespace = _load("program", prelude, program)
        objects: list[Any] = []
        instances: dict[str, Any] = {}
        while True:
            try:
                request = wire.read(CHANNEL, REPLY_BYTES)
            except EOFError:
                # Nothing of the program runs on: not its exit handlers, not its threads.
                os._exit(0)
            wire.write(CHANNEL, _answer(request, namespace, instances, objects))

    return _until_exit(serve)


def check_all() -> int:
    """Run one test after the other in this process, those that leave nothing behind in it."""
    host = socket.socket(fileno=CHANNEL)
    while True:
        try:
            request, (channel,) = wire.receive(host, limit=REPLY_BYTES)
        except EOFError:
            return 0
        prelude, test = request["prelude"], request["test"]
        if _can_share_a_process(prelude, test):
            wire.send(host, check_calls(prelude, test, request["entry_point"], channel))
        else:
            wire.send(host, {"needs_process": True})
        os.close(channel)


def check_calls(
    prelude: str, test: str, entry_point: str | None, channel: int = CHANNEL
) -> dict[str, Any]:
    """Run assert-style tests here, on a program that runs elsewhere.

    Returns:
        ``passed``; then the number of ``calls``; or why not: the program is ``gone``, or the
        ``detail`` of what the test raised.
    """
    candidate = _Candidate(channel)
    # The same draws for every program that is tested.
    random.seed(0)
    namespace = _TestNamespace(candidate, __name__="tests")
    try:
        exec(_compiled(prelude, "prelude.py"), namespace)
        if entry_point is not None:
            namespace[entry_point] = candidate.function(entry_point)
        exec(_compiled(test, "test.py"), namespace)
        if "check" in namespace and entry_point is not None:
            namespace["check"](namespace[entry_point])
    except _Gone:
        return {"passed": False, "gone": True}
    except BaseException as error:  # whatever a test raises, it did not pass
        return {"passed": False, "detail": _describe(error)}
    return {"passed": True, "calls": candidate.num_calls}


@lru_cache(maxsize=64)
def _compiled(text: str, name: str) -> CodeType:
    return compile(text, name, "exec", dont_inherit=True)


def _can_share_a_process(prelude: str, test: str) -> bool:
    try:
        return is_pure(_compiled(prelude, "prelude.py")) and is_pure(_compiled(test, "test.py"))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False


class _Gone(BaseException):
    """The program ended; no test catches this as an exception the program raised."""


class _Candidate:
    """The program in the other process, as functions."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self.num_calls = 0

    def function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call({"name": name}, args, kwargs)

        call.__name__ = name
        return call

    def _call(self, what: dict[str, Any], args: Any, kwargs: Any) -> Any:
        self.num_calls += 1
        request = what | {
            "args": [plain.encode(value, _number_of) for value in args],
            "kwargs": {name: plain.encode(value, _number_of) for name, value in kwargs.items()},
        }
        try:
            wire.write(self._channel, request)
            reply = wire.read(self._channel, REPLY_BYTES)
        except (EOFError, OSError) as error:
            raise _Gone from error
        if "value" in reply:
            return plain.decode(reply["value"], lambda number: _Object(self, number))
        raise _error_of(reply)


class _Object:
    """A value of the program that is no plain data; only the program can look inside."""

    def __init__(self, candidate: _Candidate, number: int) -> None:
        self._candidate, self.number = candidate, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._candidate._call({"object": self.number}, args, kwargs)


def _number_of(value: Any) -> int:
    if isinstance(value, _Object):
        return value.number
    raise plain.NotPlain(f"a test passes a {type(value).__name__}, which is no plain data")


def _error_of(reply: dict[str, Any]) -> BaseException:
    """The exception as the test would have seen it, where its class is one of Python's own."""
    name, message = str(reply.get("error")), str(reply.get("message"))
    cls = getattr(builtins, name, None)
    is_plain = isinstance(cls, type) and issubclass(cls, Exception)
    # A failed assertion of the program is not one of the test's.
    if is_plain and cls not in (AssertionError, UnicodeDecodeError, UnicodeEncodeError):
        return cls(message)  # type: ignore[misc,no-any-return]
    return RuntimeError(f"{name}: {message}")


class _TestNamespace(dict[str, Any]):
    """Globals of a test: what it does not define itself, the program has to."""

    def __init__(self, candidate: _Candidate, **names: Any) -> None:
        super().__init__(names)
        self._candidate = candidate

    def __missing__(self, name: str) -> Any:
        if name == "__builtins__" or hasattr(builtins, name):
            raise KeyError(name)
        return self._candidate.function(name)


def _load(name: str, prelude: str, program: str) -> dict[str, Any]:
    """Execute the prelude and the program in a module of this name."""
    module = ModuleType(name)
    module.__file__ = "program.py"
    sys.modules[name] = module
    sys.argv = ["program.py"]
    random.seed(0)
    if prelude:
        exec(compile(prelude, "prelude.py", "exec", dont_inherit=True), module.__dict__)
    exec(compile(program, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def _answer(
    request: dict[str, Any],
    namespace: dict[str, Any],
    instances: dict[str, Any],
    objects: list[Any],
) -> dict[str, Any]:
    def refer(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    try:
        if "object" in request:
            function = objects[request["object"]]
        else:
            function = _find(request["name"], namespace, instances)
        resolve = objects.__getitem__
        args = [plain.decode(value, resolve) for value in request["args"]]
        kwargs = {
            name: plain.decode(value, resolve) for name, value in request.get("kwargs", {}).items()
        }
        return {"value": plain.encode(function(*args, **kwargs), refer)}
    except BaseException as error:  # the program's failure is its answer
        return {"error": type(error).__name__, "message": _message(error)}


def _find(name: str, namespace: dict[str, Any], instances: dict[str, Any]) -> Any:
    """A function of the program, or a method of its class Solution."""
    if name in namespace:
        return namespace[name]
    cls = namespace.get("Solution")
    if cls is not None and hasattr(cls, name):
        if "Solution" not in instances:
            instances["Solution"] = cls()
        return getattr(instances["Solution"], name)
    raise NameError(f"name {name!r} is not defined")


def _until_exit(run: Callable[[], Any]) -> int:
    """Run to the end of a Python process: threads, exit handlers, buffers; returns its code."""
    code = 0
    try:
        run()
    except SystemExit as error:
        code = _exit_code(error)
    except MemoryError:
        os.write(2, b"MemoryError\n")  # nothing that would need memory
        code = 1
    except BaseException as error:
        _complain(_describe(error))
        code = 1
    try:
        if _thread._count():
            threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        # As Python does when it ends: files that only the program's names hold are flushed.
        if "__main__" in sys.modules:
            sys.modules["__main__"].__dict__.clear()
    except BaseException as error:
        _complain(_describe(error))
    for stream in (sys.stdout, sys.__stdout__, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:
            _complain(_describe(error))
            code = code or 120
    return code


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    _complain(str(error.code))
    return 1


def _complain(text: str) -> None:
    with contextlib.suppress(OSError):  # where the program closed or filled it
        os.write(2, text.encode("utf-8", "replace") + b"\n")


def _describe(error: BaseException) -> str:
    """An exception with its line, in one line that says where the prelude alone raised it."""
    lines, trace = {}, error.__traceback__
    while trace is not None:
        lines[trace.tb_frame.f_code.co_filename] = trace.tb_lineno
        trace = trace.tb_next
    own = [lines[name] for name in ("program.py", "test.py") if name in lines]
    line = own[-1] if own else lines.get("prelude.py")
    in_prelude = not own and line is not None
    if isinstance(error, SyntaxError):
        line = error.lineno
    name, message = type(error).__name__, _message(error)
    text = f"{name}: {message}" if message else name
    text = text if line is None else f"{text} (line {line})"
    return f"{IN_PRELUDE}{text}" if in_prelude else text


def _message(error: BaseException) -> str:
    try:
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        return " ".join(message.split())[:200]
    except BaseException:  # a program's own __str__
        return ""

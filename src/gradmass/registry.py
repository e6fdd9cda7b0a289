"""Find a weight or a task by its name, by an installed plug-in, or by a file of the user's.

One file a family: importing a package's modules registers what they define. Three ways to name a
class: its registered name (``fade``), the name of an entry point in the group
``gradmass.<kind>`` of an installed package, or ``path/to/file.py:Name``.
"""

import difflib
import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from gradmass.types import UsageError

T = TypeVar("T", bound=object)
USER_MODULE = "gradmass_user_"
"""Stands before the path of a user's file in the name of its module."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or all of them if none is close.

    >>> nearest("fad", ["fade", "grpo"])
    "; did you mean 'fade'?"
    >>> nearest("zzz", ["fade", "grpo"])
    '; known: fade, grpo'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


class Registry(Generic[T]):
    """Classes of one kind by name.

    Args:
        kind: Singular noun for messages; the entry point group is ``gradmass.<kind>s``.
        package: Package whose modules hold the built-in classes; imported on the first look-up.
        base: Class that every entry derives from.
        file_hint: How a file of data is given, with ``{}`` in place of its path, where someone may
            take it for a name.
    """

    def __init__(self, kind: str, package: str, base: type[T], file_hint: str = "") -> None:
        self.kind, self.package, self.base = kind, package, base
        self._file_hint = file_hint
        self._classes: dict[str, type[T]] = {}
        self._is_loaded = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator that makes a class known as ``name``; a second use of a name raises."""

        def decorate(cls: type[T]) -> type[T]:
            if name in self._classes:
                raise UsageError(f"{self.kind} {name!r} is registered twice: by {cls.__module__}")
            cls.name = cls.spec = name  # type: ignore[attr-defined]
            self._classes[name] = cls
            return cls

        return decorate

    def names(self) -> list[str]:
        """Sorted names of the built-in and the installed classes."""
        self._load()
        return sorted(self._classes)

    def __getitem__(self, name: str) -> type[T]:
        """The class called ``name``, or the one in a file (``path/to/file.py:Name``).

        Raises:
            UsageError: Nothing has that name; the message gives the nearest one.
        """
        if ".py:" in name:
            return self._from_file(name)
        self._load()
        if name not in self._classes:
            raise UsageError(f"unknown {self.kind} {name!r}{self._hint(name)}")
        return self._classes[name]

    def _hint(self, name: str) -> str:
        """What may have been meant by a name that is none."""
        suffix = Path(name).suffix
        if suffix == ".py":
            return f"; a {self.kind} in a file is given as {name}:Name"
        if self._file_hint and (suffix or Path(name).exists()):
            return f"; {self._file_hint.format(name)}"
        return nearest(name, self._classes)

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        from importlib.metadata import entry_points  # 30 ms that most imports do not need

        for point in entry_points(group=f"gradmass.{self.kind}s"):
            try:
                cls = point.load()
            except Exception as error:
                self._is_loaded = False
                raise UsageError(
                    f"{self.kind} {point.name!r}: its entry point {point.value} does not load: "
                    f"{_one_line(error)}"
                ) from error
            if self._classes.get(point.name) is not cls:
                self.register(point.name)(cls)

    def _from_file(self, spec: str) -> type[T]:
        cls = load_object(self.kind, spec)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            path, _, name = spec.rpartition(":")
            raise UsageError(f"{self.kind} {spec!r}: {path} has no {self.base.__name__} {name!r}")
        if "name" not in cls.__dict__:
            cls.name = spec  # type: ignore[attr-defined]
        # Absolute, and the file even of a class it registers by a name: a record must lead back.
        path, _, name = spec.rpartition(":")
        cls.spec = f"{Path(path).resolve()}:{name}"  # type: ignore[attr-defined]
        return cls


def load_object(kind: str, spec: str) -> object:
    """What a user's file calls ``Name``, given ``path/to/file.py:Name``; None if nothing.

    Raises:
        UsageError: There is no such file, or it does not import.
    """
    path, _, name = spec.rpartition(":")
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{kind} {spec!r}: there is no file {path}")
    # Registered under its absolute path, so that one file is executed once a process.
    module_name = f"{USER_MODULE}{file.resolve()}"
    module = sys.modules.get(module_name)
    if module is None:
        module_spec = importlib.util.spec_from_file_location(module_name, file)
        assert module_spec is not None
        assert module_spec.loader is not None
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_name] = module
        try:
            module_spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise UsageError(
                f"{kind} {spec!r}: {path} does not import: {_one_line(error)}"
            ) from error
    return getattr(module, name, None)


def user_files() -> dict[str, str]:
    """SHA-256 of each user's file that was loaded in this process, by its absolute path."""
    paths = (name.removeprefix(USER_MODULE) for name in sys.modules if USER_MODULE in name)
    return {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in sorted(paths)}

"""Put a page where it belongs: whole or not at all, and never over something that is no page."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gradmass.types import UsageError


def write_page(out: Path, render: Callable[[], str], what: str) -> None:
    """Write an HTML page beside its place and rename it: a reader never sees half of it.

    Args:
        out: The HTML file; its folder is made if need be.
        render: Makes the page, once the place has proved good.
        what: What the page is called in messages.

    Raises:
        UsageError: The file cannot be written, or is there and no HTML page.
    """
    check_place(out, what)
    page = render()
    draft = out.with_name(f".{out.name}.draft")
    with _writing(out, what):
        draft.write_text(page, encoding="utf-8")
        draft.replace(out)


def check_place(out: Path, what: str) -> None:
    """Refuse a place where no page can be written, before time is spent on one.

    Args:
        out: The HTML file; its folder is made if need be.
        what: What the page is called in messages.

    Raises:
        UsageError: Its folder cannot be made, it is a folder, or another kind of file.
    """
    with _writing(out, what):
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        is_page = not out.exists() or _head(out).lower() == b"<!doctype html>"
    if not is_page:
        raise UsageError(f"{out} is there and no HTML page; name another file for the {what}")


def _head(file: Path) -> bytes:
    """The first bytes; a device may have no last one."""
    with file.open("rb") as opened:
        return opened.read(15)


@contextmanager
def _writing(out: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write the {what} {out}: {error.strerror}; name another file"
        ) from error

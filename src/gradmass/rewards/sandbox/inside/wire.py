"""Messages between processes: a length, then JSON. Never pickle, whoever sends."""

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

HEADER = struct.Struct(">I")
MAX_FDS = 8
CHUNK = 1 << 20


class MessageTooLong(ValueError):
    """The other side announced more than may be read."""


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one message, with open files of this process if it carries any."""
    data = _packed(message)
    # Files travel with the first byte; sendmsg may take less than all.
    sent = socket.send_fds(sock, [data], fds) if fds else 0
    sock.sendall(data[sent:])


def receive(
    sock: socket.socket, *, limit: int = CHUNK, deadline: float | None = None
) -> tuple[Any, list[int]]:
    """Wait for one message.

    Args:
        sock: A connected stream socket.
        limit: The longest message that is read, in bytes.
        deadline: When to give up, on the clock of ``time.monotonic``; None waits for ever.

    Returns:
        The message, and the files that came with it.

    Raises:
        EOFError: The other side is gone.
        TimeoutError: The deadline passed.
        MessageTooLong: The message is longer than ``limit``.
        ValueError: It is no JSON.
    """

    def read(size: int) -> bytes:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the deadline passed")
            sock.settimeout(left)
        return sock.recv(size)

    if deadline is not None:
        sock.settimeout(max(deadline - time.monotonic(), 1e-6))
    head, fds, _, _ = socket.recv_fds(sock, HEADER.size, MAX_FDS)
    return _read(read, limit, head), list(fds)


def write(fd: int, message: Any) -> None:
    """Send one message through a file."""
    data = memoryview(_packed(message))
    while data:
        data = data[os.write(fd, data) :]


def read(fd: int, limit: int) -> Any:
    """Wait for one message in a file; raises as ``receive`` does, which costs a child more."""
    return _read(lambda size: os.read(fd, size), limit, os.read(fd, HEADER.size))


def _packed(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return HEADER.pack(len(body)) + body


def _read(read: Callable[[int], bytes], limit: int, head: bytes) -> Any:
    if not head:
        raise EOFError("the other side is gone")
    (length,) = HEADER.unpack(head + _exactly(read, HEADER.size - len(head)))
    if length > limit:
        raise MessageTooLong(f"a message of {length} bytes")
    return json.loads(_exactly(read, length))


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    chunks = []
    while size:
        chunk = read(min(size, CHUNK))
        if not chunk:
            raise EOFError("the other side is gone")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)

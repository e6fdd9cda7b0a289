"""Messages between processes: a length, then JSON. Never pickle, whoever sends."""

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct(">I")
MAX_FDS = 8


class MessageTooLong(ValueError):
    """The other side announced more than may be read."""


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one message, with open files of this process if it carries any."""
    body = json.dumps(message).encode()
    data = HEADER.pack(len(body)) + body
    # Files travel with the first byte; sendmsg may take less than all.
    sent = socket.send_fds(sock, [data], fds) if fds else 0
    sock.sendall(data[sent:])


def receive(
    sock: socket.socket, *, limit: int = 1 << 20, deadline: float | None = None
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
    _arm(sock, deadline)
    head, fds, _, _ = socket.recv_fds(sock, HEADER.size, MAX_FDS)
    head += _exactly(sock, HEADER.size - len(head), deadline) if head else b""
    if not head:
        raise EOFError("the other side is gone")
    (length,) = HEADER.unpack(head)
    if length > limit:
        raise MessageTooLong(f"a message of {length} bytes")
    return json.loads(_exactly(sock, length, deadline)), list(fds)


def _exactly(sock: socket.socket, size: int, deadline: float | None) -> bytes:
    chunks = []
    while size:
        _arm(sock, deadline)
        chunk = sock.recv(min(size, 1 << 20))
        if not chunk:
            raise EOFError("the other side is gone")
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _arm(sock: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline passed")
    sock.settimeout(left)

"""Reads a request from a socket within limits of size and time."""

from __future__ import annotations

import io
import socket
import time
from http.client import HTTPException
from typing import Any

from statespan.view.limits import LARGEST_HEADERS, RECEIVE_SECONDS

DRAINED = 1 << 20  # bytes of a refused request that are read, so that its sender gets to see the answer
DRAIN_SECONDS = 0.5


class HeadersTooLargeError(HTTPException):
    """The request line and the headers are longer than the limit.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> theirs.sendall(b"GET / HTTP/1.1")
        >>> BoundedReader(TimedSocket(ours), headers=8).readline()
        Traceback (most recent call last):
        ...
        statespan.view.receive.HeadersTooLargeError: more than 8 bytes of headers
        >>> ours.close(), theirs.close()
        (None, None)
    """


class TimedSocket(io.RawIOBase):
    """The bytes that a socket receives until a deadline; later ones are a TimeoutError.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> theirs.sendall(b"ab")
        >>> TimedSocket(ours, seconds=1.0).read(2)
        b'ab'
        >>> ours.close(), theirs.close()
        (None, None)
    """

    def __init__(self, connection: socket.socket, seconds: float = RECEIVE_SECONDS) -> None:
        self.connection, self.deadline = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive some bytes; 0 at the end."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class BoundedReader(io.BufferedReader):
    """Reads a request: at most a number of bytes by ``readline``, that is, of headers.

    Example:
        >>> ours, theirs = socket.socketpair()
        >>> theirs.sendall(b"GET / HTTP/1.1" + bytes([13, 10]))
        >>> BoundedReader(TimedSocket(ours)).readline().split()
        [b'GET', b'/', b'HTTP/1.1']
        >>> ours.close(), theirs.close()
        (None, None)
    """

    def __init__(self, raw: TimedSocket, headers: int = LARGEST_HEADERS) -> None:
        super().__init__(raw)
        self.left = self.most = headers

    def readline(self, size: int | None = -1) -> bytes:
        """A line of the headers."""
        line = super().readline(self.left + 1)
        self.left -= len(line)
        if self.left < 0:
            raise HeadersTooLargeError(f"more than {self.most} bytes of headers")
        return line


def drain(connection: socket.socket) -> None:
    """Read what a client still sends, within limits, before the connection is closed."""
    deadline, left = time.monotonic() + DRAIN_SECONDS, DRAINED
    try:
        connection.shutdown(socket.SHUT_WR)
        while left > 0 and (seconds := deadline - time.monotonic()) > 0:
            connection.settimeout(seconds)
            received = len(connection.recv(1 << 16))
            if received == 0:
                return
            left -= received
    except OSError:
        pass

"""A device's connection to the server, which may break."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from ...errors import RequestError, ServerAwayError
from .messages import MOST_BYTES, FromDevice, FromServer, from_server, to_line

CONNECT_S = 5.0
PIECE = 65536


class Link(Protocol):
    """Carries messages, each of which may be lost, repeated or late."""

    def send(self, message: FromDevice) -> None:
        """Send a message."""

    def receive(self, timeout_s: float) -> FromServer | None:
        """Return the next message, None where none comes in time; with 0 only what has arrived."""

    def renew(self) -> None:
        """Use another connection from the next message on, if possible: nothing has come for long."""


class TcpLink:
    """A connection to a server; a broken one is replaced at the next message."""

    def __init__(
        self, host: str, port: int, greeting: Callable[[], FromDevice] | None = None, *, connect_s: float = CONNECT_S
    ) -> None:
        """Do not connect yet; `greeting` is the first message of each connection, `connect_s` also limits sending."""
        self._address, self._greeting, self._connect_s = (host, port), greeting, connect_s
        self._socket: socket.socket | None = None
        self._ready = selectors.DefaultSelector()
        self._buffer = b""

    def send(self, message: FromDevice) -> None:
        """Send a message; over a broken connection once more over a new one, where it may be lost.

        RequestError where it is too long; ServerAwayError: no server answers there.
        """
        line = to_line(message)
        for _ in range(2):
            try:
                self._connected().sendall(line)
                return
            except OSError:
                self.close()

    def receive(self, timeout_s: float) -> FromServer | None:
        """Return the next message, None where none comes in time; RequestError for a malformed line."""
        until = time.monotonic() + timeout_s
        while (line := self._line()) is None:
            left = max(until - time.monotonic(), 0.0)
            if self._socket is None:
                time.sleep(left)
                return None
            if not self._ready.select(left):
                return None
            self._read_more(self._socket)
        return from_server(line)

    def renew(self) -> None:
        """Close the connection, which may be dead; the next message opens a new one."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._ready.unregister(self._socket)
            with suppress(OSError):
                self._socket.close()
        self._socket, self._buffer = None, b""

    def _read_more(self, connection: socket.socket) -> None:
        try:
            piece = connection.recv(PIECE)
        except OSError:
            piece = b""
        if not piece:
            self.close()
        self._buffer += piece
        if len(self._buffer) > MOST_BYTES:
            raise RequestError(f"the server at {self._address[0]} sends no lines; is it one of spectune's?")

    def _line(self) -> bytes | None:
        line, found, rest = self._buffer.partition(b"\n")
        if not found:
            return None
        self._buffer = rest
        return line

    def _connected(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        try:
            made = socket.create_connection(self._address, timeout=self._connect_s)
        except OSError as error:
            host, port = self._address
            raise ServerAwayError(
                f"no server answers at {host}:{port} ({error}); start one: spectune edge serve"
            ) from error
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ready.register(made, selectors.EVENT_READ)
        self._socket = made
        if self._greeting is not None:
            made.sendall(to_line(self._greeting()))
        return made

"""Connections that are passed between the processes of one server, by the first line of a request.

Where several processes answer, each request belongs to some of them. Before the first request of a connection, and
before each later one that comes when all before are answered, the line says to whom; a process that is not meant passes
the very connection on (its descriptor, and what was read from it), so that no byte is relayed.
"""

import socket
from collections.abc import Callable
from typing import Any, Final

from pippin.api.http.protocol import BoundedConnection
from pippin.api.http.unread import UnreadAnswers

LINE_BYTES: Final = 8 << 10
"""Of a request's first line, for which is waited before it is known whose it is; a longer one stays here."""

PassOn = Callable[[bytes, int, bytes], bool]
"""Given a request's first line, its connection's descriptor and all that was read: passes a duplicate of the descriptor
on, or says that the request stays here."""


class PassedConnection(BoundedConnection):
    """A connection whose requests may belong to another process."""

    def __init__(self, pass_on: PassOn, closed: Callable[[], None], early: bytes, **arguments: Any) -> None:
        """`early`: what another process has read from it. `closed` is called when it is closed, or passed on."""
        super().__init__(**arguments)
        self._pass_on = pass_on
        self._closed = closed
        self._early = early
        self._line = b""
        self._in_head = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        if self._in_head or self._expects_more or self._unanswered or self._transport.is_closing():
            super().data_received(data)
            return
        data = self._line + data
        line, found, _ = data.partition(b"\r\n")
        if not found and len(data) <= LINE_BYTES and data[:1].isalpha():
            self._line = data
            return
        self._line = b""
        # What is still to be written would be lost with the connection.
        if not self._transport.get_write_buffer_size() and self._pass_on(line, self._descriptor(), data):
            self._transport.abort()
        else:
            super().data_received(data)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def _descriptor(self) -> int:
        connection: socket.socket = self._transport.get_extra_info("socket")
        return connection.fileno()


def passing(
    unread: UnreadAnswers, pass_on: PassOn, closed: Callable[[], None] = lambda: None
) -> type[PassedConnection]:
    """The class of a server's connections, which share the room for answers that wait to be read."""

    class Connection(PassedConnection):
        def __init__(self, *, early: bytes = b"", **arguments: Any) -> None:
            super().__init__(pass_on, closed, early, unread=unread, **arguments)

    return Connection


def request_of(line: bytes) -> tuple[bytes, bytes]:
    """Method and path of a request's first line, as it stands there; empty where it is no such line."""
    words = line.split(b" ")
    return (words[0], words[1].partition(b"?")[0]) if len(words) == 3 else (b"", b"")

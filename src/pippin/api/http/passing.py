"""Connections that are passed between the processes of one server, by the first line of a request.

With several API processes, the request line tells which of them may answer. It is checked for the first request of a
connection, and for each later one that arrives when all earlier ones are answered. A process that may not answer passes
on the connection itself (its descriptor and the bytes read from it), so that no byte is relayed.
"""

import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

from pippin.api.http.protocol import BoundedConnection
from pippin.api.http.unread import UnreadAnswers

LINE_BYTES: Final = 8 << 10
"""The longest request line that is awaited to tell where a request belongs; with a longer one it stays here."""
HELD_BYTES: Final = 64 << 10
"""Bytes held of requests that come behind an unanswered one; beyond that they stay in this process."""
PASSED: Final = "pippin.passed"
"""The key of a request's `PassedConnection` in the `state` of its scope."""


class Elsewhere(Protocol):
    """The other process, or processes."""

    def is_meant(self, line: bytes) -> bool:
        """Whether a request with this first line belongs there."""
        ...

    def may_be_meant(self, line: bytes) -> bool:
        """Whether a request that stays here may turn out to belong there once its body is known; kept until then."""
        ...

    def give(self, descriptor: int, data: bytes) -> bool:
        """Pass on a duplicate of a connection's descriptor and the bytes read from it; False if nobody takes it."""
        ...


class PassedConnection(BoundedConnection):
    """A connection whose requests may belong to another process."""

    def __init__(
        self,
        elsewhere: Elsewhere,
        closed: Callable[[], None],
        early: bytes,
        *,
        app_state: dict[str, Any],
        **arguments: Any,
    ) -> None:
        """`early`: bytes that another process has read. `closed` is called when the connection ends or is passed on."""
        super().__init__(app_state=app_state | {PASSED: self}, **arguments)
        self._elsewhere = elsewhere
        self._closed = closed
        self._early = early
        self._line = b""
        self._held = bytearray()  # bytes of requests behind the one being answered
        self._in_head = False
        self._kept: bytearray | None = None  # all bytes of the request being answered

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        early, self._early = self._early, b""
        if early:  # it was passed here because it belongs here
            self._keep(early)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed()

    def data_received(self, data: bytes) -> None:
        if self._between:
            # A client may have received its whole answer before the application is done with the request.
            self._held += data
            if len(self._held) <= HELD_BYTES:
                return
            data, self._held = bytes(self._held), bytearray()
        if self._in_head or self._expects_more or self._unanswered or self._transport.is_closing():
            if self._kept is not None:
                self._kept += data
            super().data_received(data)
            return
        data = self._line + data
        line, found, _ = data.partition(b"\r\n")
        if not found and len(data) <= LINE_BYTES and data[:1].isalpha():
            self._line = data
            return
        self._line = b""
        if self._elsewhere.is_meant(line) and self._give(data):
            return
        self._keep(data)

    def answered(self) -> None:
        super().answered()
        if self._held and not self._unanswered and not self.lost:
            data, self._held = bytes(self._held), bytearray()
            self.data_received(data)

    @property
    def _between(self) -> bool:
        """Whether all requests so far have arrived in full, and one is unanswered."""
        return bool(self._unanswered) and not (
            self._in_head or self._expects_more or self._transport.is_closing()
        )

    def stays(self) -> None:
        """Note that the request being answered belongs here."""
        self._kept = None

    def hand_over(self) -> bool:
        """Hand the request being answered to the other process, before anything of its reply is sent. Returns whether
        the other process took it; the connection is then closed here."""
        return self._kept is not None and self._give(bytes(self._kept))

    def _keep(self, data: bytes) -> None:
        line, _, _ = data.partition(b"\r\n")
        self._kept = bytearray(data) if self._elsewhere.may_be_meant(line) else None
        super().data_received(data)

    def _give(self, data: bytes) -> bool:
        # Bytes still to be written would be lost with the connection.
        if self._transport.get_write_buffer_size() or not self._elsewhere.give(self._descriptor(), data):
            return False
        self._kept = None
        self._transport.abort()
        return True

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
    unread: UnreadAnswers, elsewhere: Elsewhere, closed: Callable[[], None] = lambda: None
) -> type[PassedConnection]:
    """The class of a server's connections, which share one bound on unread answers."""

    class Connection(PassedConnection):
        def __init__(self, *, early: bytes = b"", **arguments: Any) -> None:
            super().__init__(elsewhere, closed, early, unread=unread, **arguments)

    return Connection


def request_of(line: bytes) -> tuple[bytes, bytes]:
    """Method and path of a request line, not decoded; empty if it is no request line."""
    words = line.split(b" ")
    return (words[0], words[1].partition(b"?")[0]) if len(words) == 3 else (b"", b"")

"""A transport that closes so that the client hears the answer."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

LINGER_SECONDS: Final = 2.0
"""For the client to read the answer and to stop sending; other HTTP servers have as much."""


class LingeringTransport:
    """A socket that is closed while bytes of the client are unread, or still come, is reset: the client then loses an
    answer that it has not read yet. So the end of the answer is sent first, and what comes is thrown away until the
    client closes or its time is over (RFC 9112, section 9.6)."""

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool]) -> None:
        """`unread`: whether more is expected from the client."""
        self._transport = transport
        self._unread = unread
        self._timer: asyncio.TimerHandle | None = None
        self.write = transport.write  # each piece of an answer passes it

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._timer is not None or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self._unread() or not self._transport.can_write_eof():  # TLS can't
            self._transport.close()
            return
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)
        self._transport.write_eof()
        self._transport.resume_reading()

    def closed(self) -> None:
        """The connection is gone."""
        if self._timer is not None:
            self._timer.cancel()

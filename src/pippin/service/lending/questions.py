"""Questions to the process at the other end of a channel, matched with their answers."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec

from pippin.core.errors import ServerError
from pippin.service.lending.channel import Channel
from pippin.service.lending.messages import FromOwner, Refused


class Questions:
    """All open questions of this process, identified by serial numbers."""

    def __init__(self, channel: Channel[FromOwner]) -> None:
        self._channel = channel
        self._serials = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def ask(
        self, make: Callable[[int], msgspec.Struct], called_off: Callable[[int], None] | None = None
    ) -> Any:
        """Send the message that `make` builds from a serial number, and return its answer. Raises `ServerError` for a
        refusal.

        `called_off` is called with the serial if the caller is cancelled; the answer may be under way by then.
        """
        serial = next(self._serials)
        self._asked[serial] = asyncio.get_running_loop().create_future()
        self._channel.send(make(serial))
        try:
            return await self._asked[serial]
        except asyncio.CancelledError:
            self._asked.pop(serial, None)
            if called_off is not None:
                called_off(serial)
            raise

    def answered(self, serial: int, answer: Any) -> None:
        """Pass an answer to its caller, if one still waits."""
        asked = self._asked.pop(serial, None)
        if asked is None or asked.done():
            return
        if isinstance(answer, Refused):
            asked.set_exception(ServerError.of(answer.error))
        else:
            asked.set_result(answer)

"""Knows whether the client is still there."""

import asyncio
from collections.abc import Callable

from starlette.types import Receive


class Presence:
    """Watches a connection after its body was read, and calls back once when the client hangs up."""

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._on_gone: Callable[[], object] | None = None
        self._watch = asyncio.create_task(self._wait(receive))

    def on_gone(self, call: Callable[[], object]) -> None:
        """Replaces what was to be called before."""
        self._on_gone = call
        if self.gone:
            call()

    def stop(self) -> None:
        self._on_gone = None
        self._watch.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()


class NobodyWaits(Presence):
    """For runs that go on without their client."""

    def __init__(self) -> None:
        self.gone = False

    def on_gone(self, call: Callable[[], object]) -> None:
        pass

    def stop(self) -> None:
        pass

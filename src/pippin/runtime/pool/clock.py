"""Time as the pool sees it, so that tests can turn the hands."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> float:
        """Seconds that only go forward."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer: ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)


class Changes:
    """Lets tasks wait for something in the pool to change."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """Something changed: everyone who waits looks again."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `true()`, which is asked after each change; whether it is."""
        deadline = None if seconds is None else self._clock.now() + seconds
        while not true():
            left = None if deadline is None else deadline - self._clock.now()
            if left is not None and left <= 0:
                return False
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(change)
            try:
                await self.first(change, left)
            finally:
                self._waiting.discard(change)
        return True

    async def first(self, future: "asyncio.Future[Any]", seconds: float | None) -> bool:
        """Wait for a future, at most so many seconds; False when the time was up before. Raises what it raises."""
        if seconds is None:
            await asyncio.shield(future)
            return True
        late: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def ring() -> None:
            if not late.done():
                late.set_result(None)

        timer = self._clock.call_later(seconds, ring)
        try:
            await asyncio.wait((future, late), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            late.cancel()
        if future.done():
            future.result()
            return True
        return False

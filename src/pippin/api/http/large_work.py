"""Does large work beside the event loop, one piece at a time."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

LARGE: Final = 64 << 10  # bytes; reading or drawing so many takes some milliseconds at worst

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")


class LargeWork:
    """Two pieces at once would be no faster, and the event loop would wait for the interpreter behind both."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def do(self, size: int, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """The result of `work`, which is done here and now where `size` is small."""
        if size <= LARGE:
            return work(*arguments)
        async with self._turn:
            return await asyncio.to_thread(work, *arguments)

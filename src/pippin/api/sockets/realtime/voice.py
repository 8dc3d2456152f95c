"""Speaks an answer while it is generated: whole sentences go to the speech model, and its sound to the client."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from pippin.api.sockets.realtime.conversation import SpokenText
from pippin.api.sockets.realtime.session import SoundFormat, bytes_per_ms

SENTENCE_END: Final = re.compile(r"""(?<=[.!?…])["'”’)\]]*\s+|(?<=[。！？])|\n+""")
SHORTEST: Final = 24
"""The fewest characters spoken at once, unless the answer ends: a single word would sound like its own sentence."""
DELTA: Final = 24_000
"""Bytes of sound in one event: half a second at 24 kHz."""

Speak = Callable[[str], AsyncIterator[bytes]]
"""The sound of a text, piece by piece."""


class Voice:
    """Speaks one message. `say` adds text; `finish` waits until all of it was spoken."""

    def __init__(
        self, speak: Speak, format: SoundFormat, longest: int, send: Callable[[str], Awaitable[None]]
    ) -> None:
        """`longest` is the most characters for one call of the speech model. `send` gets sound in base64."""
        self.spoken: list[SpokenText] = []
        self._speak = speak
        self._rate = bytes_per_ms(format)
        self._longest = longest
        self._send = send
        self._written = ""
        self._sentences: asyncio.Queue[str | None] = asyncio.Queue()
        self._speaking = asyncio.create_task(self._run(), name="voice")

    def say(self, text: str) -> None:
        self._written += text
        while (cut := sentence_length(self._written, self._longest)) is not None:
            self._sentences.put_nowait(self._written[:cut])
            self._written = self._written[cut:]

    async def finish(self) -> None:
        """Wait until all text was spoken. Raises `ServerError` if the speech model fails."""
        for start in range(0, len(self._written), self._longest):
            self._sentences.put_nowait(self._written[start : start + self._longest])
        self._sentences.put_nowait(None)
        await self._speaking

    async def close(self) -> None:
        """Stop speaking; a second call does nothing."""
        self._speaking.cancel()
        await asyncio.gather(self._speaking, return_exceptions=True)

    async def _run(self) -> None:
        while (sentence := await self._sentences.get()) is not None:
            begin = self.spoken[-1].end if self.spoken else 0.0
            self.spoken.append(SpokenText(sentence, begin, begin))
            if not any(letter.isalnum() for letter in sentence):
                continue
            size = 0
            async for data in self._speak(sentence.strip()):
                for start in range(0, len(data), DELTA):
                    piece = data[start : start + DELTA]
                    size += len(piece)
                    self.spoken[-1] = SpokenText(sentence, begin, begin + size / self._rate)
                    await self._send(base64.b64encode(piece).decode())


def sentence_length(text: str, longest: int) -> int | None:
    """How many characters of an unfinished text can be spoken already; None to wait for more text."""
    for end in SENTENCE_END.finditer(text, 0, longest):
        if end.end() >= SHORTEST and end.end() < len(text):
            return end.end()
    if len(text) < longest:
        return None
    blank = text.rfind(" ", 1, longest)
    return blank + 1 if blank > 0 else longest

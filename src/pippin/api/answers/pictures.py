"""Keeps generated pictures for a while, so that clients who asked for an address can fetch them."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LIFETIME: Final = 3600.0  # seconds, as OpenAI keeps them
MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class KeptPicture:
    data: bytes
    media: str
    until: float


class PictureShelf:
    """In memory; the oldest go first when it is full. Names have 128 random bits, so nobody finds another's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most_bytes: int = MOST_BYTES) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, KeptPicture] = OrderedDict()
        self._bytes = 0

    def put(self, data: bytes, format: str) -> str:
        """Its name, good for an hour."""
        name = f"{secrets.token_urlsafe(16)}.{format}"
        self._kept[name] = KeptPicture(data, f"image/{format}", self._clock() + LIFETIME)
        self._bytes += len(data)
        self._drop_old()
        return name

    def get(self, name: str) -> KeptPicture | None:
        self._drop_old()
        return self._kept.get(name)

    def _drop_old(self) -> None:
        now = self._clock()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.until > now and (self._bytes <= self._most_bytes or len(self._kept) == 1):
                return
            self._kept.popitem(last=False)
            self._bytes -= len(oldest.data)

"""The sound that a client sends: the input buffer, and recordings taken from it as WAVE files for engines."""

import base64
import binascii
import struct
from dataclasses import dataclass
from typing import Final

from pippin.api.dialects.shared.fields import invalid
from pippin.api.sockets.realtime.session import Pcm, SoundFormat, bytes_per_ms
from pippin.core.errors import ServerError

LONGEST_MS: Final = 10 * 60 * 1000
"""The longest sound that may wait to be committed."""
SHORTEST_MS: Final = 100
"""OpenAI's limit: a turn must be at least this long."""

WAVE_CODES: Final = {"Pcm": 1, "Pcma": 6, "Pcmu": 7}
"""The format codes of WAVE headers for linear samples, A-law and u-law (RFC 2361)."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Sound without a header."""

    data: bytes
    format: SoundFormat

    @property
    def milliseconds(self) -> int:
        return len(self.data) // bytes_per_ms(self.format)

    def wav(self) -> bytes:
        """The sound as a WAVE file of one channel."""
        return wave_header(self.format, len(self.data)) + self.data


def wave_header(format: SoundFormat, size: int) -> bytes:
    """The header of a WAVE file of one channel with `size` bytes of sound."""
    width = 2 if isinstance(format, Pcm) else 1
    code = WAVE_CODES[type(format).__name__]
    body = struct.pack("<HHIIHH", code, 1, format.rate, format.rate * width, width, 8 * width)
    return (
        b"RIFF"
        + struct.pack("<I", 20 + len(body) + size)
        + b"WAVEfmt "
        + struct.pack("<I", len(body))
        + body
        + b"data"
        + struct.pack("<I", size)
    )


def sound_of(text: str, format: SoundFormat, path: str = "audio") -> bytes:
    """The sound in a base64 text. Raises `ServerError`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(path, "must be valid base64.") from None
    if isinstance(format, Pcm) and len(data) % 2:
        raise invalid(path, "must hold whole samples of 16 bits.")
    return data


class InputBuffer:
    """Sound that is not committed yet. Milliseconds count from the first sound of the connection."""

    def __init__(self, format: SoundFormat) -> None:
        self.format: SoundFormat = format
        self._data = bytearray()
        self._begin = 0  # of the bytes in the buffer

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def begin(self) -> int:
        return self._begin

    @property
    def end(self) -> int:
        return self._begin + len(self._data) // self._rate

    @property
    def is_nearly_full(self) -> bool:
        """Whether there is room for less than ten seconds."""
        return self.end - self._begin > LONGEST_MS - 10_000

    def append(self, data: bytes) -> None:
        """Add sound. Raises `ServerError` if the buffer is full."""
        if self.size + len(data) > LONGEST_MS * self._rate:
            raise ServerError(
                "too_large",
                f"The input buffer holds {LONGEST_MS // 60_000} minutes of sound at most; commit it, or clear it.",
                "audio",
                code="input_audio_buffer_full",
            )
        self._data += data

    def drop_before(self, moment: int) -> int:
        """Drop the sound before a moment. Returns the number of bytes dropped."""
        size = min(max(0, moment - self._begin) * self._rate, len(self._data))
        size -= size % self._rate
        del self._data[:size]
        self._begin += size // self._rate
        return size

    def take(self, until: int | None = None) -> Recording:
        """Remove and return the sound up to a moment, or all of it."""
        size = len(self._data) if until is None else max(0, until - self._begin) * self._rate
        recording = Recording(bytes(self._data[:size]), self.format)
        begin = self.end if until is None else until
        del self._data[:size]
        self._begin = begin
        return recording

    def change(self, format: SoundFormat) -> int:
        """Set the format of later sound. A change drops the buffered sound; returns the number of bytes dropped."""
        if format == self.format:
            return 0
        dropped = self.take()
        self.format = format
        return len(dropped.data)

    @property
    def _rate(self) -> int:
        return bytes_per_ms(self.format)

"""The sound that a client sends: the input buffer, and recordings taken from it as WAVE files for engines."""

import base64
import binascii
import io
import wave
from dataclasses import dataclass
from typing import Final

from pippin.api.dialects.shared.fields import invalid
from pippin.api.sockets.realtime.session import BYTES_PER_MS, PCM
from pippin.core.errors import ServerError

LONGEST_MS: Final = 10 * 60 * 1000
"""The longest sound that may wait to be committed."""
SHORTEST_MS: Final = 100
"""OpenAI's limit: a turn must be at least this long."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Sound without a header."""

    data: bytes

    def wav(self) -> bytes:
        """The sound as a WAVE file of one channel."""
        file = io.BytesIO()
        with wave.open(file, "wb") as out:
            out.setparams((1, 2, PCM.rate, 0, "NONE", ""))
            out.writeframes(self.data)
        return file.getvalue()


def sound_of(text: str) -> bytes:
    """The sound in a base64 text. Raises `ServerError`."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("audio", "must be valid base64.") from None
    if len(data) % 2:
        raise invalid("audio", "must hold whole samples of 16 bits.")
    return data


class InputBuffer:
    """Sound that is not committed yet."""

    def __init__(self) -> None:
        self._data = bytearray()

    @property
    def milliseconds(self) -> int:
        return len(self._data) // BYTES_PER_MS

    def append(self, data: bytes) -> None:
        """Add sound. Raises `ServerError` if the buffer is full."""
        if len(self._data) + len(data) > LONGEST_MS * BYTES_PER_MS:
            raise ServerError(
                "too_large",
                f"The input buffer holds {LONGEST_MS // 60_000} minutes of sound at most; commit it, or clear it.",
                "audio",
                code="input_audio_buffer_full",
            )
        self._data += data

    def take(self) -> Recording:
        """Remove and return the sound."""
        recording = Recording(bytes(self._data))
        self._data.clear()
        return recording

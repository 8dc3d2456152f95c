"""Frames in a stream of bytes: four bytes of length (unsigned, big-endian), then that many bytes."""

from collections.abc import Iterator
from typing import Final

HEADER: Final = 4
LARGEST: Final = 1 << 30  # bytes; more than any request's media, less than what a corrupt length claims


class FrameError(Exception):
    """The stream does not hold frames; nothing after this point can be trusted."""


def frame(payload: bytes) -> bytes:
    """A payload with its length before it. Raises `FrameError` for one that is too large."""
    return header(payload) + payload


def header(payload: bytes) -> bytes:
    """The length of a payload, as it stands before it. Raises `FrameError` for one that is too large."""
    if len(payload) > LARGEST:
        raise FrameError(f"A frame of {len(payload)} bytes is larger than the limit of {LARGEST}.")
    return len(payload).to_bytes(HEADER, "big")


class FrameBuffer:
    """Gathers bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add bytes; yields the payload of each frame that is now complete. Raises `FrameError`."""
        self._bytes += data
        position = 0
        try:
            while len(self._bytes) - position >= HEADER:
                length = int.from_bytes(self._bytes[position : position + HEADER], "big")
                if length > LARGEST:
                    raise FrameError(f"A frame claims {length} bytes, more than the limit of {LARGEST}.")
                end = position + HEADER + length
                if len(self._bytes) < end:
                    break
                payload = bytes(memoryview(self._bytes)[position + HEADER : end])
                position = end
                yield payload
        finally:
            del self._bytes[:position]

    @property
    def partial(self) -> bool:
        """Whether the stream, if it ended here, would end inside a frame."""
        return bool(self._bytes)

"""Files of sound and of video, opened through PyAV."""

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import av


def open_container(data: bytes, **options: str) -> "av.container.InputContainer":
    """Open a file in memory with FFmpeg's `options`. A file that names others, as a playlist does, opens none of them.

    Raises `av.FFmpegError`.
    """
    import av

    # PyAV 19 reads tags that are not UTF-8 by itself, and has no argument for them.
    tags = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
    return av.open(io.BytesIO(data), mode="r", options={"protocol_whitelist": "none", **options}, **tags)


def packets_of(container: "av.container.InputContainer", stream: Any) -> "Iterator[av.Packet[Any]]":
    """The packets of a stream, up to where the container can no longer be read; the last one is empty."""
    import av

    packets = container.demux(stream)
    with suppress(av.FFmpegError):
        yield from packets


def frames_of(container: "av.container.InputContainer", stream: Any) -> Iterator[Any]:
    """The frames of all packets of a stream that can be decoded."""
    import av

    for packet in packets_of(container, stream):
        with suppress(av.FFmpegError):
            yield from stream.decode(packet)
    with suppress(av.FFmpegError):
        yield from stream.decode(None)

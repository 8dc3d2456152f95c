"""Files of sound and of video, opened through PyAV."""

import io
from typing import TYPE_CHECKING

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

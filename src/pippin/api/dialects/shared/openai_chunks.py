"""Writes the chunks of OpenAI's two completion APIs: what stands around their choices, and how a stream ends."""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pippin.api.dialects.shared.frames import COMMENT, DONE
from pippin.api.dialects.shared.openai_answers import encode_error, timings_body, usage_body
from pippin.api.dialects.shared.openai_fields import StreamShape
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, Finished, Usage

_encode = msgspec.json.encode


class ChunkHead(Struct, kw_only=True):
    """The fields that all chunks of a stream begin with."""

    id: str
    object: str
    created: int  # seconds since the epoch
    model: str
    system_fingerprint: str


class ChunkEncoder:
    """The part of a `StreamEncoder` that both APIs have alike; subclasses draw the choices.

    Chunks are written between a head and a tail that are made once, so that a token costs one short string.
    """

    def __init__(self, head: ChunkHead, stream: StreamShape, *, requests: int, choices: int) -> None:
        """`choices` counts those of all requests."""
        self._stream = stream
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        # With include_usage every chunk but the last says `"usage":null`.
        self._tail = b'],"usage":null}\n\n' if stream.usage else b"]}\n\n"
        self._prompt_tokens = 0
        self._completed = [0] * choices  # completion tokens so far
        self._finished: list[list[Finished]] = [[] for _ in range(requests)]
        self._failed = False

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._prompt_tokens = sum(each.prompt_tokens for each in accepted)
        return b""

    def keep_alive(self) -> bytes:
        return COMMENT

    def failed(self, report: ErrorReport) -> bytes:
        self._failed = True
        return b"data: " + encode_error(report) + b"\n\n"

    def end(self) -> bytes:
        if self._failed or not self._stream.usage:
            return DONE
        usage = _encode(usage_body([[each.usage for each in choices] for choices in self._finished]))
        timings = _encode(timings_body(self._finished[0]))
        return self._head + b'],"usage":' + usage + b',"timings":' + timings + b"}\n\n" + DONE

    def _tail_of_chunk(self) -> bytes:
        if not self._stream.continuous_usage:
            return self._tail
        so_far = Usage(prompt_tokens=self._prompt_tokens, completion_tokens=sum(self._completed))
        return b'],"usage":' + _encode(usage_body([[so_far]])) + b"}\n\n"

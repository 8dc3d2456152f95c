"""Writes the chunks of OpenAI's two completion APIs: what stands around their choices, and how a stream ends."""

import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pippin.api.dialects.shared.frames import COMMENT, DONE
from pippin.api.dialects.shared.openai_answers import encode_error, timings_body, usage_body
from pippin.api.dialects.shared.openai_fields import StreamShape
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, Finished, Progress, Usage

_encode = msgspec.json.encode


class ChunkHead(Struct, kw_only=True):
    """The fields that all chunks of a stream begin with."""

    id: str
    object: str
    created: int  # seconds since the epoch
    model: str
    system_fingerprint: str


class PromptProgress(Struct, kw_only=True):
    """How far a prompt is, in tokens, as llama.cpp tells it for `return_progress`."""

    total: int
    cache: int  # of `processed`: found in the prefix cache
    processed: int
    time_ms: int  # since the prompt was accepted


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
        self._started = 0.0

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._prompt_tokens = sum(each.prompt_tokens for each in accepted)
        self._started = time.monotonic()
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

    def _progress(self, choice: bytes, progress: Progress) -> bytes:
        """A chunk that tells how far the prompt of a choice is, where the client wants to know."""
        if not self._stream.progress:
            return b""
        told = PromptProgress(
            total=progress.total,
            cache=progress.cached,
            processed=progress.done,
            time_ms=round((time.monotonic() - self._started) * 1000),
        )
        tail = self._tail_of_chunk().removesuffix(b"}\n\n")
        return self._head + choice + tail + b',"prompt_progress":' + _encode(told) + b"}\n\n"

    def _tail_of_chunk(self) -> bytes:
        if not self._stream.continuous_usage:
            return self._tail
        so_far = Usage(prompt_tokens=self._prompt_tokens, completion_tokens=sum(self._completed))
        return b'],"usage":' + _encode(usage_body([[so_far]])) + b"}\n\n"

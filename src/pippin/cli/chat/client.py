"""Streams answers from a server through its Chat Completions API."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from pippin.cli.running import Client
from pippin.core.decoding import from_json
from pippin.core.errors import ServerError

Json = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, or the name of a tool that it calls."""

    kind: Literal["text", "reasoning", "call"]
    text: str


class Ended(Struct, frozen=True):
    """The end of an answer, with its usage. The rate is in tokens per second."""

    reason: str | None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    accepted_tokens: int = 0  # of those that speculative decoding proposed
    rejected_tokens: int = 0
    rate: float = 0.0


Part = Piece | Ended


def answer(client: Client, body: Json) -> Iterator[Part]:
    """Stream an answer; leaving the iterator cancels it. Raises `ServerError` if the server refuses."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with client.answering("POST", "/v1/chat/completions", body) as response:
        yield from parts(line.decode().rstrip("\r\n") for line in response)


def parts(lines: Iterator[str]) -> Iterator[Part]:
    """Read the frames of a streamed answer."""
    reason: str | None = None
    for line in lines:
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        chunk = from_json(data, Json)
        if "error" in chunk:
            raise ServerError("internal", str(chunk["error"].get("message", chunk["error"])))
        for choice in chunk.get("choices", ()):
            reason = choice.get("finish_reason") or reason
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content"):
                yield Piece("reasoning", thought)
            if text := delta.get("content"):
                yield Piece("text", text)
            for call in delta.get("tool_calls") or ():
                if name := (call.get("function") or {}).get("name"):  # the first piece of a call has it
                    yield Piece("call", name)
        if usage := chunk.get("usage"):
            details = usage.get("completion_tokens_details") or {}
            yield Ended(
                reason,
                usage.get("prompt_tokens", 0),
                (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
                usage.get("completion_tokens", 0),
                details.get("accepted_prediction_tokens", 0),
                details.get("rejected_prediction_tokens", 0),
                (chunk.get("timings") or {}).get("predicted_per_second", 0.0),
            )

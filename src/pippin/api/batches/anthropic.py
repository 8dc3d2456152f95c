"""The lines of a batch in Anthropic's format: requests and results.

Formats are those of https://docs.anthropic.com/en/api/creating-message-batches.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from pippin.api.batches.store import Line, Used
from pippin.api.dialects.messages.encode import error_of
from pippin.api.dialects.shared.fields import invalid
from pippin.core.decoding import from_json
from pippin.core.errors import ErrorReport

PATH: Final = "/v1/messages"
MOST_REQUESTS: Final = 100_000
"""Anthropic's limit."""


class GivenRequest(Struct, kw_only=True):
    custom_id: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: msgspec.Raw


class GivenBatch(Struct, kw_only=True):
    requests: Annotated[list[GivenRequest], Meta(min_length=1, max_length=MOST_REQUESTS)]


def check_requests(given: Iterable[GivenRequest]) -> None:
    """Raises `ServerError` for requests that have duplicate ids or invalid parameters, or ask for a stream."""
    seen: set[str] = set()
    for place, request in enumerate(given):
        if request.custom_id in seen:
            raise invalid(
                f"requests[{place}].custom_id", "is that of an earlier request too; give each its own."
            )
        seen.add(request.custom_id)
        try:
            params = from_json(request.params, dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise invalid(f"requests[{place}].params", "must be an object of JSON in UTF-8.") from None
        if bytes(params.get("stream", b"false")) not in (b"false", b"null"):
            raise invalid(f"requests[{place}].params.stream", "must be false: batches give whole answers.")


def file_of(requests: Iterable[GivenRequest]) -> Iterator[bytes]:
    """The bytes of the requests as a JSON Lines file."""
    for request in requests:
        yield msgspec.json.encode(request).replace(b"\n", b" ") + b"\n"


def request_of(text: bytes) -> tuple[str, bytes]:
    """The path and the body of a line that `file_of` made."""
    return PATH, bytes(from_json(text, GivenRequest).params)


class AnthropicResults:
    """See `Answers`; these results are not files, but encoded on request."""

    def __init__(self, unanswered: str) -> None:
        """`unanswered`: the result of lines without an answer, `canceled` or `expired`."""
        self._unanswered = unanswered

    def is_error(self, line: Line) -> bool:
        return False

    def used(self, line: Line) -> Used:
        """Count nothing: each message reports its own usage, and this API has no total."""
        return Used()

    def refusal(self, report: ErrorReport, request: str) -> bytes:
        return msgspec.json.encode(error_of(report, request))

    def result(self, line: Line) -> bytes:
        result: dict[str, Any]
        if line.status is None:
            result = {"type": self._unanswered}
        elif 200 <= line.status < 300:
            result = {"type": "succeeded", "message": msgspec.Raw(line.reply or b"{}")}
        else:
            result = {"type": "errored", "error": msgspec.Raw(line.reply or b"{}")}
        return msgspec.json.encode({"custom_id": line.custom_id, "result": result})

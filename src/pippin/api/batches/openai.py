"""The lines of a batch in OpenAI's format: requests, and their answers in the result files.

Formats are those of https://platform.openai.com/docs/api-reference/batch.
"""

from collections.abc import Iterator
from typing import IO, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.batches.store import Line, Problem
from pippin.api.http.body import BYTE_ORDER_MARK
from pippin.core.decoding import from_json

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
MOST_LINES: Final = 50_000
"""OpenAI's limit."""
MOST_PROBLEMS: Final = 100
BLANKS: Final = b" \t\r\n"
"""The whitespace of JSON."""


class RequestLine(Struct, kw_only=True):
    """One line of an input file."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=512)]
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


def read_lines(file: IO[bytes], endpoint: str) -> tuple[list[Line], list[Problem]]:
    """The requests of an input file, and its problems; if there are any problems, there are no requests."""
    lines: list[Line] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    for number, (start, length, text) in enumerate(spans(file)):
        if number >= MOST_LINES:
            problems.append(
                Problem(code="too_many_tasks", message=f"The file has more than {MOST_LINES} requests.")
            )
            break
        found = _read(text, endpoint, seen, number + 1)
        if isinstance(found, RequestLine):
            seen.add(found.custom_id)
            lines.append(Line(number, found.custom_id, start, length))
        elif len(problems) < MOST_PROBLEMS:
            problems.append(found)
    if not lines and not problems:
        problems.append(Problem(code="empty_file", message="The file has no request."))
    return ([] if problems else lines), problems


def _read(text: bytes, endpoint: str, seen: set[str], number: int) -> RequestLine | Problem:
    """The request of a line, or why it is none."""
    try:
        line = from_json(text, RequestLine)
        body = from_json(line.body, dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return Problem(code="invalid_json_line", message=f"The line is no request: {error}.", line=number)
    if line.url.rstrip("/") != endpoint:
        message = f"The URL is {line.url[:128]!r}, but the batch is for {endpoint}."
        return Problem(code="mismatched_url", message=message, line=number, param="url")
    if line.custom_id in seen:
        message = f"The custom_id {line.custom_id!r} is that of an earlier line too; give each its own."
        return Problem(code="duplicate_custom_id", message=message, line=number, param="custom_id")
    if bytes(body.get("stream", b"false")) not in (b"false", b"null"):
        return Problem(
            code="invalid_request", message="Batches give whole answers.", line=number, param="body.stream"
        )
    return line


def is_error(line: Line) -> bool:
    """Whether the result of a line belongs in the error file."""
    return line.status is None or not 200 <= line.status < 300


def result(line: Line) -> bytes:
    """A line of the result file; `line.status` is None if the line was not answered."""
    response: dict[str, Any] | None = None
    error: dict[str, str] | None = None
    if line.status is None:
        message = "This request could not be answered before the batch expired."
        error = {"code": "batch_expired", "message": message}
    else:
        body = msgspec.Raw(_json(line.reply or b""))
        response = {"status_code": line.status, "request_id": line.request or "", "body": body}
    request = line.request or f"{line.number:032x}"
    return msgspec.json.encode(
        {"id": f"batch_req_{request}", "custom_id": line.custom_id, "response": response, "error": error}
    )


def _json(body: bytes) -> bytes:
    """The body in one line; a body that is not JSON becomes a JSON string."""
    try:
        value: Any = from_json(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.encode(body.decode("utf-8", "replace"))
    return body if b"\n" not in body else msgspec.json.encode(value)


def request_of(text: bytes) -> tuple[str, bytes]:
    """The path and the body of a line that was read before."""
    line = from_json(text, RequestLine)
    return line.url.rstrip("/"), bytes(line.body)


def spans(file: IO[bytes]) -> Iterator[tuple[int, int, bytes]]:
    """The lines of a file that are not blank: the start, the length and the stripped bytes of each. A byte-order mark
    is no part of the first."""
    start = 0
    for raw in file:
        line = raw if start else raw.removeprefix(BYTE_ORDER_MARK)
        text = line.strip(BLANKS)
        if text:
            yield start + len(raw) - len(line), len(line), text
        start += len(raw)

"""The closed list of errors that a client can meet, each with its HTTP status, and what of an exception may be told."""

import re
import traceback
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

ErrorKind = Literal[
    "invalid_request",
    "unsupported",
    "context_length_exceeded",
    "authentication",
    "permission",
    "not_found",
    "model_not_found",
    "method_not_allowed",
    "timeout",
    "conflict",
    "too_large",
    "unsupported_media_type",
    "load_failed",
    "rate_limited",
    "header_too_large",
    "cancelled",
    "overloaded",
    "worker_died",
    "internal",
]

STATUS: Final[dict[ErrorKind, int]] = {
    "invalid_request": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "authentication": 401,
    "permission": 403,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "timeout": 408,
    "conflict": 409,
    "too_large": 413,
    "unsupported_media_type": 415,
    "load_failed": 424,
    "rate_limited": 429,
    "header_too_large": 431,
    "cancelled": 499,
    "overloaded": 503,
    "worker_died": 500,
    "internal": 500,
}


class ErrorReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A `ServerError` as a value: it crosses the socket, and a dialect renders it."""

    kind: ErrorKind
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None  # seconds
    blameless: bool = False  # a worker was lost because it was killed from outside, which no request causes

    @property
    def status(self) -> int:
        return STATUS[self.kind]


class FieldName(Struct, frozen=True):
    """A field's name in the client's API, where it differs from ours."""

    own: str  # `messages`
    client: str  # `input`


_MESSAGES: Final = re.compile(
    r"\bmessages(?:\[\d+\]|\.content)+|(?<=['`])messages(?=['`])|(?<=your )messages\b|(?<=of the )messages\b"
)
"""Matches `messages` where it names the field; elsewhere the word is plain English."""


def renamed(report: ErrorReport, names: tuple[FieldName, ...]) -> ErrorReport:
    """The report with fields named as the client named them.

    A path inside the messages is replaced by the client's field as a whole, because with other APIs the messages do not
    match one by one what the client wrote. Below other fields the path is kept.
    """
    given = report.param or ""
    found = next((name for name in names if re.match(rf"{re.escape(name.own)}(?!\w)", given)), None)
    if found is None:
        return report
    if found.own == "messages":
        param = found.client
        told = _MESSAGES
    else:
        param = found.client + given[len(found.own) :]
        told = re.compile(rf"\b{re.escape(found.own)}\b")
    message = told.sub(lambda _: found.client, report.message)
    return replace(report, message=message, param=param)


SHUTTING_DOWN: Final = ErrorReport(
    kind="overloaded", message="The server is shutting down; try again in a moment.", retry_after=10.0
)
"""Sent to everyone who asks, or is still being answered, when the server stops."""


class ServerError(Exception):
    """An error that the client can fix, or must be told.

    `message` is a whole sentence that names the field and the remedy. `param` is the field's path
    (`messages[0].content`). `code` overrides the kind where an API's contract documents a code.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        param: str | None = None,
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.report = ErrorReport(kind=kind, message=message, param=param, code=code, retry_after=retry_after)

    @classmethod
    def of(cls, report: ErrorReport) -> "ServerError":
        return cls(
            report.kind, report.message, report.param, code=report.code, retry_after=report.retry_after
        )


_FOLDERS: Final = re.compile(r"(?<![\w.:/])~?/(?:[^\s/'\":,;()]+/)+")


def trace_of(error: BaseException) -> str:
    """The traceback of an exception without any messages: causes first, the exception itself last."""
    parts = []
    current: BaseException | None = error
    while current is not None:
        frames = "".join(traceback.format_tb(current.__traceback__))
        parts.append(f"Traceback (most recent call last):\n{frames}{type(current).__name__}")
        if isinstance(current, BaseExceptionGroup):
            parts += [trace_of(inner) for inner in current.exceptions]
        hidden = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or hidden
    return "\n\n".join(reversed(parts))


def without_folders(text: str, *folders: str | None) -> str:
    """The message with file names but without their folders, which clients need not know.

    `folders` are removed first, because a path with spaces cannot be told from other words.
    """
    for folder in filter(None, folders):
        text = text.replace(folder.rstrip("/") + "/", "").replace(folder, "the model")
    return _FOLDERS.sub("", text)

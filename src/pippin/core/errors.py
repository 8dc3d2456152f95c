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


DEVICE_FAILURE: Final = re.compile(
    r"\[metal(\]|::)|\[malloc|command buffer|insufficient memory|out of memory|cuda ?error|\b(cuda|cudnn|cublas)\w+\("
    r"|\b(?-i:cu[A-Z])\w+\(",
    re.IGNORECASE,
)
"""In the message of what MLX raises when the device fails. The model may be sound."""

MENDS: Final = "unload other models, or take a smaller quantisation"

WAYS_OUT: Final = {
    r"impacting ?interactivity|gpu ?(timeout|hang)|callbackerror(timeout|hang)": "macOS ended its work on the GPU, as "
    "it took long and kept the display waiting: start the server with AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1 in its "
    "environment, or lower --prefill-step-size.",
    "maximum allowed buffer size": "It asked for an array larger than Metal allows: send less at once, or lower "
    "--prefill-step-size or --max-num-seqs.",
    r"\[metal::malloc\] resource limit": "It held more arrays than Metal allows: lower the model's --cache-memory-mb "
    "or --memory-bytes.",
    r"insufficient memory|outofmemory|out of memory|\[metal::malloc\]|unable to allocate": "The GPU's memory was full: "
    f"{MENDS}, or lower the model's --memory-bytes.",
    "innocent ?victim|victim of gpu error|submissions ?ignored|causing prior": "The GPU failed in other work, and this "
    "was dropped with it: send the request again, and see what else uses the GPU.",
    "callbackerrorpagefault|gpu address fault|illegal memory access|unable to (build metal library|load kernel|load "
    "function)|load the (default )?metallib|no kernel image": "A kernel of the GPU is missing or has failed: install "
    "another version of mlx, or update macOS or the driver.",
}
"""Words, and the way out where they are said; of several, the first counts."""


def is_of_device(error: BaseException) -> bool:
    """Whether an error tells of the device: of its memory, or of a killed command."""
    return DEVICE_FAILURE.search(str(error)) is not None


def way_out(text: str) -> str | None:
    """The way out of what these words tell of; None if it is not known."""
    return next((way for words, way in WAYS_OUT.items() if re.search(words, text, re.IGNORECASE)), None)


def with_way_out(message: str) -> str:
    """The message, and the way out of what it tells of."""
    way = way_out(message)
    return message if way is None or way in message else f"{message.rstrip('. ')}. {way}"

"""What a dialect is: a decoder of request bodies and an encoder of events, with nothing of HTTP in either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from pippin.api.dialects.shared.fields import Contract
from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport
from pippin.core.events import Accepted, Event
from pippin.core.requests import GenerationRequest

Shape = TypeVar("Shape")


class History(Protocol):
    """The conversations that the caller stored earlier, for dialects that continue one by id.

    Items are in the dialect's own form. All methods raise `ServerError("not_found")` for an id that is unknown, or
    another caller's.
    """

    def items(self, response_id: str) -> list[dict[str, Any]]:
        """The items of the conversation up to and with that response."""
        ...

    def conversation(self, conversation_id: str) -> list[dict[str, Any]]:
        """The items of the conversation that has this id."""
        ...

    def item(self, item_id: str) -> dict[str, Any]:
        """The item that has this id, in any of the caller's conversations."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeContext:
    """What a decoder may know of a request beside its body."""

    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    query: Mapping[str, str] = field(default_factory=dict)
    history: History | None = None
    stream_usage: bool = False  # tell it at the end of streams that did not ask, as the operator has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[Shape]):
    """The requests that a body stands for.

    Most dialects make one request of a body; Completions makes one for each prompt. `shape` is what the dialect's
    encoder needs to know of the body. `ignored` holds the names of fields that the contract does not know, `warnings`
    whole sentences; both go to the log.
    """

    requests: tuple[GenerationRequest, ...]
    shape: Shape
    stream: bool = False
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The facts of a run that its encoder writes into the answer; all are known before the model is loaded."""

    id: str  # without the dialect's prefix; letters, digits, "-" and "_"
    created: int  # seconds since the epoch
    model: str  # the id under which the model is served
    fingerprint: str  # of Pippin and the model as it runs
    known: bool = True  # False for a name that nobody here has, as the client wrote it


class StreamEncoder(Protocol):
    """Draws one run as a stream of bytes (server-sent events, but for sound), ready for the socket.

    Order of calls: `keep_alive* start (event | keep_alive)* end`, where `failed` may come in place of everything
    that is still to come but `end` (of `start` too, after `keep_alive`). An `event` that needs nothing on the wire
    gives `b""`. Events of several requests come interleaved; `request` is the place in `Decoded.requests`.
    """

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        """The first bytes that carry meaning; one `Accepted` for each request."""
        ...

    def event(self, event: Event, request: int = 0) -> bytes: ...

    def keep_alive(self) -> bytes:
        """Something harmless for a stream that would be silent for too long."""
        ...

    def failed(self, report: ErrorReport) -> bytes: ...

    def end(self) -> bytes:
        """The last bytes, after the last event or after `failed`."""
        ...


class Encoder(StreamEncoder, Protocol):
    """Draws one run in a dialect's words. An encoder for a whole answer gets one call of `whole`."""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one piece (JSON); one completion for each request."""
        ...


class Dialect(Protocol[Shape]):
    """An API that clients speak.

    Each is one package of this folder, whose module `dialect` holds an instance under the name `dialect`, or several
    under the name `dialects`. They are found, routed and documented because they are there.
    """

    @property
    def name(self) -> str:
        """The name in logs and metrics, and of the column in docs/api.md: `chat_completions`."""
        ...

    @property
    def path(self) -> str:
        """Where bodies are posted, without the version: `/chat/completions`. Paths under `/api` have no version."""
        ...

    @property
    def media(self) -> str:
        """The media type of a stream."""
        ...

    @property
    def id_prefix(self) -> str:
        """What the encoder puts before the id of a run: `chatcmpl-`. An answer can be stopped by its id."""
        ...

    @property
    def contract(self) -> Contract[Any]:
        """The fields of the request body, and what becomes of each."""
        ...

    @property
    def answer(self) -> type[Struct] | None:
        """The struct of a whole answer; None where no struct describes it."""
        ...

    @property
    def failure(self) -> type[Struct]:
        """The struct of an error."""
        ...

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[Shape]:
        """Raises `ServerError` naming the field for whatever cannot be honoured."""
        ...

    def encoder(self, decoded: Decoded[Shape], run: RunInfo) -> Encoder: ...

    def status(self, report: ErrorReport) -> int:
        """The HTTP status of an error: `report.status`, unless the contract has one of its own."""
        ...

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        """The body (JSON) of a reply with that status."""
        ...


AnyDialect = Dialect[Any]

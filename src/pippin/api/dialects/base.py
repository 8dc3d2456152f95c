"""The interface of a dialect: a decoder of request bodies and an encoder of events, both independent of HTTP."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from pippin.api.dialects.shared.fields import Contract
from pippin.api.dialects.shared.frames import COMMENT, EVENTS
from pippin.core.completion import Completion
from pippin.core.errors import ErrorReport, ServerError
from pippin.core.events import Accepted, Event
from pippin.core.requests import GenerationRequest

Shape = TypeVar("Shape")


class History:
    """Conversations that the caller stored earlier, for dialects that continue one by id; here none.

    Items are in the dialect's own form. All methods raise `ServerError("not_found")` for an id that is unknown or
    belongs to another caller.
    """

    def items(self, response_id: str) -> list[dict[str, Any]]:
        """The items of the conversation up to and including that response."""
        raise ServerError("not_found", f"There is no response {response_id!r}.", "previous_response_id")

    def conversation(self, conversation_id: str) -> list[dict[str, Any]]:
        """The items of the conversation that has this id."""
        raise ServerError("not_found", f"There is no conversation {conversation_id!r}.", "conversation")

    def item(self, item_id: str) -> dict[str, Any]:
        """The item that has this id, in any of the caller's conversations."""
        raise ServerError("not_found", f"There is no item {item_id!r}.", "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeContext:
    """What a decoder may know about a request besides its body."""

    headers: Mapping[str, str] = field(default_factory=dict)  # lower-case names
    # What the address says at the places of its pattern.
    path: Mapping[str, str] = field(default_factory=dict)
    history: History = field(default_factory=History)
    searches: bool = False  # whether the operator names what searches the web
    stream_usage: bool = False  # whether streams end with usage unasked, as set by the operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(Generic[Shape]):
    """The requests decoded from one body.

    Most dialects turn a body into one request; Completions makes one for each prompt. `shape` is what the dialect's
    encoder needs to know about the body. `ignored` holds the names of fields that the contract does not know, and
    `warnings` holds whole sentences; both go to the log.
    """

    requests: tuple[GenerationRequest, ...]
    shape: Shape
    stream: bool = False
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """The facts about a run that its encoder writes into the answer; all are known before the model is loaded."""

    id: str  # without the dialect's prefix; letters, digits, "-" and "_"
    created: int  # seconds since the epoch
    model: str  # the id under which the model is served
    fingerprint: str  # of Pippin and the model as it runs
    known: bool = True  # False if no model has that name; `model` is then what the client wrote


class StreamEncoder(Protocol):
    """Encodes one run as a stream of bytes for the socket: server-sent events, except for sound.

    Order of calls: `keep_alive* start (event | keep_alive)* end`. A call of `failed` may replace all remaining calls
    except `end`, including `start`. `event` returns `b""` if the event needs nothing on the wire. Events of several
    requests are interleaved; `request` is the index in `Decoded.requests`.
    """

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        """The first bytes that carry meaning; one `Accepted` for each request."""
        return b""

    def event(self, event: Event, request: int = 0) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """Harmless bytes for a stream that would otherwise be silent for too long."""
        return COMMENT

    def failed(self, report: ErrorReport) -> bytes:
        return b""

    def end(self) -> bytes:
        """The last bytes, after the last event or after `failed`."""
        return b""


class Encoder(StreamEncoder, Protocol):
    """Encodes one run in a dialect's form. For a whole answer, `whole` is called once and nothing else."""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The answer in one piece (JSON); one completion for each request."""
        ...


class Dialect(ABC, Generic[Shape]):
    """An API that clients speak.

    Each API is one package of this folder. Its module `dialect` holds an instance named `dialect`, or several in a
    tuple named `dialects`. Dialects are discovered, routed and documented without being registered anywhere.
    """

    name: str
    """The name in logs and metrics, and of the column in docs/api.md, such as `chat_completions`."""
    path: str
    """The path of requests, without the version `/v1`: `/chat/completions`. Paths under `/api` and `/v1beta` have
    none."""
    media: str = EVENTS
    """The media type of a stream."""
    id_prefix: str
    """The prefix that the encoder puts before a run's id: `chatcmpl-`. Clients can cancel an answer by its id."""
    contract: Contract[Any]
    """The fields of the request body, and how each is treated."""
    answer: type[Struct] | None
    """The struct of a whole answer; None where no struct describes it."""
    failure: type[Struct]
    """The struct of an error."""
    encoder: Callable[[Shape, RunInfo], Encoder]
    """The encoder of the answer to a body of this shape: its class, or a method."""

    @abstractmethod
    def decode(self, body: bytes, context: DecodeContext) -> Decoded[Shape]:
        """Raises `ServerError` naming the field if a field cannot be honoured."""

    @abstractmethod
    def error(self, report: ErrorReport, request_id: str) -> bytes:
        """The body (JSON) of a reply with the error's status."""

    def status(self, report: ErrorReport) -> int:
        """The HTTP status of an error; for contracts that have one of their own."""
        return report.status


AnyDialect = Dialect[Any]

"""Draws a run as the response object of the Responses API, whole or as a stream of its events."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from pippin.api.dialects.base import RunInfo
from pippin.api.dialects.responses.mcp import ListedToolsItem, McpCallItem, McpCalls
from pippin.api.dialects.responses.output import (
    ActionCallItem,
    CallItem,
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from pippin.api.dialects.responses.tools import Toolbox
from pippin.api.dialects.shared.frames import COMMENT, DONE, event_frame
from pippin.core.completion import Completion
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Failed,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    ToolsListed,
    Usage,
)

Json = dict[str, Any]
ReasoningShown = Literal["text", "summary", "hidden"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShape:
    """What the encoder and the store need to know of the request."""

    settings: Json  # of the request, as the response object repeats them
    input: tuple[Json, ...] = ()  # items of this turn, with ids
    toolbox: Toolbox = field(default_factory=Toolbox)
    reasoning: ReasoningShown = "text"
    sealed: bool = False  # reasoning comes with `encrypted_content`
    background: bool = False
    store: bool = True
    previous: str | None = None
    conversation: str | None = None


_CODES: Final[dict[ErrorKind, str]] = {
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "context_length_exceeded": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}


class ResponsesEncoder:
    """See `Encoder`; `clock` gives seconds since the epoch."""

    def __init__(self, shape: ResponseShape, run: RunInfo, clock: Callable[[], float]) -> None:
        self._shape = shape
        self._run = run
        self._clock = clock
        self._sequence = 0
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._mcp_calls = McpCalls()
        self._ended = False  # the open item's part ended; only `Finished` says whether it was cut
        self._part: PartStarted | None = None  # has begun, but is no item yet
        self._created = False
        self.status: Status = "queued" if shape.background else "in_progress"
        self._incomplete: Json | None = None
        self._error: Json | None = None
        self._usage: Json | None = None
        self._completed_at: int | None = None

    def queued(self) -> bytes:
        """For background responses, which are there before they run; comes before `start`."""
        return self._create() + self._lifecycle("response.queued")

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        frames = b"" if self._created else self._create()
        self.status = "in_progress"
        return frames + self._lifecycle("response.in_progress")

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartStarted() | PartDelta() | PartEnded() | Finished() if event.choice != 0:
                return b""
            case ToolsListed():
                return self._frames(self._tools_listed(event))
            case PartStarted():
                return self._frames(self._part_started(event))
            case PartDelta():
                return self._frames(self._part_grew(event))
            case PartEnded():
                return self._frames(self._part_ended())
            case Finished():
                return self._finished(event)
            case Failed(report):
                return self.failed(report)
            case _:
                return b""

    def keep_alive(self) -> bytes:
        return COMMENT

    def failed(self, report: ErrorReport) -> bytes:
        code = _CODES.get(report.kind, "server_error")
        frames = self._frames(self._close_all("completed" if self._ended else "incomplete"))
        if report.kind == "cancelled":  # there is no event of its own for that
            self.status = "incomplete"
        else:
            self.status = "failed"
            self._error = {"code": code, "message": report.message}
        if not self._created:
            error = {"type": "error", "code": code, "message": report.message, "param": report.param}
            return self._frame(error)
        return frames + self._lifecycle(f"response.{self.status}")

    def end(self) -> bytes:
        return DONE

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The stream's own last snapshot, with the completion played through it."""
        for event in replay(completions[0]):
            self.event(event)
        return msgspec.json.encode(self.response())

    def cancelled(self) -> None:
        """The run was cancelled and has ended; the stored response says so."""
        self.status = "cancelled"

    def response(self) -> Json:
        """The response object as it stands now."""
        return {
            "id": response_id(self._run),
            "object": "response",
            "created_at": self._run.created,
            "completed_at": self._completed_at,
            "status": self.status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "model": self._run.model,
            "output": [item.item() for item in self._items],
            "usage": self._usage,
            "background": self._shape.background,
            "store": self._shape.store,
            "previous_response_id": self._shape.previous,
            "conversation": {"id": self._shape.conversation} if self._shape.conversation else None,
            **self._shape.settings,
        }

    def _create(self) -> bytes:
        self._created = True
        return self._lifecycle("response.created")

    def _tools_listed(self, listed: ToolsListed) -> Iterator[Json]:
        item = ListedToolsItem(f"mcpl_{self._run.id}_{len(self._items)}", len(self._items), listed)
        self._items.append(item)
        yield from item.start()
        yield from item.close("completed")

    def _part_started(self, event: PartStarted) -> Iterator[Json]:
        yield from self._close("completed")
        if event.kind == "server_result":
            self._mcp_calls.begin_result(event)
            return
        self._part = event
        # Templates often write empty reasoning; an item is only made of it when there is text.
        if event.kind != "reasoning":
            yield from self._start_item(event)

    def _start_item(self, event: PartStarted) -> Iterator[Json]:
        self._part = None
        self._open = self._new_item(event)
        self._items.append(self._open)
        yield from self._open.start()

    def _part_grew(self, delta: PartDelta) -> Iterator[Json]:
        if self._mcp_calls.grow_result(delta):
            return
        if self._part is not None and delta.text and self._shape.reasoning != "hidden":
            yield from self._start_item(self._part)
        if self._open is not None:
            yield from self._open.grow(delta)

    def _part_ended(self) -> Iterator[Json]:
        yield from self._mcp_calls.end_result()
        if isinstance(self._open, McpCallItem):
            item, self._open = self._open, None
            yield self._mcp_calls.wait_for(item)
        self._ended = True

    def _new_item(self, event: PartStarted) -> OutputItem:
        index = len(self._items)

        def named(prefix: str) -> str:
            return f"{prefix}_{self._run.id}_{index}"

        if event.kind == "text":
            return MessageItem(named("msg"), index)
        if event.kind == "reasoning":
            as_summary = self._shape.reasoning == "summary"
            return ReasoningItem(named("rs"), index, as_summary=as_summary, sealed=self._shape.sealed)
        if event.kind == "server_call":
            return McpCallItem(named("mcp"), index, event)
        origin = self._shape.toolbox.origin(event.name or "")
        kinds: dict[str, tuple[type[CallItem], str]] = {
            "function": (FunctionCallItem, "fc"),
            "custom": (CustomCallItem, "ctc"),
        }
        make, prefix = kinds.get(origin.kind, (ActionCallItem, "sh"))
        return make(named(prefix), index, event.id or named("call"), origin)

    def _close(self, status: ItemStatus) -> Iterator[Json]:
        item, self._open, self._part, self._ended = self._open, None, None, False
        if item is not None:
            yield from item.close(status)

    def _close_all(self, status: ItemStatus) -> Iterator[Json]:
        yield from self._close(status)
        yield from self._mcp_calls.abandon()

    def _finished(self, event: Finished) -> bytes:
        cut = event.reason in ("length", "cancelled")
        frames = self._frames(self._close_all("incomplete" if cut else "completed"))
        self._usage = usage_of(event.usage)
        self.status = "incomplete" if cut else "completed"
        if not cut:
            self._completed_at = int(self._clock())
        if event.reason == "length":
            self._incomplete = {"reason": "max_output_tokens"}
        return frames + self._lifecycle(f"response.{self.status}")

    def _lifecycle(self, type: str) -> bytes:
        return self._frame({"type": type, "response": self.response()})

    def _frames(self, events: Iterable[Json]) -> bytes:
        return b"".join(map(self._frame, events))

    def _frame(self, event: Json) -> bytes:
        payload = {"type": event["type"], "sequence_number": self._sequence, **event}
        self._sequence += 1
        return event_frame(event["type"], payload)


def response_id(run: RunInfo) -> str:
    return f"resp_{run.id}"


def usage_of(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.stored_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def replay(completion: Completion) -> Iterator[Event]:
    """The shortest stream that folds to the completion's first choice."""
    if not completion.choices:
        return
    yield from completion.listed
    choice = completion.choices[0]
    for index, part in enumerate(choice.parts):
        yield PartStarted(0, index, part.kind, part.id, part.name, part.server, part.is_error)
        if part.text or part.tokens:
            yield PartDelta(0, index, part.text, part.tokens)
        yield PartEnded(0, index)
    if choice.finished is not None:
        yield choice.finished

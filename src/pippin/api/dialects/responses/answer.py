"""The response object of the Responses API, and the encoder that builds it, whole or in the events of a stream.

The OpenAPI document describes these structs. `UNSET` fields are omitted; `None` is written as null.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.base import Encoder, RunInfo
from pippin.api.dialects.responses.output import (
    ActionCallBuilder,
    CallBuilder,
    CompactionBuilder,
    CustomCallBuilder,
    Events,
    FunctionCallBuilder,
    ItemBuilder,
    ItemStatus,
    ListedToolsBuilder,
    McpCallBuilder,
    MessageBuilder,
    Output,
    ReasoningBuilder,
    SearchCallBuilder,
    StreamEvent,
)
from pippin.api.dialects.responses.tools import Toolbox
from pippin.api.dialects.shared.engine_fields import JsonObjectFormat, TextFormat, Verbosity
from pippin.api.dialects.shared.frames import DONE, Closed, event_frame
from pippin.api.dialects.shared.openai import warnings_of
from pippin.core.completion import Completion
from pippin.core.conversation import WEB_SEARCH, FoundPage
from pippin.core.errors import ErrorKind, ErrorReport, ServerError
from pippin.core.events import (
    Accepted,
    Event,
    Finished,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    ToolsListed,
    Usage,
)

ListedItem = dict[str, Any]
"""A stored item as the API lists it: its id, type and status, and all that the client or the model put into it."""
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class SchemaFormat(Struct, tag_field="type", tag="json_schema", kw_only=True):
    """Here the schema is beside its name, not in an object of its own as in Chat Completions."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class ResponseFailure(Closed, kw_only=True):
    code: str
    message: str


class Incompleteness(Closed, kw_only=True):
    reason: Literal["max_output_tokens", "steered"]


class ResponseInputDetails(Closed, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class ResponseOutputDetails(Closed, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(Closed, kw_only=True):
    input_tokens: int
    input_tokens_details: ResponseInputDetails
    output_tokens: int
    output_tokens_details: ResponseOutputDetails
    total_tokens: int


class ResponseReasoning(Closed, kw_only=True):
    effort: str | None
    summary: str | None


class ResponseText(Closed, kw_only=True):
    format: TextFormat | JsonObjectFormat | SchemaFormat
    verbosity: Verbosity | UnsetType = UNSET


class ResponseConversation(Closed, kw_only=True):
    id: str


class ResponseAnswer(Closed, kw_only=True):
    """The answer to `POST /v1/responses`, also sent in the events of a stream.

    The fields from `instructions` on repeat the request, with defaults for the fields that it left out.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: ResponseFailure | None = None
    incomplete_details: Incompleteness | None = None
    model: str
    output: list[Output]
    usage: ResponseUsage | None = None
    background: bool
    store: bool
    previous_response_id: str | None
    conversation: ResponseConversation | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: ResponseText
    reasoning: ResponseReasoning
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    truncation: Literal["auto", "disabled"]
    metadata: dict[str, str]
    service_tier: str
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None
    warnings: list[str] | UnsetType = UNSET


class CompactedConversation(Closed, kw_only=True):
    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[ListedItem]
    usage: ResponseUsage


class InputTokens(Closed, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class DeletedResponse(Closed, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemPage(Closed, kw_only=True):
    object: Literal["list"]
    data: list[ListedItem]
    first_id: str
    last_id: str
    has_more: bool


def usage_of(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=ResponseInputDetails(
            cached_tokens=usage.cached_tokens, cache_write_tokens=usage.stored_tokens
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ResponseOutputDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )


_ID_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}


def stored_items(
    items: Iterable[ListedItem], run_id: str, find: Callable[[str], ListedItem]
) -> list[ListedItem]:
    """Items of a request as the API lists them later, each with its id, type and status.

    `find` returns the item that a reference names; dangling references are dropped.
    """
    stored: list[ListedItem] = []
    for number, item in enumerate(items):
        kind = item.get("type") or ("message" if "role" in item else "item_reference")
        if kind == "item_reference":
            try:
                stored.append(find(str(item.get("id"))))
            except ServerError:
                continue
        else:
            item_id = item.get("id") or f"{_ID_PREFIXES.get(kind, 'item')}_{run_id}_in{number}"
            added: ListedItem = {"id": item_id, "type": kind}
            if kind == "reasoning":
                added["summary"] = item.get("summary") or []
            else:
                added["status"] = item.get("status") or "completed"
            if kind == "message":
                added["content"] = _content(item)
            stored.append(item | added)
    return stored


_EXPECTED: Final[dict[str, ListedItem]] = {
    "output_text": {"annotations": []},
    "input_image": {"detail": "auto"},
}


def _content(message: ListedItem) -> list[ListedItem]:
    """The content as a list of parts, with the fields that clients expect in each."""
    written = message.get("role") == "assistant"
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if written else "input_text", "text": content}]
    return [_EXPECTED.get(str(part.get("type")), {}) | part for part in content or []]


ID_PREFIX: Final = "resp_"
STEERED: Final = "steered"  # code of the report that ends a response because the client says more

ReasoningShown = Literal["text", "summary", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseShape:
    """The parts of a request that decide how its answer is encoded and stored."""

    draft: ResponseAnswer  # the response before its run, which sets its id, time and model
    input: tuple[dict[str, Any], ...] = ()  # items of this turn, with ids
    toolbox: Toolbox = field(default_factory=Toolbox)
    reasoning: ReasoningShown = "text"
    sealed: bool = False  # reasoning comes with `encrypted_content`
    sourced: bool = False  # searches come with all that they found
    compacts: bool = False  # the text is the summary of the conversation

    @property
    def conversation(self) -> str | None:
        """The id of the conversation that the response joins."""
        return self.draft.conversation.id if self.draft.conversation is not None else None


_CODES: Final[dict[ErrorKind, str]] = {
    "invalid_request": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "context_length_exceeded": "context_length_exceeded",
    "rate_limited": "rate_limit_exceeded",
}


class ResponsesEncoder(Encoder):
    def __init__(self, shape: ResponseShape, run: RunInfo) -> None:
        self._shape = shape
        self._run = run
        # `response` fills in the output.
        self._answer = msgspec.structs.replace(
            shape.draft, id=response_id(run), created_at=run.created, model=run.model
        )
        self._sequence = 0
        self._items: list[ItemBuilder] = []
        self._open: ItemBuilder | None = None
        self._waiting: dict[str | None, McpCallBuilder] = {}  # calls of MCP tools without a result so far
        self._answering: PartStarted | None = None  # the open result of such a call, and its pieces
        self._result: list[str] = []
        self._pages: list[FoundPage] = []  # that searches of the web have found
        self._ended = False  # the open item's part ended; only `Finished` tells whether it was truncated
        self._part: PartStarted | None = None  # begun by the model, but not yet sent as an item
        self._thinks = False
        self._created = False
        # Tokens so far, for a response that ends before its last event.
        self._prompt = self._cached = self._completed = self._reasoned = 0

    @property
    def background(self) -> bool:
        """Whether the response is to run without its client."""
        return bool(self._answer.background)

    def queued(self) -> bytes:
        """The first events of a background response, which exists before it runs; call before `start`."""
        return self._create() + self._lifecycle("response.queued")

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        frames = b"" if self._created else self._create()
        self._answer.status = "in_progress"
        self._prompt = accepted[0].prompt_tokens
        return frames + self._lifecycle("response.in_progress")

    def keep_alive(self) -> bytes:
        # Codex gives up when no event comes for five minutes, and a comment is none. A long call is that silent.
        running = self._created and self._answer.status == "in_progress"
        return self._lifecycle("response.in_progress") if running else super().keep_alive()

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartStarted() | PartDelta() | PartEnded() | Finished() if event.choice != 0:
                return b""
            case Progress(cached=cached):
                self._cached = cached
                return b""
            case ToolsListed():
                index = len(self._items)
                listed = ListedToolsBuilder(f"mcpl_{self._run.id}_{index}", index, event)
                self._items.append(listed)
                return self._frames([*listed.start(), *listed.close("completed")])
            case PartStarted():
                return self._frames(self._part_started(event))
            case PartDelta():
                return self._frames(self._part_grew(event))
            case PartEnded():
                return self._frames(self._part_ended())
            case Finished():
                return self._finished(event)
            case _:
                return b""

    def failed(self, report: ErrorReport) -> bytes:
        code = _CODES.get(report.kind, "server_error")
        frames = self._frames(self._close_all("completed" if self._ended else "incomplete"))
        if report.kind == "cancelled":
            # The API has no event for a cancelled response.
            self._answer.status = "incomplete"
            self._answer.usage = usage_of(
                Usage(
                    prompt_tokens=self._prompt,
                    cached_tokens=self._cached,
                    completion_tokens=self._completed,
                    reasoning_tokens=self._reasoned,
                )
            )
            if report.code == STEERED:
                self._answer.incomplete_details = Incompleteness(reason="steered")
        else:
            self._answer.status = "failed"
            self._answer.error = ResponseFailure(code=code, message=report.message)
        if not self._created:
            return self.told("error", code=code, message=report.message, param=report.param)
        return frames + self._lifecycle(f"response.{self._answer.status}")

    def end(self) -> bytes:
        return DONE

    def required_input(self) -> list[dict[str, Any]]:
        """What the client is to send of each call that it runs: an output's type and call, without the output."""
        return [
            {"type": f"{call.item().__struct_config__.tag}_output", "call_id": call.call_id}
            | ({"name": call.origin.name} if call.origin.kind == "function" else {})
            for call in self._items
            if isinstance(call, CallBuilder)
        ]

    def whole(self, completions: Sequence[Completion]) -> bytes:
        """The same response as at the end of a stream of this completion."""
        choice = completions[0].choices[0]
        for event in (*completions[0].listed, *choice.events(0), choice.finished):
            self.event(event)
        return msgspec.json.encode(self.response())

    def cancelled(self) -> None:
        """Mark the stored response as cancelled; call after `end`."""
        self._answer.status = "cancelled"

    def response(self) -> ResponseAnswer:
        """The response object in its current state."""
        return msgspec.structs.replace(self._answer, output=[item.item() for item in self._items])

    def _create(self) -> bytes:
        self._created = True
        return self._lifecycle("response.created")

    def _part_started(self, event: PartStarted) -> Events:
        yield from self._close("completed")
        if event.kind == "server_result":
            self._answering, self._result = event, []
            return
        self._part, self._thinks = event, event.kind == "reasoning"
        # Templates often write empty reasoning, so a reasoning item only starts with its first text.
        if event.kind != "reasoning":
            yield from self._start_item(event)

    def _start_item(self, event: PartStarted) -> Events:
        self._part = None
        self._open = self._new_item(event)
        self._items.append(self._open)
        yield from self._open.start()

    def _part_grew(self, delta: PartDelta) -> Events:
        self._completed = max(self._completed, delta.completed)
        if self._thinks:
            self._reasoned = self._completed
        if self._answering is not None:
            self._result.append(delta.text)
            return
        if self._part is not None and delta.text and self._shape.reasoning != "hidden":
            yield from self._start_item(self._part)
        if self._open is not None:
            yield from self._open.grow(delta)

    def _part_ended(self) -> Events:
        result, self._answering = self._answering, None
        if result is not None and (call := self._waiting.pop(result.id, None)) is not None:
            yield from call.answered("".join(self._result), is_error=result.is_error)
        if isinstance(self._open, McpCallBuilder):
            item, self._open = self._open, None
            self._waiting[item.call_id] = item
            yield item.asked()
        self._ended = True

    def _new_item(self, event: PartStarted) -> ItemBuilder:
        index = len(self._items)

        def named(prefix: str) -> str:
            return f"{prefix}_{self._run.id}_{index}"

        if event.kind == "text" and self._shape.compacts:
            return CompactionBuilder(named("cmp"), index)
        if event.kind == "text":
            return MessageBuilder(named("msg"), index, self._pages)
        if event.kind == "reasoning":
            summary = self._shape.reasoning == "summary"
            return ReasoningBuilder(named("rs"), index, summary=summary, sealed=self._shape.sealed)
        if event.kind == "server_call" and event.server == WEB_SEARCH:
            return SearchCallBuilder(named("ws"), index, event, self._pages, sourced=self._shape.sourced)
        if event.kind == "server_call":
            return McpCallBuilder(named("mcp"), index, event)
        origin = self._shape.toolbox.origin(event.name or "")
        kinds: dict[str, tuple[type[CallBuilder], str]] = {
            "function": (FunctionCallBuilder, "fc"),
            "custom": (CustomCallBuilder, "ctc"),
        }
        make, prefix = kinds.get(origin.kind, (ActionCallBuilder, "sh"))
        return make(named(prefix), index, event.id or named("call"), origin)

    def _close(self, status: ItemStatus) -> Events:
        item, self._open, self._part, self._ended = self._open, None, None, False
        if item is not None:
            yield from item.close(status)

    def _close_all(self, status: ItemStatus) -> Events:
        yield from self._close(status)
        for call in self._waiting.values():
            yield from call.close("incomplete")
        self._waiting = {}

    def _finished(self, event: Finished) -> bytes:
        cut = event.reason == "length"
        frames = self._frames(self._close_all("incomplete" if cut else "completed"))
        self._answer.usage = usage_of(event.usage)
        self._answer.warnings = warnings_of([event])
        self._answer.status = "incomplete" if cut else "completed"
        if cut:
            self._answer.incomplete_details = Incompleteness(reason="max_output_tokens")
        else:
            self._answer.completed_at = int(time.time())
        return frames + self._lifecycle(f"response.{self._answer.status}")

    def _lifecycle(self, type: str) -> bytes:
        return self.told(type, response=self.response())

    def _frames(self, events: Iterable[StreamEvent]) -> bytes:
        return b"".join([self.told(name, **fields) for name, fields in events])

    def told(self, type: str, **fields: Any) -> bytes:
        """An event in its place in their order: of the output, or about the response beside it."""
        number, self._sequence = self._sequence, self._sequence + 1
        return event_frame(type, {"type": type, "sequence_number": number, **fields})


def response_id(run: RunInfo) -> str:
    return ID_PREFIX + run.id

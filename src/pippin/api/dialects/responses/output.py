"""The output items of a response, each with its builder, which tells the stream events with which it grows.

Items and content parts are tagged unions, so their `type` comes first on the wire.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from pippin.api.dialects.responses.tools import ToolOrigin, custom_input
from pippin.api.dialects.shared.frames import Closed
from pippin.api.dialects.shared.openai import TokenLogprob, logprobs_of
from pippin.api.dialects.shared.sealed_text import seal
from pippin.api.dialects.shared.tools import citations_of, pages_of
from pippin.core.completion import object_of
from pippin.core.conversation import FoundPage
from pippin.core.events import PartDelta, PartStarted, ToolsListed

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Closed, tag_field="type", tag="output_text", kw_only=True):
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class ReasoningText(Closed, tag_field="type", tag="reasoning_text", kw_only=True):
    text: str


class SummaryText(Closed, tag_field="type", tag="summary_text", kw_only=True):
    text: str


class OutputItem(Closed, kw_only=True):
    id: str
    status: ItemStatus


class CallItem(OutputItem, kw_only=True):
    """A call that the client runs."""

    call_id: str


class OutputMessage(OutputItem, tag_field="type", tag="message", kw_only=True):
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(OutputItem, tag_field="type", tag="reasoning", kw_only=True):
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class OutputFunctionCall(CallItem, tag_field="type", tag="function_call", kw_only=True):
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class OutputCustomCall(CallItem, tag_field="type", tag="custom_tool_call", kw_only=True):
    name: str
    namespace: str | UnsetType = UNSET
    input: str


class OutputLocalShellCall(CallItem, tag_field="type", tag="local_shell_call", kw_only=True):
    action: dict[str, Any]


class OutputShellCall(CallItem, tag_field="type", tag="shell_call", kw_only=True):
    action: dict[str, Any]


class OutputPatchCall(CallItem, tag_field="type", tag="apply_patch_call", kw_only=True):
    """A truncated patch stays `in_progress`: the API has no incomplete patches, and clients must not apply it."""

    status: Literal["in_progress", "completed"]
    operation: dict[str, Any]


class ListedTool(Closed, kw_only=True):
    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: None = None


class OutputListedTools(Closed, tag_field="type", tag="mcp_list_tools", kw_only=True):
    id: str
    server_label: str
    tools: list[ListedTool]
    error: None = None


class McpText(Closed, tag_field="type", tag="text", kw_only=True):
    text: str


class McpFailure(Closed, tag_field="type", tag="mcp_tool_execution_error", kw_only=True):
    content: list[McpText]


class OutputMcpCall(Closed, tag_field="type", tag="mcp_call", kw_only=True):
    id: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    approval_request_id: None = None
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: McpFailure | None


class SearchSource(Closed, tag_field="type", tag="url", kw_only=True):
    url: str


class SearchAction(Closed, tag_field="type", tag="search", kw_only=True):
    query: str
    queries: list[str]
    sources: list[SearchSource] | UnsetType = UNSET


class OutputSearchCall(Closed, tag_field="type", tag="web_search_call", kw_only=True):
    id: str
    status: Literal["in_progress", "searching", "completed", "incomplete", "failed"]
    action: SearchAction


class OutputCompaction(Closed, tag_field="type", tag="compaction", kw_only=True):
    id: str
    encrypted_content: str


Output = (
    OutputMessage
    | OutputCompaction
    | OutputReasoning
    | OutputFunctionCall
    | OutputCustomCall
    | OutputLocalShellCall
    | OutputShellCall
    | OutputPatchCall
    | OutputListedTools
    | OutputMcpCall
    | OutputSearchCall
)


StreamEvent = tuple[str, dict[str, Any]]
"""The type of an event, and its other fields."""
Events = Iterator[StreamEvent]
Call = TypeVar("Call", bound=CallItem)


class ItemBuilder(ABC):
    """Builds one output item through `start`, any number of `grow`, and `close`; each returns the events to send.

    Subclasses define the item in its current state, and the events between its first and last one: by their names
    `opens`, `grows` and `closes`, where these say all.
    """

    opens = grows = closes = ""

    def __init__(self, id: str, index: int) -> None:
        self.id = id
        self.index = index  # place in the response's output
        self.status: ItemStatus = "in_progress"
        self._place: dict[str, Any] = {"item_id": id, "output_index": index}  # fields of every event
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    @abstractmethod
    def item(self) -> Output:
        """The item in its current state."""
        ...

    def opened(self) -> Iterable[StreamEvent]:
        """The events between the one that adds the item and its first text."""
        return (self._event(self.opens),) if self.opens else ()

    def grown(self, delta: PartDelta) -> Iterable[StreamEvent]:
        """The events for more text, which `text` already includes."""
        return (self._event(self.grows, delta=delta.text),) if self.grows and delta.text else ()

    def closed(self) -> Iterable[StreamEvent]:
        """The events between the last text and the one that finishes the item."""
        return (self._event(self.closes),) if self.closes else ()

    def start(self) -> Events:
        yield self._changed("response.output_item.added")
        yield from self.opened()

    def grow(self, delta: PartDelta) -> Iterable[StreamEvent]:
        self._pieces.append(delta.text)
        return self.grown(delta)

    def close(self, status: ItemStatus) -> Events:
        yield from self.closed()
        self.status = status
        yield self._changed("response.output_item.done")

    def _changed(self, type: str) -> StreamEvent:
        return type, {"output_index": self.index, "item": self.item()}

    def _event(self, type: str, **fields: Any) -> StreamEvent:
        """An event about the item, or about its part."""
        return f"response.{type}", self._place | fields


class PartBuilder(ItemBuilder):
    """An item whose text is in a part of its own, which opens with the item and closes before it."""

    def __init__(self, id: str, index: int, part: str, text: str, place: str) -> None:
        """`part` and `text` are their names in event types; `place` is the field with the index of the part."""
        super().__init__(id, index)
        self._place[place] = 0
        self._part_type, self._text_type = part, text
        self._logprobs: list[TokenLogprob] | None = None
        self._started = False

    @abstractmethod
    def _part(self) -> OutputText | ReasoningText | SummaryText: ...

    def opened(self) -> Events:
        self._started = True
        yield self._event(f"{self._part_type}.added", part=self._part())

    def grown(self, delta: PartDelta) -> Iterable[StreamEvent]:
        told: dict[str, Any] = {"delta": delta.text}
        if self._logprobs is not None:
            told["logprobs"] = logprobs_of(delta.tokens) if delta.tokens else []
            self._logprobs += told["logprobs"]
        if not delta.text and not told.get("logprobs"):
            return ()
        return (self._event(f"{self._text_type}.delta", **told),)

    def closed(self) -> Events:
        told: dict[str, Any] = {} if self._logprobs is None else {"logprobs": self._logprobs}
        yield self._event(f"{self._text_type}.done", text=self.text, **told)
        yield self._event(f"{self._part_type}.done", part=self._part())


class MessageBuilder(PartBuilder):
    def __init__(self, id: str, index: int, pages: list[FoundPage]) -> None:
        """`pages` were found by searches of the web, and may be cited."""
        super().__init__(id, index, "content_part", "output_text", "content_index")
        self._logprobs: list[TokenLogprob] = []
        self._pages = pages
        self._citations: list[dict[str, Any]] = []

    def _part(self) -> OutputText:
        return OutputText(text=self.text, annotations=self._citations, logprobs=self._logprobs)

    def closed(self) -> Events:
        found = citations_of(self.text, self._pages) if self._pages else []
        self._citations = [{"type": "url_citation", **each} for each in found]
        for number, annotation in enumerate(self._citations):
            yield self._event("output_text.annotation.added", annotation=annotation, annotation_index=number)
        yield from super().closed()

    def item(self) -> OutputMessage:
        content = [self._part()] if self._started else []
        return OutputMessage(id=self.id, status=self.status, role="assistant", content=content)


class CompactionBuilder(ItemBuilder):
    """The summary of a conversation, which stands for it in later requests."""

    opens = "compaction.compacting"

    def item(self) -> OutputCompaction:
        text = "" if self.status == "in_progress" else self.text.strip()
        return OutputCompaction(id=self.id, encrypted_content=seal(text) if text else "")


class ReasoningBuilder(PartBuilder):
    """The model's reasoning, as raw text or in the form of a summary.

    A local model's reasoning need not be hidden, so a client that asks for a summary gets the reasoning itself. It is
    sent in one of the two forms only, so that no client shows it twice.
    """

    def __init__(self, id: str, index: int, *, summary: bool, sealed: bool) -> None:
        """If `sealed`, the finished item also carries its text as `encrypted_content`."""
        if summary:
            names = ("reasoning_summary_part", "reasoning_summary_text", "summary_index")
        else:
            names = ("content_part", "reasoning_text", "content_index")
        super().__init__(id, index, *names)
        self._summary, self._sealed = summary, sealed

    def _part(self) -> ReasoningText | SummaryText:
        return SummaryText(text=self.text) if self._summary else ReasoningText(text=self.text)

    def item(self) -> OutputReasoning:
        parts: list[Any] = [self._part()] if self._started else []
        return OutputReasoning(
            id=self.id,
            status=self.status,
            summary=parts if self._summary else [],
            content=UNSET if self._summary else parts,
            encrypted_content=seal(self.text) if self._sealed and self.status != "in_progress" else UNSET,
        )


class CallBuilder(ItemBuilder):
    """A call that the client runs; `origin` is the tool of the request that the called function stands for."""

    def __init__(self, id: str, index: int, call_id: str, origin: ToolOrigin) -> None:
        super().__init__(id, index)
        self.call_id = call_id
        self.origin = origin
        self._named: dict[str, Any] = {"name": origin.name, "namespace": origin.namespace or UNSET}

    def _as(self, kind: type[Call], **fields: Any) -> Call:
        """The item as one of this kind, with the fields that calls have in common."""
        return kind(**{"id": self.id, "status": self.status, "call_id": self.call_id, **fields})


class FunctionCallBuilder(CallBuilder):
    grows = "function_call_arguments.delta"

    def item(self) -> OutputFunctionCall:
        return self._as(OutputFunctionCall, **self._named, arguments=self.text)

    def closed(self) -> Events:
        done = "function_call_arguments.done"
        yield self._event(done, name=self.origin.name, arguments=self.text)


class CustomCallBuilder(CallBuilder):
    """The call of a custom tool. Its input is a string inside the function's arguments, so it is sent when the
    arguments are complete."""

    def item(self) -> OutputCustomCall:
        text = "" if self.status == "in_progress" else custom_input(self.text)
        return self._as(OutputCustomCall, **self._named, input=text)

    def closed(self) -> Events:
        text = custom_input(self.text)
        if text:
            yield self._event("custom_tool_call_input.delta", delta=text)
        yield self._event("custom_tool_call_input.done", input=text)


class ActionCallBuilder(CallBuilder):
    """Shell commands or a patch. They are inside of the function's arguments, so they are sent when these are
    complete."""

    def start(self) -> Events:
        return iter(())

    def close(self, status: ItemStatus) -> Events:
        yield self._changed("response.output_item.added")
        yield from super().close(status)

    def closed(self) -> Events:
        arguments = object_of(self.text) or {}
        commands = _texts(arguments.get("commands", [])) if self.origin.kind == "shell" else []
        for number, command in enumerate(commands):
            place = {"output_index": self.index, "command_index": number}
            for word, told in (("added", {"command": ""}), ("delta", {"delta": command})):
                yield f"response.shell_call_command.{word}", place | told
            yield "response.shell_call_command.done", place | {"command": command}

    def item(self) -> Output:
        arguments = object_of(self.text) or {}
        action: dict[str, Any]
        match self.origin.kind:
            case "local_shell":
                action = {"type": "exec", "env": {}, "command": _texts(arguments.pop("command", []))}
                return self._as(OutputLocalShellCall, action=action | arguments)
            case "shell":
                action = {"commands": _texts(arguments.pop("commands", [])), "max_output_length": None}
                action["timeout_ms"] = None
                return self._as(OutputShellCall, action=action | arguments)
            case _:
                status = "completed" if self.status == "completed" else "in_progress"
                return self._as(OutputPatchCall, status=status, operation=arguments)


def _texts(given: Any) -> list[str]:
    return [str(text) for text in given] if isinstance(given, list) else [str(given)]


class ListedToolsBuilder(ItemBuilder):
    """The tools that an MCP server offers, all known at once."""

    opens, closes = "mcp_list_tools.in_progress", "mcp_list_tools.completed"

    def __init__(self, id: str, index: int, listed: ToolsListed) -> None:
        super().__init__(id, index)
        self._listed = listed

    def item(self) -> OutputListedTools:
        tools = [
            ListedTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.parameters or {"type": "object"},
            )
            for tool in (() if self.status == "in_progress" else self._listed.tools)
        ]
        return OutputListedTools(id=self.id, server_label=self._listed.server, tools=tools)


class McpCallBuilder(ItemBuilder):
    """A call of an MCP tool and, later, its result. Other items may start in between."""

    opens, grows = "mcp_call.in_progress", "mcp_call_arguments.delta"
    closes, fails = "mcp_call.completed", "mcp_call.failed"

    def __init__(self, id: str, index: int, started: PartStarted) -> None:
        super().__init__(id, index)
        self.call_id = started.id
        self._name = started.name or ""
        self._server = started.server or ""
        self._result: str | None = None
        self._failed = False

    def item(self) -> OutputMcpCall:
        return OutputMcpCall(
            id=self.id,
            status="failed" if self._failed and self.status == "completed" else self.status,
            server_label=self._server,
            name=self._name,
            arguments=self.text,
            output=None if self._failed else self._result,
            error=McpFailure(content=[McpText(text=self._result or "")]) if self._failed else None,
        )

    def asked(self) -> StreamEvent:
        """The event for complete arguments, after which the call is made."""
        return self._event("mcp_call_arguments.done", arguments=self.text)

    def answered(self, text: str, *, is_error: bool) -> Events:
        self._result, self._failed = text, is_error
        yield from self.close("completed")

    def closed(self) -> Events:
        if self._result is not None:
            yield self._event(self.fails if self._failed else self.closes)


class SearchCallBuilder(McpCallBuilder):
    """A search of the web, which is told without its arguments' pieces."""

    opens, grows = "web_search_call.in_progress", ""
    closes = fails = "web_search_call.completed"

    def __init__(
        self, id: str, index: int, started: PartStarted, pages: list[FoundPage], *, sourced: bool
    ) -> None:
        """What is found is added to `pages`. `sourced`: the item names all of it."""
        super().__init__(id, index, started)
        self._pages, self._sourced = pages, sourced
        self._sources: list[SearchSource] = []

    def item(self) -> OutputSearchCall:  # type: ignore[override] # the other kind of call
        query = str((object_of(self.text) or {}).get("query", ""))
        sources = self._sources if self._sourced else UNSET
        status = "failed" if self._failed and self.status == "completed" else self.status
        action = SearchAction(query=query, queries=[query], sources=sources)
        return OutputSearchCall(id=self.id, status=status, action=action)

    def asked(self) -> StreamEvent:
        return self._event("web_search_call.searching")

    def answered(self, text: str, *, is_error: bool) -> Events:
        found = pages_of(text)
        self._pages += found
        self._sources = [SearchSource(url=page.url) for page in found]
        yield from super().answered(text, is_error=is_error)

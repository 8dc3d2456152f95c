"""The dialect of Anthropic's Messages API: its answers, its body, and how that is decoded into a request."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.messages.content import MessageParam, MessagesReader
from pippin.api.dialects.messages.tools import (
    SEPARATOR,
    ChoiceSpec,
    GivenTools,
    changed_tools,
    families_of,
    tool_choice_of,
    toolbox_of,
)
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import Unused, about, invalid
from pippin.api.dialects.shared.frames import COMMENT, Closed, event_frame, typed_frame
from pippin.api.dialects.shared.sealed_text import seal
from pippin.api.dialects.shared.tools import left_out, pages_of
from pippin.core.completion import CompletedPart, Completion, object_of
from pippin.core.conversation import WEB_SEARCH, Message, Text, Tool
from pippin.core.errors import ErrorKind, ErrorReport
from pippin.core.events import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    PartDelta,
    PartEnded,
    PartStarted,
    Progress,
    Usage,
)
from pippin.core.requests import Thinking
from pippin.service.summaries import summary_request


class TextAnswer(Closed, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Closed, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ServerToolUseAnswer(Closed, tag_field="type", tag="server_tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class ToolUseAnswer(ServerToolUseAnswer, tag="tool_use"):
    toolset_name: str | UnsetType = UNSET


class McpToolUseAnswer(ServerToolUseAnswer, tag="mcp_tool_use"):
    server_name: str


class McpToolResultAnswer(Closed, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: list[TextAnswer]


class SearchResultAnswer(Closed, tag_field="type", tag="web_search_result"):
    url: str
    title: str
    encrypted_content: str
    page_age: None = None


class SearchErrorAnswer(Closed, tag_field="type", tag="web_search_tool_result_error"):
    error_code: str


class SearchToolResultAnswer(Closed, tag_field="type", tag="web_search_tool_result"):
    tool_use_id: str
    content: list[SearchResultAnswer] | SearchErrorAnswer


class CompactionAnswer(Closed, tag_field="type", tag="compaction"):
    """The summary of a conversation; none if the model wrote none."""

    content: str | None = None


BlockAnswer = (
    TextAnswer
    | ThinkingAnswer
    | ToolUseAnswer
    | McpToolUseAnswer
    | McpToolResultAnswer
    | ServerToolUseAnswer
    | SearchToolResultAnswer
    | CompactionAnswer
)
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "compaction"]


class ThinkingDetails(Closed):
    thinking_tokens: int


class MessageUsage(Closed):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessageAnswer(Closed, kw_only=True):
    """The answer to `POST /v1/messages`; a stream's `message_start` holds it without content."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[BlockAnswer]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    warnings: list[str] | UnsetType = UNSET


class TokenCount(Closed):
    """The answer to `POST /v1/messages/count_tokens`."""

    input_tokens: int


class Stop(Struct, frozen=True):
    """Why a message ended, and the client's stop sequence that ended it; both are null until the end."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class ThreadUnsupported(Struct, tag_field="error_code", tag="thread_unsupported_request"):
    """Tells Anthropic's clients to send the whole conversation instead."""

    unsupported: list[str]


class FailureDetail(Struct, omit_defaults=True):
    type: str
    message: str
    details: ThreadUnsupported | None = None


class Failure(Struct, tag_field="type", tag="error"):
    """An error, as the body of a reply and as an event of a stream."""

    error: FailureDetail
    request_id: str


ID_PREFIX: Final = "msg_"
ThinkingShown = Literal["text", "signature", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """The parts of a request that decide how its answer is encoded."""

    thinking: ThinkingShown = "text"
    cached: bool = False  # the request asks for caching, so tokens written to the cache are reported apart
    model: str | None = None  # the requested name
    servers: bool = False  # the request names MCP servers, so their calls and results are shown
    families: frozenset[str] = frozenset()  # the client's toolsets, whose members are named apart
    compacts: bool = False  # the text is the summary of the conversation


ERROR_TYPE: Final[dict[ErrorKind, str]] = {
    "authentication": "authentication_error",
    "permission": "permission_error",
    "not_found": "not_found_error",
    "model_not_found": "not_found_error",
    "timeout": "timeout_error",
    "too_large": "request_too_large",
    "rate_limited": "rate_limit_error",
    "overloaded": "overloaded_error",
    "load_failed": "api_error",
    "worker_died": "api_error",
    "internal": "api_error",
}
"""Kinds not listed here are `invalid_request_error`."""

STOP_REASON: Final[dict[FinishReason, StopReason]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


def error_of(report: ErrorReport, request_id: str) -> Failure:
    word = ERROR_TYPE.get(report.kind, "invalid_request_error")
    details = ThreadUnsupported(["thread"]) if report.param == "thread" else None
    return Failure(FailureDetail(word, report.message, details), request_id)


def usage_of(usage: Usage, *, cached: bool) -> MessageUsage:
    """The prompt's tokens in three parts: read from the cache, newly written to it, and the rest.

    Written tokens are reported only for requests that asked for caching, as Anthropic does.
    """
    written = usage.stored_tokens if cached else 0
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens - written,
        cache_creation_input_tokens=written,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=ThinkingDetails(thinking_tokens=usage.reasoning_tokens),
    )


class MessagesEncoder(Encoder):
    """See `Encoder`.

    `message_start` waits for the first event, usually a `Progress` with the number of cached tokens: clients read
    their context usage from `message_start`.
    """

    def __init__(self, shape: MessageShape, run: RunInfo) -> None:
        self._shape = shape
        self._run = run
        self._prompt_tokens = 0
        self._opened = False  # message_start was sent
        self._blocks = 0
        self._part: PartStarted | None = None  # begun by the model, but not yet sent as a block
        self._open: PartStarted | None = None
        self._said: list[str] = []  # of the open block of a thought or a summary

    def start(self, accepted: Sequence[Accepted]) -> bytes:
        self._prompt_tokens = accepted[0].prompt_tokens
        return b""

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case Progress():
                return self._begin(event.cached)
            case PartStarted(choice=0) | PartDelta(choice=0) | PartEnded(choice=0) | Finished(choice=0):
                return self._begin(0) + b"".join(self._frames(event))
            case _:
                return b""

    def keep_alive(self) -> bytes:
        return typed_frame("ping") if self._opened else COMMENT

    def failed(self, report: ErrorReport) -> bytes:
        return event_frame("error", error_of(report, self._run.id))

    def whole(self, completions: Sequence[Completion]) -> bytes:
        choice = completions[0].choices[0]
        blocks = map(self._whole_block, choice.parts)
        content = [block for block in blocks if block is not None]
        usage = usage_of(choice.finished.usage, cached=self._shape.cached)
        message = self._message(content, self._stop_of(choice.finished), usage)
        message.warnings = shared.warnings_of([choice.finished])
        return msgspec.json.encode(message)

    def _begin(self, cached: int) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        usage = Usage(prompt_tokens=self._prompt_tokens, cached_tokens=cached, completion_tokens=0)
        message = self._message([], Stop(), usage_of(usage, cached=False))
        return typed_frame("message_start", message=message) + self.keep_alive()

    def _message(self, content: list[BlockAnswer], stop: Stop, usage: MessageUsage) -> MessageAnswer:
        return MessageAnswer(
            id=ID_PREFIX + self._run.id,
            # Claude Code drops the thinking of an answer whose model is not the one it asked for.
            model=self._shape.model or self._run.model,
            content=content,
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=usage,
        )

    def _frames(self, event: PartStarted | PartDelta | PartEnded | Finished) -> Iterator[bytes]:
        match event:
            case PartStarted(kind="server_call" | "server_result") if not self._shape.servers:
                self._part = None
            case PartStarted(kind="reasoning" | "server_result"):
                # Templates often write empty reasoning, so a thinking block only starts with its first text.
                # The block of a result starts with the whole result.
                self._part = event
            case PartStarted():
                yield self._start_block(event)
            case PartDelta():
                yield from self._grow(event)
            case PartEnded():
                if self._open is not None:
                    if self._open.kind == "reasoning":
                        yield self._grew("signature_delta", signature=self._signature("".join(self._said)))
                    elif self._open.kind == "text" and self._shape.compacts:
                        # Anthropic's clients replace the content by each delta.
                        yield self._grew("compaction_delta", content="".join(self._said))
                    yield typed_frame("content_block_stop", index=self._blocks)
                    self._blocks += 1
                self._open, self._part, self._said = None, None, []
            case Finished():
                usage = usage_of(event.usage, cached=self._shape.cached)
                told = {} if not event.warnings else {"warnings": event.warnings}
                yield typed_frame("message_delta", delta=self._stop_of(event), usage=usage, **told)
                yield typed_frame("message_stop")

    def _start_block(self, part: PartStarted, text: str = "") -> bytes:
        self._open, self._part = part, None
        block = self._block_of(part, text, {})
        return typed_frame("content_block_start", index=self._blocks, content_block=block)

    def _grow(self, delta: PartDelta) -> Iterator[bytes]:
        match self._part:
            case PartStarted(kind="server_result") as part:
                yield self._start_block(part, delta.text)
                return
            case PartStarted() as part if delta.text and self._shape.thinking != "hidden":
                yield self._start_block(part)
        if not delta.text:
            return
        match self._open:
            case PartStarted(kind="text") if self._shape.compacts:
                self._said.append(delta.text)
            case PartStarted(kind="text"):
                yield self._grew("text_delta", text=delta.text)
            case PartStarted(kind="reasoning"):
                self._said.append(delta.text)
                if self._shape.thinking == "text":
                    yield self._grew("thinking_delta", thinking=delta.text)
            case PartStarted(kind="tool_call" | "server_call"):
                yield self._grew("input_json_delta", partial_json=delta.text)

    def _grew(self, type: str, **delta: str) -> bytes:
        return typed_frame("content_block_delta", index=self._blocks, delta={"type": type, **delta})

    def _whole_block(self, part: CompletedPart) -> BlockAnswer | None:
        match part.kind:
            case "reasoning":
                if not part.text or self._shape.thinking == "hidden":
                    return None
                shown = part.text if self._shape.thinking == "text" else ""
                return self._block_of(part, shown, {}, self._signature(part.text))
            case "server_call" | "server_result" if not self._shape.servers:
                return None
            case _:
                is_call = part.kind in ("tool_call", "server_call")
                arguments = object_of(part.text) if is_call else {}
                # Without an object, a limit cut the call.
                return None if arguments is None else self._block_of(part, part.text, arguments)

    def _signature(self, thought: str) -> str:
        """The signature of a thinking block: a hash of the thought, or the sealed thought if it is not shown."""
        if self._shape.thinking == "signature":
            return seal(thought)
        return hashlib.sha256(thought.encode()).hexdigest()[:32]

    def _stop_of(self, finished: Finished) -> Stop:
        if finished.reason == "stop" and finished.stop_sequence is not None:
            return Stop("stop_sequence", finished.stop_sequence)
        if finished.reason == "stop" and self._shape.compacts:
            return Stop("compaction")
        return Stop(STOP_REASON[finished.reason], None)

    def _block_of(
        self, part: PartStarted | CompletedPart, text: str, input: dict[str, Any], signature: str = ""
    ) -> BlockAnswer:
        """The block of a part with this text, or of a call with this input."""
        match part.kind:
            case "text" if self._shape.compacts:
                return CompactionAnswer(content=text or None)
            case "text":
                return TextAnswer(text=text)
            case "reasoning":
                return ThinkingAnswer(thinking=text, signature=signature)
            case "tool_call":
                family, _, member = (part.name or "").partition(SEPARATOR)
                call = ToolUseAnswer(id=use_id("toolu_", part.id), name=part.name or "", input=input)
                if member and family in self._shape.families:
                    call.name, call.toolset_name = member, family
                return call
            case "server_call" if part.server == WEB_SEARCH:
                return ServerToolUseAnswer(id=use_id("srvtoolu_", part.id), name=WEB_SEARCH, input=input)
            case "server_result" if part.server == WEB_SEARCH:
                pages = [
                    SearchResultAnswer(url=page.url, title=page.title, encrypted_content=seal(page.text))
                    for page in pages_of(text)
                ]
                failed = SearchErrorAnswer(error_code="unavailable")
                return SearchToolResultAnswer(
                    tool_use_id=use_id("srvtoolu_", part.id), content=failed if part.is_error else pages
                )
            case "server_call":
                return McpToolUseAnswer(
                    id=use_id("mcptoolu_", part.id),
                    name=part.name or "",
                    server_name=part.server or "",
                    input=input,
                )
            case "server_result":
                content = [TextAnswer(text=text)]
                return McpToolResultAnswer(
                    tool_use_id=use_id("mcptoolu_", part.id), is_error=part.is_error, content=content
                )


def use_id(prefix: str, id: str | None) -> str:
    """The id of a call with the prefix of its kind, which Anthropic's clients check."""
    return prefix + (id or "").removeprefix(prefix).removeprefix("call_")


VERSION: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
OVERLOADED: Final = 529
"""Anthropic's own status code, after which its clients wait and retry."""


class ThinkingSpec(Struct, kw_only=True):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: engine.Tokens | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None
    block_binding: Unused = None


class JsonOutput(Struct, tag_field="type", tag="json_schema", kw_only=True):
    schema: dict[str, Any] | bool


class OutputConfig(Struct, kw_only=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None
    task_budget: Unused = None


class Compaction(Struct, kw_only=True):
    type: Literal["summarize"]
    instructions: str | None = None


class MessagesBody(engine.EngineFields, kw_only=True, omit_defaults=True):
    """Fields of `POST /v1/messages` and, except `max_tokens`, of `POST /v1/messages/count_tokens`."""

    model: Annotated[str, about("The model; any `claude-*` name may be mapped to one.")]
    messages: Annotated[
        Annotated[list[MessageParam], Meta(min_length=1, max_length=100_000)],
        about("The conversation; a last message of the assistant is continued."),
    ]
    max_tokens: Annotated[engine.Tokens | None, about("Most new tokens; required; 0 fills the cache.")] = None
    system: Annotated[str | list[dict[str, Any]] | None, about("Text, or text blocks.")] = None
    stop_sequences: Annotated[shared.StopTexts | None, about("Texts that end the answer.")] = None
    stream: Annotated[bool | None, about("Send events as they happen.")] = None
    tools: Annotated[GivenTools | None, about("Tools that may be called.")] = None
    tool_choice: Annotated[
        ChoiceSpec | None, about("Which tools may or must be called, and whether one at a time.")
    ] = None
    thinking: Annotated[ThinkingSpec | None, about("Whether and how long to think; none if left out.")] = None
    output_config: Annotated[OutputConfig | None, about("JSON schema, effort.")] = None
    output_format: Annotated[JsonOutput | None, about("The schema, under its older name.")] = None
    n: Annotated[int, about("Only 1.", ge=1, le=1)] | None = None
    cache_control: Annotated[dict[str, Any] | None, about("Keep the whole prompt in the cache.")] = None
    context_management: Annotated[Any, about("Accepted: edits make room at Anthropic's.")] = None
    compaction: Annotated[
        Compaction | None, about("Answer with a summary, to send in place of the messages.")
    ] = None


class MessagesDialect(Dialect[MessageShape]):
    name = "messages"
    path = "/messages"
    id_prefix = ID_PREFIX
    answer = MessageAnswer
    failure = Failure
    contract = shared.contract_of(MessagesBody, __name__, required=frozenset({"max_tokens"}))
    encoder = MessagesEncoder

    def __init__(self, *, counting: bool = False) -> None:
        """`counting` is for count_tokens, whose bodies may lack `max_tokens`. They are decoded into the same request,
        so the count is exact."""
        self._counting = counting

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[MessageShape]:
        check_version(context.headers)
        fields, ignored = self.contract.decode(body)
        engine.check_unsummarised(fields)
        if fields.max_tokens is None and not self._counting:
            raise invalid("max_tokens", "is required.")
        reader = _read(fields)
        given = changed_tools(fields.tools or [], reader.changes)
        toolbox = toolbox_of(given, searches=context.searches)
        search = toolbox.search
        named = toolbox.tools if search is None else (*toolbox.tools, Tool(WEB_SEARCH))
        messages, cached = _pins(fields, engine.with_media_options(reader.messages, fields), reader.cached)
        choice = fields.tool_choice
        # Anthropic's `context_management` means something else: edits, which are not made here.
        unedited = msgspec.structs.replace(fields, context_management=None)
        request = msgspec.structs.replace(
            engine.request_of(unedited, fields.model, own_formats=_own_formats(fields)),
            messages=messages,
            tools=toolbox.tools,
            toolsets=toolbox.toolsets,
            web_search=None if search is None else search.wanted,
            max_tool_calls=None if search is None else search.max_uses,
            tool_choice=tool_choice_of(choice, named, toolbox.toolsets),
            parallel_tool_calls=choice is None or not choice.disable_parallel_tool_use,
            stop=fields.stop_sequences or (),
            max_tokens=fields.max_tokens,
            cut_max_tokens=True,
            thinking=_thinking(fields),
            continue_final=_continues(fields, messages),
        )
        if (compaction := fields.compaction) is not None:
            _check_compaction(fields)
            request = summary_request(request, compaction.instructions or "")
        return Decoded(
            requests=(request,),
            shape=MessageShape(
                thinking=_thinking_shown(fields),
                cached=cached,
                model=fields.model,
                servers=bool(toolbox.toolsets or search),
                families=families_of(given),
                compacts=compaction is not None,
            ),
            stream=bool(fields.stream),
            ignored=ignored,
            warnings=left_out(tools=toolbox.left_out, blocks=reader.skipped)
            + engine.reasoning_warnings(fields),
        )

    def status(self, report: ErrorReport) -> int:
        return OVERLOADED if report.kind == "overloaded" else report.status

    def error(self, report: ErrorReport, request_id: str) -> bytes:
        return msgspec.json.encode(error_of(report, request_id))


def check_version(headers: Mapping[str, str]) -> None:
    """The header may be missing, for convenience with curl; if present, it must be a date."""
    version = headers.get("anthropic-version")
    if version is not None and VERSION.fullmatch(version) is None:
        raise invalid("anthropic-version", "must be the date of an API version, such as 2023-06-01.")


def _check_compaction(fields: MessagesBody) -> None:
    """Raise `ServerError` for what shapes a reply, which a request for a summary does not get."""
    choice, output = fields.tool_choice, fields.output_config
    given = {
        "context_management": fields.context_management,
        "stop_sequences": fields.stop_sequences,
        "output_format": fields.output_format,
        "output_config.format": output and output.format,
        "tool_choice": choice is not None and choice.type in ("any", "tool"),
    }
    for name, value in given.items():
        if value:
            raise invalid(name, "can't be combined with `compaction`.")


def _read(fields: MessagesBody) -> MessagesReader:
    """The conversation, of which something is left that models here can read."""
    reader = MessagesReader()
    reader.system(fields.system or [])
    before = len(reader.messages)
    reader.read(fields.messages)
    if len(reader.messages) == (before if fields.messages else 0):
        raise invalid("messages", "must hold something that a model here can read.")
    return reader


def _pins(
    fields: MessagesBody, messages: tuple[Message, ...], cached: bool
) -> tuple[tuple[Message, ...], bool]:
    """The messages with the pins set outside of them, and whether the request asks for caching at all."""
    pinned = list(messages)
    if fields.cache_control and pinned:
        pinned[-1] = msgspec.structs.replace(pinned[-1], pin=True)
    tools_pinned = any(tool.get("cache_control") for tool in fields.tools or ())
    if tools_pinned and pinned and pinned[0].role == "system":
        pinned[0] = msgspec.structs.replace(pinned[0], pin=True)
    return tuple(pinned), cached or tools_pinned or bool(fields.cache_control)


def _continues(fields: MessagesBody, messages: tuple[Message, ...]) -> bool:
    """A last message of the assistant is continued, unless the request says otherwise."""
    if fields.continue_final_message is not None or fields.add_generation_prompt is not None:
        return engine.continues_final(fields)
    last = messages[-1]
    return last.role == "assistant" and bool(last.parts) and isinstance(last.parts[-1], Text)


def _own_formats(fields: MessagesBody) -> list[engine.Wanted]:
    config = fields.output_config or OutputConfig()
    given = {"output_config.format": config.format, "output_format": fields.output_format}
    return [
        engine.Wanted(name, engine.schema_format(each.schema, f"{name}.schema"), f"{name}.schema")
        for name, each in given.items()
        if each is not None
    ]


def _thinking(fields: MessagesBody) -> Thinking:
    """Anthropic's `thinking`: if left out, there is no thinking unless the operator says otherwise. The replaced
    servers' fields take precedence."""
    asked = engine.thinking_of(fields)
    spec, config = fields.thinking, fields.output_config
    enabled = asked.enabled
    if enabled is None and spec is not None:
        enabled = spec.type != "disabled"
    budget = asked.budget
    if budget is None and spec is not None and spec.type != "disabled":
        budget = spec.budget_tokens
    effort = asked.effort or (config.effort if config is not None else None)
    return msgspec.structs.replace(asked, enabled=enabled, off_by_default=True, budget=budget, effort=effort)


def _thinking_shown(fields: MessagesBody) -> ThinkingShown:
    if not engine.shows_reasoning(fields):
        return "hidden"
    spec = fields.thinking
    return "signature" if spec is not None and spec.display == "omitted" else "text"


dialect = MessagesDialect()

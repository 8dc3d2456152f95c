"""The dialect of OpenAI's Chat Completions: its body and messages, and how they are decoded into a request."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, RunInfo
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import about, called, invalid, unsupported
from pippin.api.dialects.shared.media import Content, part_of, placed
from pippin.api.dialects.shared.tools import (
    MAX_MESSAGES,
    MAX_TOOLS,
    CalledFunction,
    ChatSearch,
    FunctionDefinition,
    GivenCall,
    McpTool,
    call_of,
    citations_of,
    offer,
    pages_of,
    toolset_of,
)
from pippin.core.completion import CompletedChoice, Completion
from pippin.core.conversation import (
    WEB_SEARCH,
    Attachment,
    FoundPage,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    Tool,
    ToolChoice,
    ToolResult,
    Toolset,
)
from pippin.core.events import Event, Finished, PartDelta, PartKind, PartStarted, Progress, Token
from pippin.core.requests import GenerationRequest

_encode = msgspec.json.encode


ID_PREFIX: Final = "chatcmpl-"


class ChatShape(Struct, frozen=True, kw_only=True):
    stream: shared.StreamShape = field(default_factory=shared.StreamShape)
    n: int = 1
    logprobs: bool = False
    reasoning: bool = True  # whether reasoning may be shown
    searches: bool = False  # the answer may cite pages


class AnswerFunction(Struct, kw_only=True):
    name: str
    arguments: str


class AnswerCall(Struct, kw_only=True):
    id: str
    function: AnswerFunction
    type: Literal["function"] = "function"


class UrlCitation(Struct):
    start_index: int
    end_index: int
    url: str
    title: str


class Annotation(Struct):
    url_citation: UrlCitation
    type: Literal["url_citation"] = "url_citation"


class AnswerMessage(Struct, kw_only=True):
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[AnswerCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: str | None = None
    annotations: list[Annotation] = field(default_factory=list)
    role: Literal["assistant"] = "assistant"


class AnswerChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: shared.LogprobsBody | None
    finish_reason: str


class ChatCompletion(Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: shared.UsageBody
    system_fingerprint: str
    request_id: str
    timings: shared.TimingsBody | None = None
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    object: Literal["chat.completion"] = "chat.completion"


class ChatEncoder(shared.ChunkEncoder, Encoder):
    """See `Encoder`."""

    def __init__(self, shape: ChatShape, run: RunInfo) -> None:
        self._about = shared.AnswerHead(
            id=ID_PREFIX + run.id, created=run.created, model=run.model, system_fingerprint=run.fingerprint
        )
        super().__init__("chat.completion.chunk", self._about, shape.stream, requests=1, choices=shape.n)
        self._shape = shape
        self._openings = [
            self._head + b'{"index":%d,"delta":{' % choice + b'"content":' for choice in range(shape.n)
        ]
        self._kinds: dict[tuple[int, int], tuple[PartKind, int]] = {}
        self._calls = [0] * shape.n
        self._begun = [False] * shape.n  # the chunk with the role was sent
        self._said: list[str] = []  # where pages may be cited: the text so far
        self._pages: list[FoundPage] = []

    def event(self, event: Event, request: int = 0) -> bytes:
        match event:
            case PartDelta(choice, index, text, tokens, completed):
                self._completed[choice] = completed or self._completed[choice]
                kind, call = self._kinds[choice, index]
                if kind == "text":
                    if self._shape.searches:
                        self._said.append(text)
                    return self._text(choice, text, tokens)
                if kind == "reasoning":
                    return self._reasoning(choice, text)
                if kind == "server_result" and self._shape.searches:
                    self._pages += pages_of(text)
                if kind != "tool_call" or not text:
                    return b""
                function = b'"function":{"arguments":%b}' % _encode(text)
                return self._chunk(choice, b'"tool_calls":[{"index":%d,%b}]' % (call, function))
            case PartStarted(choice):
                return self._begin(choice, event.kind) + self._part(event)
            case Finished(choice):
                return self._begin(choice, "text") + self._end_of_choice(event)
            case Progress():
                # llama.cpp puts the role into each of these deltas. OpenAI's SDKs concatenate the strings of deltas and
                # would get "assistantassistant".
                empty = b'{"index":0,"delta":{},"logprobs":null,"finish_reason":null}'
                return self._progress(0, empty, event)
            case _:
                return b""

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [completion] = completions
        finished = [choice.finished for choice in completion.choices]
        return _encode(
            ChatCompletion(
                **self._about,
                choices=[self._answer(number, choice) for number, choice in enumerate(completion.choices)],
                usage=shared.usage_body([[each.usage for each in finished]]),
                request_id=self._about["id"].removeprefix(ID_PREFIX),
                timings=shared.timings_body(finished),
                warnings=shared.warnings_of(finished),
            )
        )

    def _begin(self, choice: int, kind: PartKind) -> bytes:
        """The chunk with the role, before the first part of a choice; null content if that part is a tool call."""
        if self._begun[choice]:
            return b""
        self._begun[choice] = True
        content = b"null" if kind == "tool_call" else b'""'
        return self._chunk(choice, b'"role":"assistant","content":%b,"refusal":null' % content)

    def _text(self, choice: int, text: str, tokens: tuple[Token, ...] = ()) -> bytes:
        if not text and not tokens:
            return b""
        if self._shape.logprobs:
            logprobs = b',"logprobs":' + _encode(shared.LogprobsBody(content=shared.logprobs_of(tokens)))
        else:
            logprobs = b',"logprobs":null'
        tail = self._tail_of_chunk()
        return self._openings[choice] + _encode(text) + b"}" + logprobs + b',"finish_reason":null}' + tail

    def _reasoning(self, choice: int, text: str) -> bytes:
        if not text or not self._shape.reasoning:
            return b""
        quoted = _encode(text)
        return self._chunk(choice, b'"reasoning_content":' + quoted + b',"reasoning":' + quoted)

    def _part(self, part: PartStarted) -> bytes:
        place = part.choice, part.index
        if part.kind != "tool_call":
            self._kinds[place] = part.kind, 0
            gap = self._text if part.kind == "text" else self._reasoning
            return gap(part.choice, part.gap)
        call = self._calls[part.choice]
        self._calls[part.choice] += 1
        self._kinds[place] = part.kind, call
        function = {"name": part.name, "arguments": ""}
        opened = {"index": call, "id": part.id, "type": "function", "function": function}
        return self._chunk(part.choice, b'"tool_calls":[' + _encode(opened) + b"]")

    def _end_of_choice(self, finished: Finished) -> bytes:
        cited = b""
        if self._pages and (found := annotations_of("".join(self._said), self._pages)):
            cited = self._chunk(finished.choice, b'"annotations":' + _encode(found))
        [choices] = self._finished
        choices.append(finished)
        self._completed[finished.choice] = finished.usage.completion_tokens
        last = len(choices) == self._shape.n
        tail = self._tail_of_choice(finished)
        if last and not self._shape.stream.usage:
            usage = b""
            if self._shape.stream.usage_unasked:
                usage = b',"usage":' + _encode(shared.usage_body([[each.usage for each in choices]]))
            timings = b',"timings":' + _encode(shared.timings_body(choices))
            tail = b"]" + usage + timings + tail.removeprefix(b"]")
        reason = finished.reason.encode()
        return (
            cited
            + self._head
            + b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":"%b"}' % (finished.choice, reason)
            + tail
        )

    def _chunk(self, choice: int, delta: bytes) -> bytes:
        body = b'{"index":%d,"delta":{%b},"logprobs":null,"finish_reason":null}' % (choice, delta)
        return self._head + body + self._tail_of_chunk()

    def _answer(self, number: int, choice: CompletedChoice) -> AnswerChoice:
        calls = [
            AnswerCall(id=part.id or "", function=AnswerFunction(name=part.name or "", arguments=part.text))
            for part in choice.parts
            if part.kind == "tool_call"
        ]
        found = [
            part.text for part in choice.parts if part.server == WEB_SEARCH and part.kind == "server_result"
        ]
        pages = [page for each in found for page in pages_of(each)]
        text = choice.text("text")
        thought = choice.text("reasoning") if self._shape.reasoning else ""
        message = AnswerMessage(
            content=text if text or not calls else None,
            reasoning_content=thought or msgspec.UNSET,
            reasoning=thought or msgspec.UNSET,
            tool_calls=calls or msgspec.UNSET,
            annotations=annotations_of(text, pages),
        )
        logprobs = None
        if self._shape.logprobs:
            logprobs = shared.LogprobsBody(content=shared.logprobs_of(choice.tokens("text")))
        reason = choice.finished.reason
        return AnswerChoice(index=number, message=message, logprobs=logprobs, finish_reason=reason)


def annotations_of(text: str, pages: list[FoundPage]) -> list[Annotation]:
    return [Annotation(UrlCitation(**each)) for each in citations_of(text, pages)]


class SystemMessage(Struct, tag_field="role", tag="system", kw_only=True):
    role: ClassVar[Role] = "system"
    content: Content
    name: str | None = None


class DeveloperMessage(SystemMessage, tag="developer"):
    role = "developer"


class UserMessage(SystemMessage, tag="user"):
    role = "user"


class AssistantMessage(Struct, tag_field="role", tag="assistant", kw_only=True):
    content: Content = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[GivenCall, ...] | None = None
    function_call: CalledFunction | None = None
    audio: Any = None
    name: str | None = None
    partial: bool | None = None  # a prefill, as mlx-openai-server marks it
    prefix: bool | None = None  # the same, as Mistral and DeepSeek do


class ToolMessage(Struct, tag_field="role", tag="tool", kw_only=True):
    content: Content
    tool_call_id: str
    name: str | None = None


class FunctionMessage(Struct, tag_field="role", tag="function", kw_only=True):
    content: Content
    name: str


ChatMessage = (
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
)
ChatMessages = Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]


def messages_of(messages: tuple[ChatMessage, ...]) -> tuple[Message, ...]:
    return tuple(_message_of(message, f"messages[{place}]") for place, message in enumerate(messages))


def _message_of(message: ChatMessage, at: str) -> Message:
    pin = isinstance(message.content, tuple) and any(
        part.prompt_cache_breakpoint is not None or part.cache_control is not None for part in message.content
    )
    parts = _parts_of(message.content, f"{at}.content")
    match message:
        case UserMessage() if message.content is None:
            raise invalid(f"{at}.content", "must be a string or a list of parts.")
        case SystemMessage():
            return Message(message.role, parts, message.name, pin)
        case AssistantMessage():
            return Message("assistant", _assistant_parts(message, parts, at), message.name, pin)
        case ToolMessage() | FunctionMessage():
            call_id = message.tool_call_id if isinstance(message, ToolMessage) else message.name
            fit = tuple(part for part in parts if isinstance(part, Text | Attachment))
            if len(fit) != len(parts):
                raise unsupported(f"{at}.content", "a tool's result may hold text and media.")
            return Message("tool", (ToolResult(call_id, fit, message.name),), pin=pin)


def _assistant_parts(message: AssistantMessage, said: tuple[Part, ...], at: str) -> tuple[Part, ...]:
    if message.audio is not None:
        raise unsupported(f"{at}.audio", "give what was said as text in `content`.")
    parts: list[Part] = []
    thought = message.reasoning_content or message.reasoning
    if thought and not any(isinstance(part, Reasoning) for part in said):
        parts.append(Reasoning(thought))
    parts += said
    if message.refusal:
        parts.append(Text(message.refusal, apart=True))
    calls = list(message.tool_calls or ())
    if message.function_call is not None:
        calls.append(GivenCall(function=message.function_call))
    parts += (call_of(call, f"{at}.tool_calls[{place}]") for place, call in enumerate(calls))
    if not parts and message.content is None:
        raise invalid(f"{at}.content", "is required unless `tool_calls` is given.")
    return tuple(parts)


def _parts_of(content: Content, at: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),) if content else ()
    return tuple(
        placed(part_of(part, f"{at}[{place}]"), f"{at}[{place}]") for place, part in enumerate(content)
    )


class ChatFunction(FunctionDefinition, kw_only=True):
    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class FunctionTool(Struct, tag_field="type", tag="function", kw_only=True):
    function: ChatFunction


class CustomTool(Struct, tag_field="type", tag="custom", kw_only=True):
    custom: Any = None


class FunctionName(Struct, kw_only=True):
    name: str


class NamedChoice(Struct, tag_field="type", tag="function", kw_only=True):
    function: FunctionName


class AllowedTool(Struct, kw_only=True):
    type: str | None = None
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[AllowedTool, ...], Meta(min_length=1)]


class AllowedChoice(Struct, tag_field="type", tag="allowed_tools", kw_only=True):
    allowed_tools: AllowedTools


GivenTools = Annotated[tuple[FunctionTool | CustomTool | McpTool, ...], Meta(max_length=MAX_TOOLS)]
GivenChoice = Literal["none", "auto", "required"] | NamedChoice | CustomTool | AllowedChoice


def tools_of(given: GivenTools | None) -> tuple[tuple[Tool, ...], tuple[Toolset, ...]]:
    """The functions, and the MCP servers."""
    tools: dict[str, Tool] = {}
    toolsets: list[Toolset] = []
    for place, tool in enumerate(given or ()):
        if isinstance(tool, CustomTool):
            raise unsupported(
                f"tools[{place}].type", 'only tools of type "function" and "mcp" are supported.'
            )
        if isinstance(tool, FunctionTool):
            offer(tool.function, tools, f"tools[{place}].function")
        else:
            toolsets.append(toolset_of(tool, f"tools[{place}]"))
    return tuple(tools.values()), tuple(toolsets)


def tool_choice_of(
    given: GivenChoice | None, tools: tuple[Tool, ...], toolsets: tuple[Toolset, ...] = ()
) -> ToolChoice:
    match given:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            choice = ToolChoice("required")
        case NamedChoice(function=named):
            choice = ToolChoice("required", (named.name,))
        case AllowedChoice(allowed_tools=allowed):
            choice = ToolChoice(allowed.mode, tuple(tool.function.name for tool in allowed.tools))
        case CustomTool():
            raise unsupported("tool_choice", "custom tools are not supported; choose a function.")
    if not tools and not toolsets:
        raise invalid("tool_choice", "asks for a call, but `tools` is empty.")
    if set(choice.names) - {tool.name for tool in tools}:
        raise invalid("tool_choice", "names a tool that is not in `tools`.")
    return choice


class PredictedText(Struct, tag_field="type", tag="text", kw_only=True):
    text: str


class Prediction(Struct, tag_field="type", tag="content", kw_only=True):
    content: str | tuple[PredictedText, ...]


class ChatRequest(shared.OpenAIFields, kw_only=True, omit_defaults=True):
    messages: Annotated[ChatMessages, about("The conversation so far.")]
    max_completion_tokens: Annotated[
        engine.MostTokens | None,
        about("Most new tokens, reasoning among them; wins over `max_tokens`."),
    ] = None
    tools: Annotated[GivenTools | None, about("Functions that may be called.")] = None
    tool_choice: Annotated[GivenChoice | None, about("Whether and which of them must be called.")] = None
    parallel_tool_calls: Annotated[bool | None, about("False, or a named tool: one call.")] = None
    logprobs: Annotated[bool | None, about("Report the log probability of each token.")] = None
    top_logprobs: Annotated[engine.TopLogprobs | None, about("And of this many others beside it.")] = None
    modalities: Annotated[tuple[Literal["text"], ...] | None, about('Only ["text"].')] = None
    verbosity: Annotated[engine.Verbosity | None, about("Handed to the chat template.")] = None
    prediction: Annotated[
        Prediction | None,
        about("Text that the answer is expected to repeat: it comes sooner then."),
    ] = None
    web_search_options: Annotated[
        ChatSearch | None,
        about("Let Pippin search the web for the model, where the operator names what searches."),
    ] = None


class ChatDialect(shared.OpenAIErrors, Dialect[ChatShape]):
    name = "chat_completions"
    path = "/chat/completions"
    id_prefix = ID_PREFIX
    answer = ChatCompletion
    encoder = ChatEncoder
    contract = shared.contract_of(ChatRequest, __name__)

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[ChatShape]:
        fields, ignored = self.contract.decode(body)
        shared.check_values(fields)
        engine.check_unsummarised(fields)
        if fields.top_logprobs is not None and not fields.logprobs:
            raise invalid("top_logprobs", "needs `logprobs` to be true.")
        for name in ("max_tokens", "max_completion_tokens"):
            if getattr(fields, name) == 0:
                raise invalid(name, "must be at least 1.")
        if fields.continue_final_message and not isinstance(fields.messages[-1], AssistantMessage):
            raise invalid("continue_final_message", "needs the last message to be the assistant's.")
        request = request_of(fields)
        if fields.web_search_options is not None:
            if not context.searches:
                raise unsupported(
                    "web_search_options",
                    "nothing here searches the web; give the model a tool, or an MCP server.",
                )
            request = replace(request, web_search=fields.web_search_options.wanted)
        return Decoded(
            requests=(request,),
            shape=ChatShape(
                stream=shared.stream_shape_of(fields, usage_unasked=context.stream_usage),
                n=fields.n or 1,
                logprobs=bool(fields.logprobs),
                reasoning=engine.shows_reasoning(fields),
                searches=request.web_search is not None,
            ),
            stream=bool(fields.stream),
            ignored=ignored,
            warnings=engine.reasoning_warnings(fields),
        )


def request_of(fields: ChatRequest) -> GenerationRequest:
    """The request in a body. The form of the answer (`stream`, `n`, `logprobs`) is in the shape."""
    messages = engine.with_media_options(messages_of(fields.messages), fields)
    request = engine.request_of(fields, fields.model, verbosity=fields.verbosity)
    last, expected = fields.messages[-1], fields.prediction.content if fields.prediction else ""
    prefills = isinstance(last, AssistantMessage) and bool(last.partial or last.prefix)
    limit = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    tools, toolsets = tools_of(fields.tools)
    choice = tool_choice_of(fields.tool_choice, tools, toolsets)
    return replace(
        request,
        messages=messages,
        tools=tools,
        toolsets=toolsets,
        tool_choice=choice,
        parallel_tool_calls=shared.makes_several_calls(fields.parallel_tool_calls, choice),
        stop=shared.stops_of(fields.stop),
        max_tokens=shared.limit_of(fields.max_completion_tokens or fields.max_tokens),
        n=fields.n or 1,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        continue_final=engine.continues_final(fields) or prefills,
        prediction=(expected if isinstance(expected, str) else "".join(part.text for part in expected))
        or None,
        names=(*called(max_tokens=limit), *request.names),
    )


dialect = ChatDialect()

"""The dialects of OpenAI's Responses API: decode a body into a request, for an answer or for a summary."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect, Encoder, History, RunInfo
from pippin.api.dialects.responses.answer import (
    ID_PREFIX,
    CompactedConversation,
    ReasoningShown,
    ResponseAnswer,
    ResponseConversation,
    ResponseReasoning,
    ResponsesEncoder,
    ResponseShape,
    ResponseText,
    SchemaFormat,
    response_id,
    stored_items,
    usage_of,
)
from pippin.api.dialects.responses.items import Item, ItemsReader
from pippin.api.dialects.responses.tools import GivenChoice, GivenTools, Toolbox, tool_choice_of, toolbox_of
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import about, called, convert, invalid, unsupported
from pippin.api.dialects.shared.sealed_text import seal
from pippin.api.dialects.shared.tools import left_out
from pippin.core.completion import Completion
from pippin.core.conversation import Message, Text
from pippin.core.errors import ServerError
from pippin.core.requests import GenerationRequest, JsonObject
from pippin.service.summaries import summary_request

MOST_TOKENS: Final = 100_000_000

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class TextConfig(Struct, kw_only=True):
    format: engine.TextFormat | engine.JsonObjectFormat | SchemaFormat | None = None
    verbosity: engine.Verbosity | None = None


class EffortUpdate(Struct, kw_only=True):
    effort: engine.Effort | None = None


class TextUpdate(Struct, kw_only=True):
    format: engine.TextFormat | SchemaFormat


class ConfigurationUpdate(Struct, kw_only=True):
    """An item that sets the effort and the format of the text from its place on."""

    reasoning: EffortUpdate | None = None
    text: TextUpdate | None = None


class ConversationReference(Struct, kw_only=True):
    id: Identifier


class ResponsesBody(engine.EngineFields, kw_only=True, omit_defaults=True):
    """Fields of `POST /v1/responses`."""

    model: Annotated[str | None, about("The model that answers.")] = None
    input: Annotated[str | list[dict[str, Any]] | None, about("Text, or items.")] = None
    instructions: Annotated[str | None, about("System message before the conversation.")] = None
    previous_response_id: Annotated[Identifier | None, about("Stored response that this one continues.")] = (
        None
    )
    conversation: Annotated[
        Identifier | ConversationReference | None, about("Conversation that this turn joins.")
    ] = None
    store: Annotated[bool | None, about("Keep the response for later turns; default true.")] = None
    background: Annotated[bool | None, about("Answer at once, run on; poll for it.")] = None
    stream: Annotated[bool | None, about("Send events as they happen.")] = None
    include: Annotated[tuple[Include, ...] | None, about("More to put into the answer.")] = None
    tools: Annotated[GivenTools | None, about("Tools that may be called.")] = None
    tool_choice: Annotated[GivenChoice, about("Which tools may, must or must not be called.")] = None
    parallel_tool_calls: Annotated[bool | None, about("False, or a named tool: one call.")] = None
    max_tool_calls: Annotated[int, about("Most calls that Pippin makes of MCP tools.", ge=1)] | None = None
    text: Annotated[TextConfig | None, about("Format of the text; verbosity goes to the chat template.")] = (
        None
    )
    max_output_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None,
        about("Most new tokens, reasoning included."),
    ] = None
    top_logprobs: Annotated[engine.TopLogprobs | None, about("Alternatives beside each token.")] = None
    stop: Annotated[shared.StopText | shared.StopTexts | None, about("Ends the answer.")] = None
    n: Annotated[int, about("Only 1.", ge=1, le=1)] | None = None
    metadata: Annotated[Metadata | None, about("Given back with the response.")] = None
    service_tier: Annotated[str | None, about("Given back with the response.")] = None
    safety_identifier: Annotated[str | None, about("Given back with the response.")] = None
    prompt_cache_key: Annotated[str | None, about("Given back with the response.")] = None
    user: Annotated[str | None, about("Given back with the response.")] = None


class ResponsesDialect(shared.OpenAIErrors, Dialect[ResponseShape]):
    name = "responses"
    path = "/responses"
    id_prefix = ID_PREFIX
    answer = ResponseAnswer
    contract = shared.contract_of(ResponsesBody, __name__)

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[ResponseShape]:
        fields, ignored = self.contract.decode(body)
        if fields.background and fields.store is False:
            raise invalid("background", "needs `store`: the response is fetched from the store.")
        given = items_of(fields.input)
        reader, toolbox = _read(fields, given, context)
        fields = _configured(fields, reader)
        messages = engine.with_media_options(reader.messages, fields)
        if fields.instructions:
            messages = (Message("system", (Text(fields.instructions),)), *messages)
        if not messages:
            raise invalid("input", "is required: send text or items, or continue a stored response.")
        request = _request(fields, messages, toolbox)
        shown: ReasoningShown = "text" if _reasoning_options(fields)[1] in (None, "none") else "summary"
        return Decoded(
            requests=(summary_request(request) if reader.compacts else request,),
            shape=ResponseShape(
                draft=_draft(fields),
                input=given,
                toolbox=toolbox,
                reasoning=shown if engine.shows_reasoning(fields) else "hidden",
                sealed="reasoning.encrypted_content" in (fields.include or ()),
                sourced="web_search_call.action.sources" in (fields.include or ()),
                compacts=reader.compacts,
            ),
            stream=bool(fields.stream),
            ignored=ignored,
            warnings=left_out(tools=toolbox.left_out, items=reader.skipped)
            + engine.reasoning_warnings(fields),
        )

    def encoder(self, shape: ResponseShape, run: RunInfo) -> ResponsesEncoder:
        return ResponsesEncoder(shape, run)


def items_of(given: str | list[Item] | None) -> tuple[Item, ...]:
    if isinstance(given, str):
        return ({"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]},)
    return tuple(given or ())


def _read(
    fields: ResponsesBody, given: tuple[Item, ...], context: DecodeContext
) -> tuple[ItemsReader, Toolbox]:
    """Read the earlier turns and this one."""
    history = context.history
    reader = ItemsReader(history.item, complete=fields.previous_response_id is not None)
    if fields.previous_response_id is not None:
        if fields.conversation is not None:
            raise invalid("conversation", "can't be combined with `previous_response_id`.")
        try:
            before = history.items(fields.previous_response_id)
        except ServerError as error:
            unknown = msgspec.structs.replace(
                error.report, param="previous_response_id", code="previous_response_not_found"
            )
            raise ServerError.of(unknown) from None
        reader.read(before, "previous_response_id")
    if (conversation := conversation_of(fields)) is not None:
        reader.read(history.conversation(conversation), "conversation")
    reader.read(given)
    own = fields.tools or []
    return reader, toolbox_of(own + reader.tools, own=len(own), searches=context.searches)


def _configured(fields: ResponsesBody, reader: ItemsReader) -> ResponsesBody:
    """The fields as the conversation's configuration updates set them, the last of which count."""
    for param, item in reader.updates:
        update = convert(item, ConfigurationUpdate, param)
        if update.reasoning is not None and update.reasoning.effort is not None:
            fields = msgspec.structs.replace(fields, reasoning_effort=update.reasoning.effort)
        if update.text is not None:
            text = msgspec.structs.replace(fields.text or TextConfig(), format=update.text.format)
            fields = msgspec.structs.replace(fields, text=text)
    return fields


def conversation_of(fields: ResponsesBody) -> str | None:
    joined = fields.conversation
    return joined.id if isinstance(joined, ConversationReference) else joined


def _request(fields: ResponsesBody, messages: tuple[Message, ...], toolbox: Toolbox) -> GenerationRequest:
    choice = tool_choice_of(fields.tool_choice, toolbox)
    wants_logprobs = "message.output_text.logprobs" in (fields.include or ()) or fields.top_logprobs
    # A compaction rule asks for a summary of the oldest turns. Pippin summarizes when the context window is full,
    # whatever `compact_threshold` says, so that no text is lost that would still fit.
    compacts = bool(fields.context_management)
    plain = msgspec.structs.replace(fields, context_management=None) if compacts else fields
    verbosity = fields.text.verbosity if fields.text else None
    request = engine.request_of(
        plain, fields.model or "default", verbosity=verbosity, own_formats=_own_formats(fields)
    )
    return msgspec.structs.replace(
        request,
        messages=messages,
        tools=toolbox.tools,
        toolsets=toolbox.toolsets,
        web_search=toolbox.search,
        tool_choice=choice,
        parallel_tool_calls=shared.makes_several_calls(fields.parallel_tool_calls, choice),
        max_tool_calls=fields.max_tool_calls,
        stop=shared.stops_of(fields.stop),
        max_tokens=fields.max_output_tokens,
        logprobs=(fields.top_logprobs or 0) if wants_logprobs else None,
        continue_final=engine.continues_final(fields),
        overflow="summarize" if compacts else request.overflow,
        names=(
            *called(messages="input", max_tokens="max_output_tokens", logprobs="top_logprobs"),
            *request.names,
        ),
    )


def _own_formats(fields: ResponsesBody) -> list[engine.Wanted]:
    match fields.text.format if fields.text is not None else None:
        case SchemaFormat() as given:
            path = "text.format.schema"
            wanted = engine.schema_format(given.schema, path, given.name, bool(given.strict))
            return [engine.Wanted("text.format", wanted, path)]
        case engine.JsonObjectFormat():
            return [engine.Wanted("text.format", JsonObject())]
        case _:
            return []


def _reasoning_options(fields: ResponsesBody) -> tuple[str | None, Any]:
    """The effort and the summary that the response repeats."""
    match fields.reasoning:
        case str() as effort:
            return fields.reasoning_effort or effort, None
        case None | bool():
            return fields.reasoning_effort, None
        case options:
            return fields.reasoning_effort or options.effort, options.summary or options.generate_summary


def _draft(fields: ResponsesBody) -> ResponseAnswer:
    """The response before its run: the repeated fields of the request, and no output."""
    effort, summary = _reasoning_options(fields)
    conversation, text = conversation_of(fields), fields.text or TextConfig()
    return ResponseAnswer(
        id="",
        created_at=0,
        status="queued" if fields.background else "in_progress",
        model=fields.model or "",
        output=[],
        background=bool(fields.background),
        store=fields.store is not False,
        previous_response_id=fields.previous_response_id,
        conversation=ResponseConversation(id=conversation) if conversation else None,
        instructions=fields.instructions,
        tools=[
            {"description": None, "parameters": None, **tool, "strict": bool(tool.get("strict"))}
            if tool.get("type") == "function"
            else tool
            for tool in fields.tools or ()
        ],
        tool_choice=fields.tool_choice or "auto",
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        text=ResponseText(
            format=text.format or engine.TextFormat(),
            verbosity=UNSET if text.verbosity is None else text.verbosity,
        ),
        reasoning=ResponseReasoning(effort=effort, summary=summary),
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        top_logprobs=fields.top_logprobs or 0,
        max_output_tokens=fields.max_output_tokens,
        max_tool_calls=fields.max_tool_calls,
        truncation=fields.truncation or "disabled",
        metadata=fields.metadata or {},
        service_tier="default" if fields.service_tier in (None, "auto") else fields.service_tier,
        safety_identifier=fields.safety_identifier,
        prompt_cache_key=fields.prompt_cache_key,
        user=fields.user,
    )


class CompactionEncoder(Encoder):
    """Encodes whole answers only: `decode` refuses streams."""

    def __init__(self, kept: tuple[Item, ...], run: RunInfo) -> None:
        self._kept = kept
        self._run = run

    def whole(self, completions: Sequence[Completion]) -> bytes:
        [choice] = completions[0].choices
        summary = {
            "id": f"cmp_{self._run.id}",
            "type": "compaction",
            "encrypted_content": seal(choice.text("text").strip()),
        }
        kept = stored_items(self._kept, self._run.id, History().item)
        answer = CompactedConversation(
            id=response_id(self._run),
            created_at=self._run.created,
            output=[*kept, summary],
            usage=usage_of(choice.finished.usage),
        )
        return msgspec.json.encode(answer)


class CompactionDialect(shared.OpenAIErrors, Dialect[tuple[Item, ...]]):
    """Reads the body like that of a response, and asks for a summary instead of an answer.

    The instruction comes last, so that the conversation's prefix in the cache is reused.
    """

    name = "responses_compact"
    path = "/responses/compact"
    id_prefix = ID_PREFIX
    contract = ResponsesDialect.contract
    answer = CompactedConversation
    encoder = CompactionEncoder

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[tuple[Item, ...]]:
        decoded = dialect.decode(body, context)
        # Unlike a response, a compaction has no default model.
        if not decoded.shape.draft.model:
            raise invalid("model", "is required: name the model that writes the summary.")
        if decoded.stream:
            raise unsupported("stream", "a compaction is answered in one piece; leave it out.")
        [asked] = decoded.requests
        previous = decoded.shape.draft.previous_response_id
        before = [] if previous is None else context.history.items(previous)
        said = (item for item in (*before, *decoded.shape.input) if item.get("role") == "user")
        return Decoded(
            requests=(summary_request(asked),),
            shape=tuple(said),
            ignored=decoded.ignored,
            warnings=decoded.warnings,
        )


dialect = ResponsesDialect()

"""The dialect of Anthropic's Messages API: decodes a body into a request."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from pippin.api.dialects.base import DecodeContext, Decoded, Dialect
from pippin.api.dialects.messages.content import MessageParam, MessagesReader
from pippin.api.dialects.messages.encode import (
    ID_PREFIX,
    Failure,
    MessageAnswer,
    MessagesEncoder,
    MessageShape,
    ThinkingShown,
    error_of,
)
from pippin.api.dialects.messages.tools import (
    ChoiceSpec,
    GivenTool,
    changed_tools,
    families_of,
    tool_choice_of,
    toolbox_of,
)
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.fields import Unused, invalid
from pippin.api.dialects.shared.tools import left_out
from pippin.core.conversation import WEB_SEARCH, Message, Text, Tool
from pippin.core.errors import ErrorReport
from pippin.core.requests import Thinking
from pippin.service.summaries import summary_request

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

    model: Annotated[str, Meta(description="The model; any `claude-*` name may be mapped to one.")]
    messages: Annotated[
        Annotated[list[MessageParam], Meta(min_length=1, max_length=100_000)],
        Meta(description="The conversation; a last message of the assistant is continued."),
    ]
    max_tokens: Annotated[
        engine.Tokens | None, Meta(description="Most new tokens; required; 0 fills the cache.")
    ] = None
    system: Annotated[str | list[dict[str, Any]] | None, Meta(description="Text, or text blocks.")] = None
    stop_sequences: Annotated[shared.StopTexts | None, Meta(description="Texts that end the answer.")] = None
    stream: Annotated[bool | None, Meta(description="Send events as they happen.")] = None
    tools: Annotated[list[GivenTool] | None, Meta(description="Tools that may be called.")] = None
    tool_choice: Annotated[
        ChoiceSpec | None, Meta(description="Which tools may or must be called, and whether one at a time.")
    ] = None
    thinking: Annotated[
        ThinkingSpec | None, Meta(description="Whether and how long to think; none if left out.")
    ] = None
    output_config: Annotated[OutputConfig | None, Meta(description="JSON schema, effort.")] = None
    output_format: Annotated[JsonOutput | None, Meta(description="The schema, under its older name.")] = None
    n: Annotated[Annotated[int, Meta(ge=1, le=1)] | None, Meta(description="Only 1.")] = None
    cache_control: Annotated[
        dict[str, Any] | None, Meta(description="Keep the whole prompt in the cache.")
    ] = None
    context_management: Annotated[Any, Meta(description="Accepted: edits make room at Anthropic's.")] = None
    compaction: Annotated[
        Compaction | None, Meta(description="Answer with a summary, to send in place of the messages.")
    ] = None


class MessagesDialect(Dialect[MessageShape]):
    name = "messages"
    path = "/messages"
    id_prefix = ID_PREFIX
    answer = MessageAnswer
    failure = Failure
    contract = shared.contract_of(MessagesBody, __name__, required=frozenset({"max_tokens"}))
    encoding = MessagesEncoder

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
        reader = MessagesReader()
        reader.system(fields.system or [])
        reader.read(fields.messages)
        if not reader.messages:
            raise invalid("messages", "must hold something that a model here can read.")
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
            stop=shared.stops_of(fields.stop_sequences, "stop_sequences"),
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
    given = {"output_format": fields.output_format}
    if fields.output_config is not None:
        given = {"output_config.format": fields.output_config.format} | given
    paths = {name: f"{name}.schema" for name in given}
    return [
        engine.Wanted(name, engine.schema_format(each.schema, paths[name]), paths[name])
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

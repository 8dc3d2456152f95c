"""The dialect of OpenAI's Chat Completions."""

from typing import Annotated, Literal

from msgspec import Meta
from msgspec.structs import replace

from pippin.api.dialects.base import DecodeContext, Decoded, RunInfo
from pippin.api.dialects.chat.encode import ID_PREFIX, ChatCompletion, ChatEncoder, ChatShape
from pippin.api.dialects.chat.messages import ChatMessage, is_prefill, messages_of
from pippin.api.dialects.chat.tools import GivenChoice, GivenTool, tool_choice_of, tools_of, toolsets_of
from pippin.api.dialects.shared import engine_fields as engine
from pippin.api.dialects.shared import openai_fields as shared
from pippin.api.dialects.shared.engine_fields import (
    ResponseFormat,
    Verbosity,
    output_format_of,
    sampling_of,
    with_media_options,
)
from pippin.api.dialects.shared.fields import Contract, invalid, unsupported
from pippin.api.dialects.shared.openai_answers import OpenAIErrors
from pippin.core.requests import GenerationRequest


class ChatRequest(shared.OpenAIFields, kw_only=True, omit_defaults=True):
    messages: Annotated[tuple[ChatMessage, ...], Meta(description="The conversation so far.")]
    max_completion_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=100_000_000)] | None,
        Meta(description="Most new tokens, reasoning among them; wins over `max_tokens`."),
    ] = None
    tools: Annotated[tuple[GivenTool, ...] | None, Meta(description="Functions that may be called.")] = None
    tool_choice: Annotated[
        GivenChoice | None, Meta(description="Whether and which of them must be called.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False stops after one call.")] = None
    response_format: Annotated[ResponseFormat | None, Meta(description="Form of the answer.")] = None
    logprobs: Annotated[bool | None, Meta(description="Report the log probability of each token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None, Meta(description="And of this many others beside it.")
    ] = None
    modalities: Annotated[tuple[Literal["text", "audio"], ...] | None, Meta(description='Only ["text"].')] = (
        None
    )
    verbosity: Annotated[Verbosity | None, Meta(description="Handed to the chat template.")] = None


REFUSED = shared.REFUSED | {
    "audio": "answers are text; use /v1/audio/speech to speak them.",
    "functions": "it is the old name of `tools`; use that.",
    "function_call": "it is the old name of `tool_choice`; use that.",
    "moderation": "Pippin runs no moderation model.",
    "web_search_options": "nothing here searches the web; give the model a tool, or an MCP server.",
    "best_of": "use `n`, or /v1/completions.",
    "suffix": "use /v1/completions.",
    "echo": "use /v1/completions.",
    "prompt_logprobs": "use /v1/completions with `echo` and `logprobs`.",
    "add_special_tokens": "the chat template adds them.",
}


class ChatDialect(OpenAIErrors):
    name = "chat_completions"
    path = "/chat/completions"
    id_prefix = ID_PREFIX
    answer = ChatCompletion
    contract = Contract(ChatRequest, shared.ACCEPTED, REFUSED, frozenset({"web_search_options"}))

    def decode(self, body: bytes, context: DecodeContext) -> Decoded[ChatShape]:
        fields, ignored = self.contract.decode(body)
        _check(fields)
        return Decoded(
            requests=(request_of(fields),),
            shape=ChatShape(
                stream=shared.stream_shape_of(fields),
                n=fields.n or 1,
                logprobs=bool(fields.logprobs),
                reasoning=engine.shows_reasoning(fields),
            ),
            stream=bool(fields.stream),
            ignored=ignored,
            warnings=engine.reasoning_warnings(fields),
        )

    def encoder(self, decoded: Decoded[ChatShape], run: RunInfo) -> ChatEncoder:
        return ChatEncoder(decoded.shape, run)


def request_of(fields: ChatRequest) -> GenerationRequest:
    """The request that a body asks for. How it is to be answered (`stream`, `n`, `logprobs`) is the shape's."""
    request = GenerationRequest(
        model=fields.model,
        messages=with_media_options(messages_of(fields.messages), fields),
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        tool_format=fields.tool_parser,
        read_calls=fields.parse_tool_calls is not False,
        sampling=sampling_of(fields),
        output_format=output_format_of(fields, fields.response_format),
        stop=shared.stops_of(fields.stop),
        max_tokens=fields.max_completion_tokens or fields.max_tokens,
        n=fields.n or 1,
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        thinking=engine.thinking_of(fields),
        template_kwargs=engine.template_kwargs_of(fields, fields.verbosity),
        continue_final=engine.continues_final(fields) or is_prefill(fields.messages),
        overflow=engine.overflow_of(fields),
    )
    request = engine.steered(request, fields)
    if fields.tools is None and fields.tool_choice is None:
        return request
    tools, toolsets = tools_of(fields.tools), toolsets_of(fields.tools)
    choice = tool_choice_of(fields.tool_choice, tools, toolsets)
    return replace(request, tools=tools, toolsets=toolsets, tool_choice=choice)


def _check(fields: ChatRequest) -> None:
    shared.check_values(fields)
    engine.check_unsummarised(fields)
    if fields.modalities is not None and fields.modalities != ("text",):
        raise unsupported("modalities", 'answers are text; send ["text"] or leave it out.')
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs", "needs `logprobs` to be true.")
    if fields.max_tokens == 0:
        raise invalid("max_tokens", "must be at least 1.")
    if (
        fields.continue_final_message
        and fields.messages
        and fields.messages[-1].__struct_config__.tag != "assistant"
    ):
        raise invalid("continue_final_message", "needs the last message to be the assistant's.")


dialect = ChatDialect()

"""The fields of the Responses API: those honoured, accepted and refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from pippin.api.dialects.responses.tools import GivenChoice, GivenTool
from pippin.api.dialects.shared import openai as shared
from pippin.api.dialects.shared.engine_fields import (
    EngineFields,
    JsonObjectFormat,
    TextFormat,
    TopLogprobs,
    Verbosity,
)
from pippin.api.dialects.shared.fields import BOOKKEEPING, accepted_beside

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


class SchemaFormat(Struct, tag_field="type", tag="json_schema", kw_only=True):
    """Here the schema is beside its name, not in an object of its own as in Chat Completions."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any] | bool
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True):
    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Verbosity | None = None


class ConversationReference(Struct, kw_only=True):
    id: Identifier


class ResponsesBody(EngineFields, kw_only=True, omit_defaults=True):
    """Fields of `POST /v1/responses`."""

    model: Annotated[str | None, Meta(description="The model that answers.")] = None
    input: Annotated[str | list[dict[str, Any]] | None, Meta(description="Text, or items.")] = None
    instructions: Annotated[str | None, Meta(description="System message before the conversation.")] = None
    previous_response_id: Annotated[
        Identifier | None, Meta(description="Stored response that this one continues.")
    ] = None
    conversation: Annotated[
        Identifier | ConversationReference | None, Meta(description="Conversation that this turn joins.")
    ] = None
    store: Annotated[bool | None, Meta(description="Keep the response for later turns; default true.")] = None
    background: Annotated[bool | None, Meta(description="Answer at once, run on; poll for it.")] = None
    stream: Annotated[bool | None, Meta(description="Send events as they happen.")] = None
    include: Annotated[tuple[Include, ...] | None, Meta(description="More to put into the answer.")] = None
    tools: Annotated[list[GivenTool] | None, Meta(description="Tools that may be called.")] = None
    tool_choice: Annotated[GivenChoice, Meta(description="Which tools may, must or must not be called.")] = (
        None
    )
    parallel_tool_calls: Annotated[bool | None, Meta(description="False stops after one call.")] = None
    max_tool_calls: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most calls that Pippin makes of MCP tools."),
    ] = None
    text: Annotated[
        TextConfig | None, Meta(description="Format of the text; verbosity goes to the chat template.")
    ] = None
    max_output_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None,
        Meta(description="Most new tokens, reasoning included."),
    ] = None
    top_logprobs: Annotated[TopLogprobs | None, Meta(description="Alternatives beside each token.")] = None
    stop: Annotated[str | shared.StopTexts | None, Meta(description="Ends the answer.")] = None
    n: Annotated[Annotated[int, Meta(ge=1, le=1)] | None, Meta(description="Only 1.")] = None
    metadata: Annotated[Metadata | None, Meta(description="Given back with the response.")] = None
    service_tier: Annotated[str | None, Meta(description="Given back with the response.")] = None
    safety_identifier: Annotated[str | None, Meta(description="Given back with the response.")] = None
    prompt_cache_key: Annotated[str | None, Meta(description="Given back with the response.")] = None
    user: Annotated[str | None, Meta(description="Given back with the response.")] = None


ACCEPTED: Final = accepted_beside(
    ResponsesBody,
    shared.ACCEPTED
    | {
        "stream_options": "Only asks for padding against eavesdroppers of encrypted streams.",
        "access_programs": "There are none.",
        "background_options": "A response in the background begins as soon as it can.",
        "image": "Pictures are sent to the model as they are.",
        "client_metadata": BOOKKEEPING,
        "personality": "A name of a style of OpenAI's models; put the style into `instructions`.",
    },
)
REFUSED: Final[Mapping[str, str]] = shared.REFUSED | {
    "return_progress": shared.NO_PROGRESS,
    "prompt": "this server keeps no prompt templates; send `instructions` and `input`.",
    "moderation": "no moderation model runs here.",
    "messages": "use `input`, or /v1/chat/completions.",
    "max_tokens": "use `max_output_tokens`.",
    "max_completion_tokens": "use `max_output_tokens`.",
    "logprobs": 'use `include: ["message.output_text.logprobs"]` and `top_logprobs`.',
}

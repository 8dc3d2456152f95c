"""The answers of the Responses API: the response object, and what surrounds stored items.

The encoders build these structs, and the OpenAPI document describes them. `UNSET` fields are omitted; `None` is written
as null.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from pippin.api.dialects.responses.output import Output
from pippin.api.dialects.shared.engine_fields import JsonObjectFormat, TextFormat, Verbosity
from pippin.api.dialects.shared.frames import Closed
from pippin.core.errors import ServerError
from pippin.core.events import Usage

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


def _content(message: ListedItem) -> list[ListedItem]:
    """The content as a list of parts, with the fields that clients expect in each."""
    written = message.get("role") == "assistant"
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "output_text" if written else "input_text", "text": content}]
    parts = []
    for part in content or []:
        match part.get("type"):
            case "output_text":
                parts.append({"annotations": [], **part})
            case "input_image":
                parts.append({"detail": "auto", **part})
            case _:
                parts.append(part)
    return parts

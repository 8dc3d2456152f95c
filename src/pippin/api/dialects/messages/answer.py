"""The answers of Anthropic's Messages API: the message, its content blocks, and errors.

The encoder builds these structs, and the OpenAPI document describes them.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from pippin.api.dialects.shared.frames import Closed


class TextAnswer(Closed, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Closed, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class ToolUseAnswer(Closed, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class McpToolUseAnswer(Closed, tag_field="type", tag="mcp_tool_use"):
    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpToolResultAnswer(Closed, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: list[TextAnswer]


BlockAnswer = TextAnswer | ThinkingAnswer | ToolUseAnswer | McpToolUseAnswer | McpToolResultAnswer
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


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

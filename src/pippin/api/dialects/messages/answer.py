"""The message that Anthropic's API answers with, for the OpenAPI document: every field that it may have."""

from typing import Any, Literal

from pippin.api.dialects.shared.frames import Closed


class TextAnswer(Closed, tag_field="type", tag="text"):
    text: str


class ThinkingAnswer(Closed, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class CallAnswer(Closed):
    id: str
    name: str
    input: dict[str, Any]


class ToolUseAnswer(CallAnswer, tag_field="type", tag="tool_use"):
    pass


class McpToolUseAnswer(CallAnswer, tag_field="type", tag="mcp_tool_use"):
    server_name: str


class McpToolResultAnswer(Closed, tag_field="type", tag="mcp_tool_result"):
    tool_use_id: str
    is_error: bool
    content: list[TextAnswer]


class ThinkingDetails(Closed):
    thinking_tokens: int


class MessageUsage(Closed):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingDetails


class MessageAnswer(Closed):
    """What `POST /v1/messages` answers; a stream's `message_start` holds its beginning."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextAnswer | ThinkingAnswer | ToolUseAnswer | McpToolUseAnswer | McpToolResultAnswer]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Closed):
    input_tokens: int

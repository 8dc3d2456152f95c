"""The response object and its items, for the OpenAPI document: every field that an answer may have."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from pippin.api.dialects.responses.body import TextConfig
from pippin.api.dialects.shared.frames import Closed

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class Logprob(Closed):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(Logprob):
    top_logprobs: list[Logprob]


class OutputText(Closed, tag_field="type", tag="output_text"):
    text: str
    annotations: list[str]
    logprobs: list[TokenLogprob]


class Words(Closed):
    text: str


class ReasoningText(Words, tag_field="type", tag="reasoning_text"):
    pass


class SummaryText(Words, tag_field="type", tag="summary_text"):
    pass


class Item(Closed):
    id: str
    status: ItemStatus


class CallItem(Item):
    """A call that the client runs."""

    call_id: str


class OutputMessage(Item, tag_field="type", tag="message"):
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoning(Item, tag_field="type", tag="reasoning"):
    summary: list[SummaryText]
    content: list[ReasoningText] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET


class OutputFunctionCall(CallItem, tag_field="type", tag="function_call"):
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class OutputCustomCall(CallItem, tag_field="type", tag="custom_tool_call"):
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class ShellCallItem(CallItem):
    action: dict[str, Any]


class OutputLocalShellCall(ShellCallItem, tag_field="type", tag="local_shell_call"):
    pass


class OutputShellCall(ShellCallItem, tag_field="type", tag="shell_call"):
    pass


class OutputPatchCall(CallItem, tag_field="type", tag="apply_patch_call"):
    status: Literal["in_progress", "completed"]
    operation: dict[str, Any]


class ListedTool(Closed):
    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: None


class OutputListedTools(Closed, tag_field="type", tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[ListedTool]
    error: None


class McpFailure(Closed):
    type: Literal["mcp_tool_execution_error"]
    content: list[dict[str, Any]]


class OutputMcpCall(Closed, tag_field="type", tag="mcp_call"):
    id: str
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    approval_request_id: None
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: McpFailure | None


Output = (
    OutputMessage
    | OutputReasoning
    | OutputFunctionCall
    | OutputCustomCall
    | OutputLocalShellCall
    | OutputShellCall
    | OutputPatchCall
    | OutputListedTools
    | OutputMcpCall
)


class ResponseFailure(Closed):
    code: str
    message: str


class Incompleteness(Closed):
    reason: Literal["max_output_tokens"]


class InputDetails(Closed):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Closed):
    reasoning_tokens: int


class ResponseUsage(Closed):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseReasoning(Closed):
    effort: str | None
    summary: str | None


class ResponseConversation(Closed):
    id: str


class ResponseAnswer(Closed):
    """What `POST /v1/responses` answers; the events of a stream hold it too."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseFailure | None
    incomplete_details: Incompleteness | None
    model: str
    output: list[Output]
    usage: ResponseUsage | None
    background: bool
    store: bool
    previous_response_id: str | None
    conversation: ResponseConversation | None
    instructions: str | None
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    text: TextConfig
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


class CompactedConversation(Closed):
    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage


class InputTokens(Closed):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(Closed):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemPage(Closed):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool

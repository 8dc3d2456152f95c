"""Reads the items of a Responses conversation into messages."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from pippin.api.dialects.responses.tools import flat_name
from pippin.api.dialects.shared.fields import convert, invalid, unsupported
from pippin.api.dialects.shared.media import ContentPart, part_of, placed
from pippin.api.dialects.shared.sealed_text import unseal
from pippin.api.dialects.shared.tools import GivenCall, call_of
from pippin.core.conversation import Attachment, Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from pippin.service.summaries import OPENING


def parts_of(content: str | list[dict[str, Any]], param: str) -> tuple[tuple[Part, ...], bool]:
    """The parts, and whether one of them asks the prefix cache to keep the prompt up to here."""
    if isinstance(content, str):
        return (Text(content),), False
    parts = tuple(
        placed(_part_of(part, f"{param}[{number}]"), f"{param}[{number}]")
        for number, part in enumerate(content)
    )
    return parts, any(part.get("prompt_cache_breakpoint") for part in content)


def _part_of(part: dict[str, Any], param: str) -> Part:
    match part.get("type"):
        case "input_json":  # of decisions
            return Text(_json(part.get("data")), apart=True)
        case "summary_text" | "reasoning_text":
            part = part | {"type": "text"}
        case "computer_screenshot":
            part = part | {"type": "input_image"}
    # Those in the form of Chat Completions are accepted by mlx-vlm here too.
    return part_of(convert(part, ContentPart, param), param)  # type: ignore[arg-type]


Item = dict[str, Any]

Content = str | list[dict[str, Any]]


class MessageItem(Struct, kw_only=True):
    role: Literal["user", "assistant", "system", "developer", "tool"]
    content: Content | None = None
    tool_calls: tuple[GivenCall, ...] | None = None  # this and the fields below: as in Chat Completions
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ReasoningItem(Struct, kw_only=True):
    summary: list[dict[str, Any]] = field(default_factory=list)
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class FunctionCall(Struct, kw_only=True):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class CustomToolCall(Struct, kw_only=True):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class ActionCall(Struct, kw_only=True):
    """`local_shell_call` and `shell_call`."""

    call_id: str
    action: dict[str, Any]


class PatchCall(Struct, kw_only=True):
    call_id: str
    operation: dict[str, Any]


class CallOutput(Struct, kw_only=True):
    output: Content | None = None
    call_id: str | None = None
    id: str | None = None
    status: str | None = None


class McpCall(Struct, kw_only=True):
    id: str
    name: str
    arguments: str
    server_label: str = ""
    output: str | None = None
    error: Any = None


class SealedItem(Struct, kw_only=True):
    encrypted_content: str = ""


class ItemReference(Struct, kw_only=True):
    id: str


class MoreTools(Struct, kw_only=True):
    """`additional_tools` and `tool_search_output`."""

    tools: list[dict[str, Any]] = field(default_factory=list)


# Items of tools and services that Pippin does not have; a model here can't use them.
_SKIPPED: Final = frozenset(
    "web_search_call file_search_call computer_call computer_call_output tool_search_call image_generation_call "
    "code_interpreter_call program program_output ghost_snapshot mcp_approval_request mcp_approval_response".split()
)
UNKNOWN: Final = "it is not a type of item that the Responses API documents."


class ItemsReader:
    """Reads items one by one; the items of one assistant turn become one message.

    `find` returns the stored item that an `item_reference` names, or raises `ServerError`. If `complete`, the items
    are a whole conversation, so an output without its call is an error; otherwise the client sends all turns itself
    and may have dropped the first ones.
    """

    def __init__(self, find: Callable[[str], Item], *, complete: bool = False) -> None:
        self.messages: list[Message] = []
        self.tools: list[dict[str, Any]] = []  # tools that came with items
        self.updates: list[tuple[str, Item]] = []  # of the configuration, each with its place
        self.compacts = False  # the last item asks for a summary of all before it
        self.skipped: list[str] = []  # types of items that were left out
        self._find = find
        self._complete = complete
        self._names: dict[str, str] = {}  # of tools, by call id
        self._turn: list[Part] = []  # of the assistant

    def read(self, items: Iterable[Item], param: str = "input") -> None:
        for number, item in enumerate(items):
            self._item(item, f"{param}[{number}]")
        self._end_turn()

    def _item(self, item: Item, param: str) -> None:
        if self.compacts and item.get("type") != "compaction":
            raise invalid(param, "must be the compaction that the `compaction_trigger` before it asked for.")
        match item.get("type"):
            case None if "role" not in item and "id" in item:
                self._reference(item, param)
            case None | "message":
                self._message(convert(item, MessageItem, param), param)
            case "item_reference":
                self._reference(item, param)
            case "reasoning":
                thought = convert(item, ReasoningItem, param)
                sealed = unseal(thought.encrypted_content) if thought.encrypted_content else None
                said = [str(part.get("text", "")) for part in (thought.content or thought.summary)]
                if text := "\n\n".join(said) if thought.content or sealed is None else sealed:
                    self._turn.append(Reasoning(text))
            case "additional_tools" | "tool_search_output":
                self.tools += convert(item, MoreTools, param).tools
            case "compaction" | "compaction_summary" | "context_compaction":
                self._compaction(convert(item, SealedItem, param), str(item["type"]))
            case "configuration_update":
                self.updates.append((param, item))
            case "compaction_trigger":
                self.compacts = True
            case "mcp_list_tools":
                pass  # only the tools of the current turn count
            case str(kind) if kind in _SKIPPED:
                self.skipped.append(kind)
            case str(kind) if kind.endswith(("_output", "_result")):
                self._output(kind, convert(item, CallOutput, param), param)
            case str(kind) if kind.endswith("_call"):
                self._call(kind, item, param)
            case str():
                raise unsupported(f"{param}.type", UNKNOWN)
            case _:
                raise invalid(f"{param}.type", "must be a string.")

    def _message(self, item: MessageItem, param: str) -> None:
        match item.role:
            case "assistant":
                self._assistant(item, param)
            case "tool":
                if not item.tool_call_id:
                    raise invalid(f"{param}.tool_call_id", "is required.")
                self._output("tool", CallOutput(output=item.content or "", call_id=item.tool_call_id), param)
            case _:
                if item.content is None:
                    raise invalid(f"{param}.content", "must be a string or a list of parts.")
                self._say(item.role, *parts_of(item.content, f"{param}.content"))

    def _assistant(self, item: MessageItem, param: str) -> None:
        if item.content is None and not item.tool_calls:
            raise invalid(f"{param}.content", "is required unless `tool_calls` is given.")
        if thought := item.reasoning_content or item.reasoning:
            self._turn.append(Reasoning(thought))
        if item.content is not None:
            self._turn += parts_of(item.content, f"{param}.content")[0]
        for number, given in enumerate(item.tool_calls or ()):
            call = call_of(given, f"{param}.tool_calls[{number}]")
            self._called(call.id, call.name, call.arguments)

    def _reference(self, item: Item, param: str) -> None:
        wanted = convert(item, ItemReference, param).id
        found = self._find(wanted)
        if found.get("type") == "item_reference":
            raise invalid(f"{param}.id", "must not name another reference.")
        self._item(found, param)

    def _compaction(self, item: SealedItem, kind: str) -> None:
        summary = unseal(item.encrypted_content)
        if summary is None:
            self.skipped.append(kind)
        else:
            if self.compacts:  # as in the answer to /v1/responses/compact, the user's words stay
                self._end_turn()
                self.messages = [each for each in self.messages if each.role not in ("assistant", "tool")]
            self.compacts = False
            self._say("user", (Text(OPENING + summary),))

    def _call(self, kind: str, item: Item, param: str) -> None:
        match kind:
            case "function_call":
                call = convert(item, FunctionCall, param)
                self._called(call.call_id, flat_name(call.name, call.namespace), call.arguments)
            case "custom_tool_call":
                custom = convert(item, CustomToolCall, param)
                name = flat_name(custom.name, custom.namespace)
                self._called(custom.call_id, name, _json({"input": custom.input}))
            case "local_shell_call" | "shell_call":
                action = convert(item, ActionCall, param)
                arguments = {key: value for key, value in action.action.items() if key != "type" and value}
                self._called(action.call_id, kind.removesuffix("_call"), _json(arguments))
            case "apply_patch_call":
                patch = convert(item, PatchCall, param)
                self._called(patch.call_id, "apply_patch", _json(patch.operation))
            case "mcp_call":
                made = convert(item, McpCall, param)
                if made.output is None and made.error is None:
                    return  # it was never made
                self._called(made.id, flat_name(made.name, made.server_label), made.arguments)
                told = made.error or made.output or ""
                said = told if isinstance(told, str) else _json(told)
                self._answer(made.id, (Text(said),), is_error=made.error is not None)
            case _:
                raise unsupported(f"{param}.type", UNKNOWN)

    def _called(self, call_id: str, name: str, arguments: str) -> None:
        self._names[call_id] = name
        self._turn.append(ToolCall(call_id, name, arguments))

    def _output(self, kind: str, item: CallOutput, param: str) -> None:
        call_id = item.call_id or item.id
        if not call_id:
            raise invalid(f"{param}.call_id", "is required.")
        if self._complete and call_id not in self._names:
            raise invalid(
                f"{param}.call_id", f"{call_id!r} is not a call of the conversation that goes on here."
            )
        output = item.output if item.output is not None else item.status or ""
        if kind == "shell_call_output" and isinstance(output, list):
            shown = (Text(_shell_output(chunk), apart=True) for chunk in output)
            parts: tuple[Text | Attachment, ...] = tuple(shown)
        else:
            read, _ = parts_of(output, f"{param}.output")
            parts = tuple(part for part in read if isinstance(part, Text | Attachment))
        self._answer(call_id, parts, is_error=item.status == "failed")

    def _answer(self, call_id: str, parts: tuple[Text | Attachment, ...], *, is_error: bool) -> None:
        self._say("tool", (ToolResult(call_id, parts, self._names.get(call_id), is_error),))

    def _say(self, role: Role, parts: tuple[Part, ...], pin: bool = False) -> None:
        self._end_turn()
        self.messages.append(Message(role, parts, pin=pin))

    def _end_turn(self) -> None:
        if self._turn:
            self.messages.append(Message("assistant", tuple(self._turn)))
            self._turn = []


def _shell_output(chunk: dict[str, Any]) -> str:
    """One command's `stdout`, `stderr` and `outcome` as text for the model."""
    said = [str(chunk[name]) for name in ("stdout", "stderr") if chunk.get(name)]
    outcome = chunk.get("outcome")
    if isinstance(outcome, dict):
        code = outcome.get("exit_code")
        said.append("[timed out]" if outcome.get("type") == "timeout" else f"[exit code {code}]")
    return "\n".join(said)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

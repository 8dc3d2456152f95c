"""Reads the messages and content blocks of Anthropic's Messages API."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pippin.api.dialects.messages.tools import ToolChange, member_name
from pippin.api.dialects.shared.fields import convert, invalid, unsupported
from pippin.api.dialects.shared.media import document_of, placed, source_of_base64, source_of_url
from pippin.api.dialects.shared.sealed_text import unseal
from pippin.core.conversation import (
    WEB_SEARCH,
    Attachment,
    Document,
    FoundPage,
    Image,
    Inline,
    MediaSource,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    seamed,
)
from pippin.service.summaries import OPENING

Block = dict[str, Any]
Content = str | list[Block]

BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with this line. It changes with every request, so a prompt that contains it
would never hit the prefix cache."""


class MessageParam(Struct, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: Content


class TextBlock(Struct, kw_only=True):
    text: str


class GivenSource(Struct, kw_only=True):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: Content | None = None


class ImageBlock(Struct, kw_only=True):
    source: GivenSource


class Citations(Struct, kw_only=True):
    enabled: bool = False


class DocumentBlock(Struct, kw_only=True):
    source: GivenSource
    citations: Citations | None = None
    title: str | None = None
    context: str | None = None


class SearchResult(Struct, kw_only=True):
    source: str
    title: str
    content: list[TextBlock]
    citations: Citations | None = None


class ThinkingBlock(Struct, kw_only=True):
    thinking: str
    signature: str | None = None


class ToolUse(Struct, kw_only=True):
    id: str
    name: str
    input: dict[str, Any]
    toolset_name: str | None = None


class ServerToolUse(ToolUse):
    server_name: str = ""


class ToolOutput(Struct, kw_only=True):
    tool_use_id: str
    content: Content | None = None
    is_error: bool | None = None


class SearchedPage(Struct, kw_only=True):
    url: str
    title: str = ""
    encrypted_content: str = ""


class SearchOutput(Struct, kw_only=True):
    tool_use_id: str
    content: list[SearchedPage] | dict[str, Any]

    @property
    def text(self) -> str:
        """The result as the model had it, as far as it was found here."""
        if isinstance(self.content, dict):
            return "The search failed."
        pages = [
            FoundPage(each.url, each.title, unseal(each.encrypted_content) or "") for each in self.content
        ]
        return msgspec.json.encode(pages).decode()


class ToolReference(Struct, kw_only=True):
    tool_name: str


ANSWERED: Final = ("mcp_tool_result", "web_search_tool_result", "compaction")


class CompactionBlock(Struct, kw_only=True):
    content: str | None = None
    tool_changes: list[Block] | None = None


# Blocks made by Anthropic's own servers; a model here can't use them.
_SKIPPED: Final = frozenset(
    "redacted_thinking server_tool_use mcp_tool_listing container_upload browser_state advisor_tool_result "
    "web_search_tool_result web_fetch_tool_result tool_search_tool_result code_execution_tool_result "
    "bash_code_execution_tool_result text_editor_code_execution_tool_result fallback".split()
)


class MessagesReader:
    """Turns messages of blocks into messages of parts.

    In this API, tool results are in user messages; in Pippin they are separate messages. One message can therefore
    become several; the order of blocks is kept.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.skipped: list[str] = []  # types of blocks that were left out
        self.cached = False  # whether any block asks for caching
        self.changes: list[tuple[str, ToolChange]] = []  # of the tools on offer, each with its place
        self._names: dict[str, str] = {}  # of tools, by call id
        self._server_calls: dict[str, ToolCall] = {}  # calls without a result so far

    def system(self, content: Content) -> None:
        blocks = _blocks(content)
        parts: list[Part] = []
        for number, block in enumerate(blocks):
            if block.get("type") != "text":
                raise invalid(f"system[{number}].type", "must be `text`.")
            text = convert(block, TextBlock, f"system[{number}]").text
            if BILLING_HEADER in text:
                lines = (line for line in text.split("\n") if not line.startswith(BILLING_HEADER))
                text = "\n".join(lines).lstrip("\n")
            if text:
                parts.append(Text(text))
        if parts:
            self._say("system", parts, self._pinned(blocks))

    def read(self, messages: list[MessageParam]) -> None:
        for number, message in enumerate(messages):
            param = f"messages[{number}].content"
            blocks = _blocks(message.content)
            if message.role == "assistant":
                self._assistant(blocks, param)
            else:
                self._user(message.role, blocks, param)

    def _assistant(self, blocks: list[Block], param: str) -> None:
        parts: list[Part] = []
        for number, block in enumerate(blocks):
            at = f"{param}[{number}]"
            match block.get("type"):
                case "server_tool_use" if block.get("name") != WEB_SEARCH:
                    parts += self._plain_parts(block, at)
                case "mcp_tool_use" | "server_tool_use":
                    made = convert(block, ServerToolUse, at)
                    self._server_calls[made.id] = self._call(made, made.server_name)
                case "mcp_tool_result":
                    parts = self._server_result(block, parts, at)
                case "web_search_tool_result":
                    found = convert(block, SearchOutput, at)
                    told = {"tool_use_id": found.tool_use_id, "content": found.text}
                    parts = self._server_result(told, parts, at)
                case "compaction":
                    self._compaction(convert(block, CompactionBlock, at), at)
                case "thinking":
                    thought = convert(block, ThinkingBlock, at)
                    if text := thought.thinking or unseal(thought.signature or ""):
                        parts.append(Reasoning(text, thought.signature))
                case "tool_use":
                    call = convert(block, ToolUse, at)
                    parts.append(self._call(call, call.toolset_name))
                case _:
                    parts += self._plain_parts(block, at)
        pinned = self._pinned(blocks)
        if parts or blocks[-1:] == [] or blocks[-1].get("type") not in ANSWERED:
            self._say("assistant", parts, pinned)

    def _compaction(self, block: CompactionBlock, param: str) -> None:
        """The summary of all messages before it, which it replaces."""
        if block.content:
            self.messages = [message for message in self.messages if message.role == "system"]
            self._say("user", [Text(OPENING + block.content)])
        for number, change in enumerate(block.tool_changes or ()):
            self._change(change, f"{param}.tool_changes[{number}]")

    def _change(self, block: Block, param: str) -> None:
        self.changes.append((f"{param}.tool", convert(block, ToolChange, param)))

    def _call(self, call: ToolUse, group: str | None) -> ToolCall:
        """The call of a tool, which may be one of a client's toolset or of a server."""
        name = self._names[call.id] = member_name(group, call.name)
        return ToolCall(call.id, name, msgspec.json.encode(call.input).decode())

    def _server_result(self, block: Block, said: list[Part], param: str) -> list[Part]:
        """Append the call and its result as separate turns; returns the parts left for the turn that held them."""
        result = self._tool_result(block, param)
        call = self._server_calls.pop(result.call_id, None)
        if call is None:
            return said
        self.messages.append(Message("assistant", (*said, call)))
        self.messages.append(Message("tool", (result,)))
        return []

    def _user(self, role: Role, blocks: list[Block], param: str) -> None:
        said: list[Part] = []
        for number, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                if said:
                    self._say(role, said)
                said = []
                self._say("tool", [self._tool_result(block, f"{param}[{number}]")])
            elif block.get("type") in ("tool_addition", "tool_removal"):
                self._change(block, f"{param}[{number}]")
            else:
                said += self._plain_parts(block, f"{param}[{number}]")
        if said or not blocks:
            self._say(role, said)
        if self._pinned(blocks) and self.messages:
            self.messages[-1] = msgspec.structs.replace(self.messages[-1], pin=True)

    def _tool_result(self, block: Block, param: str) -> ToolResult:
        result = convert(block, ToolOutput, param)
        parts: list[Text | Attachment] = []
        for number, inner in enumerate(_blocks(result.content or [])):
            if inner.get("type") == "tool_reference":
                found = convert(inner, ToolReference, f"{param}.content[{number}]")
                parts.append(Text(f"[tool: {found.tool_name}]", apart=True))
            else:
                parts += self._plain_parts(inner, f"{param}.content[{number}]")
        name = self._names.get(result.tool_use_id)
        return ToolResult(result.tool_use_id, tuple(parts), name, bool(result.is_error))

    def _plain_parts(self, block: Block, param: str) -> list[Text | Attachment]:
        match block.get("type"):
            case "text":
                text = convert(block, TextBlock, param).text
                return [Text(text)] if text else []
            case "image":
                given = convert(block, ImageBlock, param).source
                return [Image(_source_of(given, f"{param}.source"), field=param)]
            case "document":
                document = self._document(convert(block, DocumentBlock, param), param)
                return [placed(part, param) for part in document]
            case "search_result":
                found = convert(block, SearchResult, param)
                _check_citations(found.citations, param)
                lines = [found.title, found.source, *(text.text for text in found.content)]
                return [Text("\n".join(lines), apart=True)]
            case str(kind) if kind in _SKIPPED:
                self.skipped.append(kind)
                return []
            case str():
                raise unsupported(f"{param}.type", "it is not a block that fits here.")
            case _:
                raise invalid(f"{param}.type", "is required, and must be a string.")

    def _document(self, document: DocumentBlock, param: str) -> list[Text | Attachment]:
        """A document, preceded by its title and context."""
        _check_citations(document.citations, param)
        source = document.source
        heading = [line for line in (document.title, document.context) if line]
        match source.type:
            case "text" if source.data is not None:
                given = Inline(source.data.encode(), "text/plain")
                return [document_of(given, "", f"{param}.source.data", "\n".join(heading))]
            case "content" if source.content is not None:
                parts: list[Text | Attachment] = [Text("\n".join(heading), apart=True)] if heading else []
                for number, block in enumerate(_blocks(source.content)):
                    inner = self._plain_parts(block, f"{param}.source.content[{number}]")
                    parts += (
                        Text(part.text, apart=True) if isinstance(part, Text) else part for part in inner
                    )
                return parts
            case "text" | "content":
                raise invalid(f"{param}.source", "must hold the document's text.")
        data = _source_of(source, f"{param}.source")
        found = document_of(data, document.title or "", f"{param}.source.data", "\n".join(heading))
        context = (
            [Text(document.context, apart=True)] if document.context and isinstance(found, Document) else []
        )
        return [*context, found]

    def _pinned(self, blocks: list[Block]) -> bool:
        pinned = any(block.get("cache_control") for block in blocks)
        self.cached = self.cached or pinned
        return pinned

    def _say(self, role: Role, parts: list[Any], pin: bool = False) -> None:
        """Append a turn. Consecutive turns of one role are merged, as Anthropic does."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == role and role in ("user", "assistant"):
            self.messages[-1] = Message(role, seamed(last.parts, tuple(parts), "\n"), pin=pin or last.pin)
        else:
            self.messages.append(Message(role, tuple(parts), pin=pin))


def _check_citations(wanted: Citations | None, param: str) -> None:
    if wanted is not None and wanted.enabled:
        raise unsupported(
            f"{param}.citations", "models here don't cite; leave it out, and ask for quotations in the text."
        )


def _blocks(content: Content) -> list[Block]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _source_of(given: GivenSource, param: str) -> MediaSource:
    """The bytes of an image or a document, or their address."""
    match given.type:
        case "base64":
            return source_of_base64(given.data or "", f"{param}.data", given.media_type)
        case "url":
            return source_of_url(given.url or "", f"{param}.url")
        case "file":
            raise unsupported(f"{param}.file_id", "this server keeps no files; send its bytes as base64.")
        case _:
            raise invalid(f"{param}.type", "must be `base64` or `url`, or `text` of a document.")

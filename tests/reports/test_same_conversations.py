"""A conversation is the same to the model whatever API it comes in, so what is shown of one holds for all of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.gemini.content import Content, ContentPart, ContentsReader
from pippin.api.dialects.messages.content import MessageParam, MessagesReader
from pippin.api.dialects.registry import find_dialects
from pippin.core.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from tests.engines.language.prompt.histories import HISTORIES, Conversation

DIALECTS = find_dialects()
Said = list[tuple[str, list[Any]]]
Body = dict[str, Any]


def said(messages: Conversation) -> Said:
    """What is said, by whom: turns of one speaker in a row are one turn, and its texts one text."""
    found: Said = []
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        for part in message.parts:
            match part:
                case Text(text) if text.strip():
                    _add(found, role, text)
                case Reasoning(text):
                    _add(found, role, ("thought", text))
                case ToolCall(id, name, arguments):
                    _add(found, role, ("call", id, name, json.loads(arguments or "{}")))
                case ToolResult(id, parts):
                    _add(found, "tool", ("result", id, "\n".join(_texts(parts))))
    return found


def _add(found: Said, role: str, told: Any) -> None:
    if not found or found[-1][0] != role:
        found.append((role, []))
    parts = found[-1][1]
    if parts and isinstance(told, str) and isinstance(parts[-1], str):
        parts[-1] += "\n" + told
    else:
        parts.append(told)


def _texts(parts: Any) -> list[str]:
    return [part.text for part in parts if isinstance(part, Text)]


def _of(message: Message, kind: type[Any]) -> list[Any]:
    return [part for part in message.parts if isinstance(part, kind)]


def _arguments(call: ToolCall) -> dict[str, Any]:
    return json.loads(call.arguments or "{}")  # type: ignore[no-any-return]


def _thoughts(message: Message) -> str:
    return "\n".join(part.text for part in _of(message, Reasoning))


def chat(messages: Conversation) -> Body:
    turns: list[Body] = []
    for message in messages:
        for result in _of(message, ToolResult):
            content = [{"type": "text", "text": text} for text in _texts(result.parts)]
            turns.append({"role": "tool", "tool_call_id": result.call_id, "content": content})
        texts = [{"type": "text", "text": text} for text in _texts(message.parts)]
        if message.role == "tool" or (not texts and _of(message, ToolResult)):
            continue
        turn: Body = {"role": message.role, "content": texts}
        if thoughts := _thoughts(message):
            turn["reasoning_content"] = thoughts
        if calls := _of(message, ToolCall):
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in calls
            ]
        turns.append(turn)
    return {"messages": turns}


def ollama(messages: Conversation) -> Body:
    turns: list[Body] = []
    for message in messages:
        for result in _of(message, ToolResult):
            text = "\n".join(_texts(result.parts))
            turns.append({"role": "tool", "tool_call_id": result.call_id, "content": text})
        texts = _texts(message.parts)
        if message.role == "tool" or (not texts and _of(message, ToolResult)):
            continue
        role = "system" if message.role == "developer" else message.role
        turn: Body = {"role": role, "content": "\n".join(texts)}
        if thoughts := _thoughts(message):
            turn["thinking"] = thoughts
        if calls := _of(message, ToolCall):
            turn["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": _arguments(call)}}
                for call in calls
            ]
        turns.append(turn)
    return {"messages": turns}


def _block(part: Any) -> Body:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text, "signature": ""}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": _arguments(part)}
        case _:
            content = [{"type": "text", "text": text} for text in _texts(part.parts)]
            return {"type": "tool_result", "tool_use_id": part.call_id, "content": content}


def messages(conversation: Conversation) -> Body:
    roles = {"tool": "user", "developer": "system"}
    turns = [
        {"role": roles.get(message.role, message.role), "content": [_block(part) for part in message.parts]}
        for message in conversation
    ]
    return {"messages": turns, "max_tokens": 9}


def _items(message: Message) -> list[Body]:
    items: list[Body] = []
    for part in message.parts:
        match part:
            case Text(text) if message.role == "assistant":
                content = [{"type": "output_text", "text": text, "annotations": []}]
                items.append({"type": "message", "role": "assistant", "content": content})
            case Text(text):
                content = [{"type": "input_text", "text": text}]
                items.append({"type": "message", "role": message.role, "content": content})
            case Reasoning(text):
                items.append(
                    {
                        "type": "reasoning",
                        "summary": [],
                        "content": [{"type": "reasoning_text", "text": text}],
                    }
                )
            case ToolCall(id, name, arguments):
                items.append({"type": "function_call", "call_id": id, "name": name, "arguments": arguments})
            case ToolResult(id, parts):
                output = [{"type": "input_text", "text": text} for text in _texts(parts)]
                items.append({"type": "function_call_output", "call_id": id, "output": output})
    return items


def responses(conversation: Conversation) -> Body:
    return {"input": [item for message in conversation for item in _items(message)]}


def _part(part: Any) -> Body:
    match part:
        case Text(text):
            return {"text": text}
        case Reasoning(text):
            return {"text": text, "thought": True}
        case ToolCall():
            return {"functionCall": {"id": part.id, "name": part.name, "args": _arguments(part)}}
        case _:
            output = {"output": "\n".join(_texts(part.parts))}
            return {"functionResponse": {"id": part.call_id, "name": part.name or "f", "response": output}}


def gemini(conversation: Conversation) -> Body:
    """Turns of the model in a row are pieces of one text, as clients keep a stream."""
    roles = {"assistant": "model", "tool": "user", "developer": "system"}
    turns: list[Body] = []
    for message in conversation:
        role, parts = roles.get(message.role, message.role), [_part(part) for part in message.parts]
        again = role == "model" and turns and turns[-1]["role"] == role
        turns.append({"role": role, "parts": [{"text": "\n"}, *parts] if again else parts})
    return {"contents": turns}


WRITTEN: dict[str, Callable[[Conversation], Body]] = {
    "/chat/completions": chat,
    "/messages": messages,
    "/responses": responses,
    "/api/chat": ollama,
    "/v1beta/models/{model:path}:generateContent": gemini,
}


@pytest.mark.parametrize("path", WRITTEN)
def test_a_conversation_is_the_same_in_every_api(path: str) -> None:
    different = {}
    for name, conversation in HISTORIES.items():
        body = {"model": "m", **WRITTEN[path](conversation)}
        [request] = DIALECTS[path].decode(json.dumps(body).encode(), DecodeContext()).requests
        if said(request.messages or ()) != said(conversation):
            different[name] = (said(request.messages or ()), said(conversation))
    assert different == {}


def test_geminis_contents_in_a_row_are_lines_and_their_parts_are_not() -> None:
    reader = ContentsReader()
    parts = (ContentPart(text="a"), ContentPart(text="b"))
    reader.system(Content(parts=parts), "system_instruction")
    reader.read((Content(parts=parts, role="user"), Content(parts=parts, role="user")))
    assert reader.messages == [
        Message("system", (Text("a"), Text("b"))),
        Message("user", (Text("a"), Text("b\na"), Text("b"))),
    ]


def test_the_lists_of_anthropics_system_and_turns_stay_lists() -> None:
    reader, texts = MessagesReader(), [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    reader.system(texts)
    reader.read([MessageParam(role="user", content=texts), MessageParam(role="user", content=texts)])
    assert [message.parts for message in reader.messages] == [
        (Text("a"), Text("b")),
        (Text("a"), Text("b\na"), Text("b")),
    ]

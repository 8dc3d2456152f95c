"""Converts a conversation to the messages that the model's chat template takes."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from pippin.core.conversation import MediaPart, Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult
from pippin.engines.language.template.traits import Messages, Traits, thinking_parts
from pippin.engines.language.text.tokenizer import Literals, broken
from pippin.engines.language.vision.media import MediaStyle, Modality, listed, modality_of
from pippin.output.tool_format import History, Write, write_json_tags

Style = Literal["any", "nine", "function"]
CONTINUED = "\ufded"
"""The noncharacter that marks the end of the assistant's words while the template is rendered, if an answer is to
continue them: the prompt is cut there."""
QUESTION = "\ufdec"
"""The noncharacter in the place of the questions of decisions while the template is rendered."""
_THOUGHT = re.compile(r"\s*<([\w:]*think[\w:]*)>.*?</\1>", re.DOTALL)
_FUNCTION = re.compile(r"functions\.[^\s:]+:[0-9]+")


class CallIds:
    """The ids of tool calls in one conversation, in the form that the model was trained with.

    `nine` is nine letters or digits (Mistral's), `function` is `functions.NAME:NUMBER` (Kimi's). A call and its result
    keep a common id, whatever id the client gave them.
    """

    def __init__(self, messages: Sequence[Message], style: Style) -> None:
        self._style = style
        calls = [part for message in messages for part in message.parts if isinstance(part, ToolCall)]
        self._counted = {call.id: f"functions.{call.name}:{count}" for count, call in enumerate(calls)}

    def written(self, id: str) -> str:
        match self._style:
            case "any":
                return id
            case "nine":
                fits = len(id) == 9 and id.isalnum() and id.isascii()
                return id if fits else hashlib.sha256(id.encode()).hexdigest()[:9]
            case "function":
                return id if _FUNCTION.fullmatch(id) else self._counted.get(id, id)


class Converter(Struct, frozen=True):
    """Converts conversations for one chat template."""

    traits: Traits
    history: History
    literals: Literals
    media: MediaStyle | None = None  # of models that take more than text
    in_results: frozenset[Modality] = frozenset()  # media that the template writes in results of tools

    def convert(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]) -> Messages:
        """The messages for the template. Raises `ServerError` naming a part that this model can't take."""
        converted: Messages = []
        ids = CallIds(messages, self.history.call_ids)
        for message in messages:
            converted += self._message(message, ids)
        if tools and not self.traits.tools:
            converted = self._with_offer(converted, tools)
        elif tools and self.traits.tools_in_system and converted[0]["role"] != "system":
            converted.insert(0, {"role": "system", "content": ""})
        if not self.traits.repeated_roles:
            converted = _merge_repeated(converted)
        if self.traits.content == "parts":
            for entry in converted:
                if isinstance(entry.get("content"), str):
                    entry["content"] = [_as_part(entry["content"])]
        return converted

    def offer(self, tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
        """The tools as the template takes them: in OpenAI's form, with the fields that the template can't do without,
        and with their texts shielded."""
        entries = []
        for tool in tools:
            function: dict[str, Any] = {"name": tool.name}
            if tool.description is not None or self.traits.descriptions:
                function["description"] = tool.description or ""
            parameters = tool.parameters or {"type": "object", "properties": {}}
            function["parameters"] = parameters if self.traits.null_types else without_null(parameters)
            entries.append({"type": "function", "function": function})
        shielded: list[dict[str, Any]] = self.literals.shield_value(entries)
        return shielded

    def _with_offer(self, entries: Messages, tools: tuple[Tool, ...]) -> Messages:
        """The conversation with a text that offers the tools and shows how a call is written, for a template that does
        not write tools: the system's, or where the template has none, the user's."""
        lines = "\n".join(json.dumps(entry["function"], ensure_ascii=False) for entry in self.offer(tools))
        example = self._write("function_name", {"argument": "value"})
        offer = self._unmarked(OFFER.format(tools=lines, example=example), marks=False)
        role = "system" if self.traits.system else "user"
        users = [] if self.traits.system else [n for n, each in enumerate(entries) if each["role"] == "user"]
        place = min(users, default=0)
        if not entries or entries[place]["role"] not in (role, "developer"):
            return [{"role": role, "content": offer}, *entries]
        said = entries[place]["content"]
        content = _joined(said, offer) if self.traits.system else _joined(offer, said)
        return [*entries[:place], {**entries[place], "content": content}, *entries[place + 1 :]]

    def _message(self, message: Message, ids: CallIds) -> Messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        media = tuple(part for result in results for part in result.parts if isinstance(part, MediaPart))
        within = all(modality_of(part) in self.in_results for part in media)
        entries = [self._result(part, message, ids, within=within) for part in results]
        if not within and self.media is not None:
            # All of them in a message of the user's, as media keep their order.
            entries.append({"role": "user", "content": self.media.content(media, self.literals.shield)})
        if message.role == "tool" or (results and len(results) == len(message.parts)):
            return entries
        role = "system" if message.role == "developer" and not self.traits.developer else message.role
        entry: dict[str, Any] = {"role": role, "content": self._content(message, role)}
        if message.name is not None:
            entry["name"] = self.literals.shield(message.name)
        if message.role == "assistant":
            return [*entries, *self._assistant(entry, message, ids)]
        return [*entries, entry]

    def _content(self, message: Message, role: str) -> Any:
        def shield(text: str) -> str:
            if message.role == "user":
                return self.said(text)
            shielded = self.literals.shield(text, trusted=message.role != "tool")
            if message.role == "assistant":
                return self._kept_whole(shielded)
            return self._unmarked(shielded, marks=False, switches=False)

        if self.media is not None and any(isinstance(part, MediaPart) for part in message.parts):
            return self.media.content(message.parts, shield)
        return self._texts(message.parts, role, shield)

    def _texts(self, parts: Sequence[Part], role: str, shield: Callable[[str], str]) -> Any:
        """The texts of parts, through `shield`: in a list, as the client gave them, or as lines of one text."""
        said = [part for part in parts if not isinstance(part, MediaPart)]
        entries = listed(said, shield) if role in self.traits.lists else []
        text = "\n".join(part.text for part in said if isinstance(part, Text))
        return entries if len(entries) > 1 else shield(text)

    def said(self, text: str) -> str:
        """A text of the user's as the template is given it."""
        return self._unmarked(self.literals.shield(text), switches=False)

    def _kept_whole(self, text: str) -> str:
        """The assistant's text with the marks broken at which the template would cut it.

        A thought that the text begins with stays as it is: templates take it out of earlier turns. So do words that the
        answer is to continue.
        """
        if CONTINUED in text:
            return text
        said = without_thought(text)
        return text.removesuffix(said) + self._unmarked(said)

    def _unmarked(self, text: str, *, marks: bool = True, switches: bool = True) -> str:
        """The text with the marks and switches broken that the template looks for. A switch inside of another word is
        always broken."""
        traits = self.traits
        for pattern in (marks and traits.marks, traits.quoted_switches, switches and traits.switches):
            text = broken(text, pattern) if pattern else text
        return text

    def _assistant(self, entry: dict[str, Any], message: Message, ids: CallIds) -> Messages:
        calls = [part for part in message.parts if isinstance(part, ToolCall)]
        thoughts = "\n".join(part.text for part in message.parts if isinstance(part, Reasoning))
        if thoughts or self.traits.empty_reasoning:
            shielded = self.literals.shield(thoughts, trusted=True)
            entry.update(dict.fromkeys(self.traits.reasoning_fields, shielded))
            if self.traits.thinking_parts:
                entry["content"] = thinking_parts(shielded, entry["content"])
        if not calls:
            return [entry]
        if not self.traits.tool_calls:
            given = [[call.name, parsed_arguments(call.arguments)] for call in calls]
            texts = (self._write(name, arguments) for name, arguments in self.literals.shield_value(given))
            written = self._kept_whole("\n".join(texts))
            said = _joined(entry["content"], written, "\n") if entry["content"] else written
            return [{**entry, "content": said}]
        written_calls = [self._call(call, ids) for call in calls]
        return [
            {**entry, "content": entry["content"] or self.traits.empty_content, "tool_calls": written_calls}
        ]

    def _call(self, call: ToolCall, ids: CallIds) -> dict[str, Any]:
        given: Any = call.arguments or "{}"
        if self.traits.arguments == "object":
            given = parsed_arguments(call.arguments)
        shielded: dict[str, Any] = self.literals.shield_value({"name": call.name, "arguments": given})
        written = self.literals.shield(ids.written(call.id))
        return {"id": written, "type": "function", "function": shielded}

    @property
    def _write(self) -> Write:
        return self.history.write or write_json_tags

    def _result(self, result: ToolResult, message: Message, ids: CallIds, *, within: bool) -> dict[str, Any]:
        role, shield = "tool" if self.traits.tool_results else "", self.literals.shield
        shows = within and any(isinstance(part, MediaPart) for part in result.parts)
        content: Any = listed(result.parts, shield) if shows else self._texts(result.parts, role, shield)
        if result.is_error:
            content = _joined("Error:", content, " ")
        if not self.traits.tool_results:
            return {
                "role": "user",
                "content": f"<tool_response>\n{self._unmarked(content)}\n</tool_response>",
            }
        entry = {
            "role": "tool",
            "content": content,
            "tool_call_id": self.literals.shield(ids.written(result.call_id)),
        }
        name = result.name or message.name
        return {**entry, "name": self.literals.shield(name)} if name else entry


def _joined(first: Any, second: Any, seam: str = "\n\n") -> Any:
    """Two contents as one: a text, or a list of parts if one of them is a list. Texts that meet become one part, so
    that a template which takes white space off each part leaves the seam."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{seam}{second}"
    one, other = ([_as_part(each)] if isinstance(each, str) else each for each in (first, second))
    ends, begins = one[-1].get("text"), other[0].get("text")
    if ends is None or begins is None:
        return [*one, _as_part(seam), *other]
    return [*one[:-1], _as_part(f"{ends}{seam}{begins}"), *other[1:]]


def _as_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def without_thought(text: str) -> str:
    """The assistant's text without the thought that it may begin with."""
    thought = _THOUGHT.match(text)
    return text[thought.end() :] if thought else text


def parsed_arguments(arguments: str) -> Any:
    """The arguments of a call as an object. Anything but a JSON object is a model's mistake and becomes its only
    field."""
    try:
        found = json.loads(arguments or "{}")
    except ValueError:
        return {"arguments": arguments}
    return found if isinstance(found, dict) else {"arguments": found}


def _merge_repeated(entries: Messages) -> Messages:
    """Merge consecutive plain-text messages of the same role."""
    merged: Messages = []
    for entry in entries:
        last = merged[-1] if merged else None
        plain = entry["role"] in ("user", "assistant") and entry.keys() == {"role", "content"}
        if last is not None and plain and last["role"] == entry["role"] and last.keys() == entry.keys():
            last["content"] = _joined(last["content"], entry["content"])
        else:
            merged.append(dict(entry))
    return merged


OFFER = """You can call functions. These are on offer, one JSON object in each line:
<tools>
{tools}
</tools>
To call one, write its name and its arguments in this form, and nothing else around them:
{example}"""
"""The system message that offers tools to a model whose template does not write them."""


def without_null(schema: Any) -> Any:
    """A JSON schema without the type `null`, over which some templates loop for ever."""
    if isinstance(schema, list):
        return [without_null(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: without_null(held) for key, held in schema.items()}
    match schema.get("type"):
        case list(types):
            kept = [name for name in types if name != "null"]
            found["type"] = kept[0] if len(kept) == 1 else kept
        case "null":
            del found["type"]
    return found

"""A conversation that a template writes whole by itself is written as the template writes it, to the byte."""

import contextlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import jinja2
import pytest
from msgspec.structs import replace
from transformers.utils.chat_template_utils import render_jinja_template

from pippin.core.conversation import Message, Part, Reasoning, Role, Text, ToolCall, ToolResult
from pippin.engines.language.prompt.messages import CallIds
from pippin.engines.language.prompt.rendering import TemplateWriter
from pippin.engines.language.template.template import TemplateRefusal
from pippin.engines.language.template.traits import Traits
from pippin.engines.language.text.tokenizer import plain
from tests.engines.language.prompt.histories import AGENT, HISTORIES, TOOLS, Conversation
from tests.engines.language.prompt.test_forms import NO_CONVERSATIONS, Template, answers, family
from tests.output.families import FAMILIES, Family

SENT = {
    name: messages
    for name, messages in HISTORIES.items()
    if not any(message.name or message.role == "developer" for message in messages)
    and not any(isinstance(part, Reasoning) for message in messages for part in message.parts)
    and name not in ("failed result", "assistant without parts", "blank user")
}
"""Conversations that OpenAI's form has in only one way, of roles that all templates know."""
OFFER = [
    {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }
    for tool in TOOLS
]


def as_sent(messages: Conversation, ids: CallIds, traits: Traits) -> list[dict[str, Any]]:
    """The messages as OpenAI's clients send them and templates are documented to take them."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        for result in results:
            named = {"name": result.name} if result.name else {}
            said = content(result.parts, "tool", traits)
            sent.append(
                {"role": "tool", "tool_call_id": ids.written(result.call_id), "content": said, **named}
            )
        if len(results) < len(message.parts):
            sent.append(turn(message, ids, traits))
    return sent


def content(parts: Sequence[Part], role: str, traits: Traits) -> Any:
    """Texts as a list for a template that writes lists, else as lines."""
    said = [part.text for part in parts if isinstance(part, Text)]
    listed = len(said) > 1 and role in traits.lists
    return [{"type": "text", "text": text} for text in said] if listed else "\n".join(said)


def turn(message: Message, ids: CallIds, traits: Traits) -> dict[str, Any]:
    said = content(message.parts, message.role, traits)
    calls = [
        {
            "id": ids.written(call.id),
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.loads(call.arguments or "{}")
                if traits.arguments == "object"
                else call.arguments or "{}",
            },
        }
        for call in message.parts
        if isinstance(call, ToolCall)
    ]
    return {"role": message.role, "content": said, **({"tool_calls": calls} if calls else {})}


def is_whole(prompt: str, messages: Conversation, *, tools: bool) -> bool:
    """Whether all that is said is in a prompt, in order, results in that of their calls, and the tools on offer."""
    opening = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
    systems: list[str] = []
    said: list[str] = []
    results: list[tuple[int, str]] = []
    calls: dict[str, int] = {}
    for number, message in enumerate(messages):
        for part in message.parts:
            match part:
                case Text(text) if number < opening:
                    systems.append(text.strip())
                case Text(text):
                    said.append(text.strip())
                case ToolCall(id_, name, arguments):
                    calls[id_] = len(calls)
                    said += [name, *json.loads(arguments or "{}").values()]
                case ToolResult(id_, parts):
                    place = calls.get(id_, 0)
                    results += [(place, inner.text) for inner in parts if isinstance(inner, Text)]
    as_called = [text for _, text in sorted(results, key=lambda result: result[0])]
    offered = ("A key.", "Does beta.") if tools else ()
    ordered = all(in_order(prompt, words) for words in (systems, said, as_called))
    return ordered and all(word in prompt for word in offered)


def in_order(prompt: str, words: list[str]) -> bool:
    place = 0
    for word in words:
        places = [prompt.find(each, place) for each in (word, json.dumps(word)[1:-1])]
        place = max(places) + len(word)
        if max(places) < 0:
            return False
    return True


def touched(family: Family) -> list[str]:
    """Histories whose prompt is another than the template's own, though that has everything."""
    template = Template(family)
    converter, found = template.renderer.converter, []
    for name, messages in SENT.items():
        tools = name in AGENT
        if tools and not converter.traits.tool_calls:  # results are written as their calls are: as text
            continue
        variables: dict[str, Any] = {"add_generation_prompt": answers(messages), **template.variables}
        if tools or converter.traits.no_tools:
            variables["tools"] = OFFER if tools else None
        ids = CallIds(messages, converter.history.call_ids)
        sent = as_sent(messages, ids, converter.traits)
        try:
            own = template.renderer.template.render(sent, variables)
        except TemplateRefusal:
            continue
        if is_whole(own, messages, tools=tools) and plain(template.prompt(name)) != own:
            found.append(name)
    return found


@pytest.mark.parametrize("file", ["Qwen-Qwen3-0.6B", "openai-gpt-oss-120b", "mistral", "IFM-K2-Horizon"])
def test_what_a_template_writes_whole_is_untouched(file: str) -> None:
    assert touched(family(file)) == []


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_what_any_template_writes_whole_is_untouched(family: Family) -> None:
    assert family.file in NO_CONVERSATIONS or touched(family) == []


def given_in_lists(family: Family, role: Role, *, tools: bool) -> None:
    """Texts of a message reach a template that writes lists as transformers gives them to it."""
    converter = Template(family).renderer.converter
    if role not in converter.traits.lists:
        return
    call = ToolCall("call12345", "alpha", '{"key": "v"}')
    messages = [Message(each, (Text(each),)) for each in ("user", "assistant", "user")]
    if role == "tool":
        answered = ToolResult(call.id, (Text(" one\n"), Text("two ")), "alpha")
        messages = [messages[0], Message("assistant", (call,)), Message("tool", (answered,))]
    elif role == "system":
        messages = [Message(role, (Text(role),)), messages[0]]
    several = (Text(" one\n"), Text("two "))
    messages = [replace(each, parts=several) if each.role == role != "tool" else each for each in messages]
    ids = CallIds(tuple(messages), converter.history.call_ids)
    sent = as_sent(tuple(messages), ids, converter.traits)
    offer = {"tools": converter.offer(TOOLS)} if tools else {}
    variables = {"bos_token": "<s>", "eos_token": "</s>", **offer}
    (own,), _ = render_jinja_template(
        [sent], chat_template=family.source, add_generation_prompt=True, **variables
    )
    writer = TemplateWriter(Template(family).renderer.template, converter)
    assert plain(writer.render(tuple(messages), TOOLS if tools else (), True)) == own


ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("file", ["Qwen3.5-4B", "gemma3_pythonic", "GLM-4.6", "llama4_json", "MiniMax-M2"])
def test_lists_of_texts_are_given_as_lists(file: str, role: Role) -> None:
    for tools in (False, True):
        given_in_lists(family(file), role, tools=tools)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.file)
def test_lists_of_texts_are_given_as_lists_by_any_template(family: Family) -> None:
    for role, tools in itertools.product(ROLES, (False, True)):
        # K2 Horizon's fails for a turn without its thoughts, which Pippin writes as empty.
        with contextlib.suppress(jinja2.TemplateError):
            given_in_lists(family, role, tools=tools)

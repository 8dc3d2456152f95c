"""A conversation that a template writes whole by itself is written as the template writes it, to the byte."""

import json
from typing import Any

import pytest

from pippin.core.conversation import Message, Reasoning, Text, ToolCall, ToolResult
from pippin.engines.language.prompt.messages import CallIds
from pippin.engines.language.template.template import TemplateRefusal
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


def as_sent(messages: Conversation, ids: CallIds, arguments: str) -> list[dict[str, Any]]:
    """The messages as OpenAI's clients send them and templates are documented to take them."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        for result in results:
            named = {"name": result.name} if result.name else {}
            said = "\n".join(part.text for part in result.parts if isinstance(part, Text))
            sent.append(
                {"role": "tool", "tool_call_id": ids.written(result.call_id), "content": said, **named}
            )
        if len(results) < len(message.parts):
            sent.append(turn(message, ids, arguments))
    return sent


def turn(message: Message, ids: CallIds, arguments: str) -> dict[str, Any]:
    said = "\n".join(part.text for part in message.parts if isinstance(part, Text))
    calls = [
        {
            "id": ids.written(call.id),
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.loads(call.arguments or "{}")
                if arguments == "object"
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
        sent = as_sent(messages, ids, converter.traits.arguments)
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

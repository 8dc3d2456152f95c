"""Conversations are written so that a template with a fault, or a form of its own, writes them whole."""

from typing import Any

import pytest
import tokenizers

from pippin.core.conversation import Message, Text, Tool, ToolCall, ToolResult
from pippin.engines.language.prompt.messages import Converter
from pippin.engines.language.template.template import ChatTemplate
from pippin.engines.language.template.traits import probe
from pippin.engines.language.text.tokenizer import Literals
from pippin.output.formats import tool_format
from pippin.output.tool_format import History
from tests.output.families import Family

TURNS = "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}"
CALLS = (
    "{% for call in message.tool_calls or [] %}"
    "<{{ call.id }} {{ call.function.name }} {{ call.function.arguments | tojson }}>{% endfor %}"
)
END = "{% endfor %}"
NULLABLE = {"type": "object", "properties": {"at": {"type": ["string", "null"]}, "end": {"type": "null"}}}
LOOK = Tool("look", parameters=NULLABLE)
ASKED = Message("user", (Text("Q?"),))


def converter(source: str, history: History | None = None) -> tuple[ChatTemplate, Converter]:
    history = history or History()
    template = ChatTemplate(source, {})
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    return template, Converter(probe(template, history), history, Literals(backend, ""))


def rendered(
    source: str, *messages: Message, history: History | None = None, tools: tuple[Tool, ...] = ()
) -> str:
    template, found = converter(source, history)
    variables: dict[str, Any] = {"tools": found.offer(tools)} if tools and found.traits.tools else {}
    return template.render(found.convert(messages, tools), variables)


def called(id: str, *texts: str, name: str = "look") -> Message:
    return Message("assistant", (*map(Text, texts), ToolCall(id=id, name=name, arguments='{"at": "x"}')))


def answered(id: str) -> Message:
    return Message("tool", (ToolResult(call_id=id, parts=(Text("seen"),)),))


def test_calls_of_other_clients_get_kimis_ids_and_their_results_too() -> None:
    source = TURNS + CALLS + "{% if message.role == 'tool' %}({{ message.tool_call_id }}){% endif %}" + END
    source = source.replace(" {{ call.function.name }}", "")  # the id is all that names the function
    history = tool_format("kimi_k2").history
    text = rendered(
        source,
        ASKED,
        called("call_a"),
        answered("call_a"),
        called("call_b", name="find"),
        answered("call_b"),
        history=history,
    )
    assert "<functions.look:0 " in text
    assert "(functions.look:0)" in text
    assert "<functions.find:1 " in text
    assert "(functions.find:1)" in text
    kept = rendered(source, ASKED, called("functions.look:7"), answered("functions.look:7"), history=history)
    assert "<functions.look:7 " in kept
    assert "(functions.look:7)" in kept


def test_a_tool_without_a_description_gets_an_empty_one_where_the_template_needs_it() -> None:
    needs = (
        "{% for tool in tools or [] %}// {{ tool.function.description.strip() }} {{ tool.function.name }}{% endfor %}"
        + TURNS
        + END
    )
    assert "//  look" in rendered(needs, ASKED, tools=(LOOK,))
    takes = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + TURNS + END
    assert '"description"' not in rendered(takes, ASKED, tools=(LOOK,))


def test_types_that_may_be_null_are_simplified_where_the_template_loops_over_them() -> None:
    loops = (
        "{% macro kind(type) %}{% if type in ('string', 'object') %}{{ type }}{% elif type is iterable %}"
        "{% for each in type %}{{ kind(each) }}{% endfor %}{% endif %}{% endmacro %}"
        "{% for tool in tools or [] %}{{ tool.function.name }} {{ tool.function.description }}"
        "{% for key, value in tool.function.parameters.properties.items() %} {{ key }}:"
        "{{ kind(value.type) }}{% endfor %}"
        "{% endfor %}" + TURNS + END
    )
    assert "at:string" in rendered(loops, ASKED, tools=(LOOK,))
    takes = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + TURNS + END
    assert '["string", "null"]' in rendered(takes, ASKED, tools=(LOOK,))


def test_tools_that_a_template_writes_beside_the_system_alone_come_with_an_empty_one() -> None:
    offer = "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}"
    offers = offer + TURNS + END
    assert "look" in rendered(offers, ASKED, tools=(LOOK,))
    assert rendered(offers, ASKED, tools=(LOOK,)).count("[system]") == 1
    _, found = converter(offers)
    assert found.traits.tools_in_system


def test_a_template_that_stumbles_over_no_tools_is_not_given_the_variable() -> None:
    _, found = converter("{% if tools is defined %}{{ tools | length }}{% endif %}" + TURNS + END)
    assert not found.traits.no_tools
    _, found = converter("{% if tools %}T{% endif %}" + TURNS + END)
    assert found.traits.no_tools


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("pythonic", '<|tool_call_start|>[look(at="x")]<|tool_call_end|>'),
        ("deepseek_v31", '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "x"}<｜tool▁call▁end｜>'),
        ("json_tools", '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'),
    ],
)
def test_a_template_without_calls_and_tools_gets_them_in_the_familys_format(name: str, written: str) -> None:
    text = rendered(TURNS + END, ASKED, called("c1"), history=tool_format(name).history, tools=(LOOK,))
    assert written in text
    assert (
        written.replace("look", "function_name")
        .replace('at="x"', 'argument="value"')
        .replace('"at": "x"', '"argument": "value"')
        in text
    )


@pytest.mark.parametrize(
    ("name", "tool", "expected"),
    [
        ("Qwen3.5-4B", "qwen3_coder", ("thoughts", "openings of answers")),
        ("openai-gpt-oss-120b", "harmony", ("thoughts",)),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", ("tools",)),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama3_json", ()),
        # They refuse the sample, which tells nothing.
        ("fireworks-ai-llama-3-firefunction-v2", "firefunction", ()),
    ],
)
def test_what_a_template_changes_of_earlier_turns_is_known(
    name: str, tool: str, expected: tuple[str, ...]
) -> None:
    template = ChatTemplate(Family(name, tool).source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert probe(template, History()).rewrites == expected

"""Reported: conversations that an API allows, and that a model's own chat template refuses or loses a part of."""

import json
from functools import cache
from typing import Any

import pytest

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.chat.dialect import ChatDialect
from pippin.api.dialects.messages.dialect import MessagesDialect
from pippin.api.dialects.responses.dialect import ResponsesDialect
from pippin.core.events import Rendered
from pippin.core.tasks import RenderTemplate
from pippin.engines.language.prompt.preparer import LanguagePreparer
from tests.engines.language.prompt.test_preparer import preparer
from tests.output.families import FAMILIES

DIALECTS: dict[str, Any] = {
    "chat": ChatDialect(),
    "messages": MessagesDialect(),
    "responses": ResponsesDialect(),
}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string", "description": "A text."}}}
STRICT = (
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
    "Mistral-Small-3.2-24B-Instruct-2506",
    "mistral",
    "mistral_parallel",
    "gemma3_pythonic",
)
GPT_OSS = "openai-gpt-oss-120b"
LLAMA = (
    "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct",
    "meta-llama-Llama-3.3-70B-Instruct",
)


@cache
def prepared(template: str) -> LanguagePreparer:
    [family] = [family for family in FAMILIES if family.file == template]
    return preparer(family.source, window=1 << 16)


def prompt(template: str, dialect: str, tools: tuple[str, ...] = (), **body: Any) -> str:
    """What the model reads of a body, which must not be refused."""
    offered: dict[str, Any] = {"tools": [tool(dialect, name) for name in tools]} if tools else {}
    limit = {"max_tokens": 9} if dialect == "messages" else {}
    given = json.dumps({"model": "m", **limit, **offered, **body}).encode()
    [request] = DIALECTS[dialect].decode(given, DecodeContext()).requests
    [rendered] = prepared(template).prepare("1", RenderTemplate(request))  # type: ignore[misc]
    assert isinstance(rendered, Rendered)
    return rendered.text


def tool(dialect: str, name: str) -> dict[str, Any]:
    about = {"name": name, "description": "Does it."}
    if dialect == "messages":
        return about | {"input_schema": SCHEMA}
    if dialect == "responses":
        return {"type": "function", **about, "parameters": SCHEMA}
    return {"type": "function", "function": about | {"parameters": SCHEMA}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(*calls: tuple[str, str, str], **said: Any) -> dict[str, Any]:
    """The assistant's turn with calls of an id, a name and an argument."""
    given = [
        {"id": own, "type": "function", "function": {"name": name, "arguments": json.dumps({"x": value})}}
        for own, name, value in calls
    ]
    return {"role": "assistant", "content": None, **said, "tool_calls": given}


def result(id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": text}


def in_order(text: str, *words: str) -> bool:
    """Whether each of the words stands behind those before it."""
    place = 0
    for word in words:
        place = text.find(word, place) + 1
        if not place:
            return False
    return True


def agent(dialect: str, calls: list[tuple[str, str, str, str]], *after: str) -> dict[str, Any]:
    """A conversation with calls of an id, a name, an argument and a result, and what the user says behind them."""
    if dialect == "chat":
        made, given = calling(*(call[:3] for call in calls)), [result(own, told) for own, _, _, told in calls]
        return {"messages": [user("ASK1"), made, *given, *map(user, after)]}
    if dialect == "messages":
        used = [
            {"type": "tool_use", "id": own, "name": name, "input": {"x": value}}
            for own, name, value, _ in calls
        ]
        told: list[Any] = [
            {"type": "tool_result", "tool_use_id": own, "content": text} for own, *_, text in calls
        ]
        told += [{"type": "text", "text": text} for text in after]
        return {
            "messages": [
                user("ASK1"),
                {"role": "assistant", "content": used},
                {"role": "user", "content": told},
            ]
        }
    items: list[Any] = [user("ASK1")]
    items += [
        {"type": "function_call", "call_id": own, "name": name, "arguments": json.dumps({"x": value})}
        for own, name, value, _ in calls
    ]
    items += [{"type": "function_call_output", "call_id": own, "output": text} for own, *_, text in calls]
    return {"input": [*items, *map(user, after)]}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("template", STRICT)
def test_row_17_the_user_speaks_behind_a_tools_result(template: str, dialect: str) -> None:
    body = agent(dialect, [("call00001", "look", "ARG1", "RES1")], "ASK2")
    assert in_order(prompt(template, dialect, ("look",), **body), "ASK1", "look", "ARG1", "RES1", "ASK2")


def test_row_20_text_and_thoughts_beside_a_call() -> None:
    said = calling(("c", "look", "ARG1"), content="SAID1", reasoning="THOUGHT1")
    text = prompt(GPT_OSS, "chat", ("look",), messages=[user("ASK1"), said, result("c", "RES1")])
    assert in_order(text, "ASK1", "ARG1", "RES1")
    assert "SAID1" in text
    assert "THOUGHT1" in text
    items = [
        user("ASK1"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "THOUGHT1"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "SAID1"}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"x": "ARG1"}'},
        {"type": "function_call_output", "call_id": "c", "output": "RES1"},
    ]
    text = prompt(GPT_OSS, "responses", ("look",), input=items)
    assert in_order(text, "ASK1", "ARG1", "RES1")
    assert "SAID1" in text
    assert "THOUGHT1" in text


@pytest.mark.parametrize("template", [GPT_OSS, "GigaChat3-10B-A1.8B", "GigaChat3.1-10B-A1.8B"])
def test_row_21_each_of_two_parallel_calls_has_its_own_result(template: str) -> None:
    body = agent("chat", [("c1", "first", "ARG1", "RES1"), ("c2", "second", "ARG2", "RES2")])
    text = prompt(template, "chat", ("first", "second"), **body)
    assert all(word in text for word in ("ARG1", "ARG2"))
    assert in_order(text, "ARG1", "RES1", "RES2")
    one_by_one = in_order(text, "ARG1", "RES1", "ARG2", "RES2")
    assert one_by_one or "second" in text[text.index("RES1") : text.index("RES2")]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("template", LLAMA)
def test_row_22_parallel_calls_can_be_sent_back(template: str, dialect: str) -> None:
    body = agent(dialect, [("c1", "first", "ARG1", "RES1"), ("c2", "second", "ARG2", "RES2")])
    text = prompt(template, dialect, ("first", "second"), **body)
    assert all(word in text for word in ("ARG1", "ARG2"))
    assert in_order(text, "ASK1", "RES1", "RES2")


@pytest.mark.parametrize(
    ("template", "tools"),
    [("Qwen3.5-4B", ()), (LLAMA[0], ("look",)), ("mistralai-Mistral-Nemo-Instruct-2407", ())],
)
def test_row_23_the_system_speaks_alone(template: str, tools: tuple[str, ...]) -> None:
    assert "SYS1" in prompt(template, "chat", tools, messages=[{"role": "system", "content": "SYS1"}])
    developer = {"role": "developer", "content": "SYS2"}
    text = prompt(template, "responses", tools, instructions="SYS1", input=[developer])
    assert in_order(text, "SYS1", "SYS2")


@pytest.mark.parametrize(
    "template",
    [
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
        "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
        "llama-cpp-deepseek-r1",
        "llama-cpp-rwkv-world",
    ],
)
def test_row_24_the_system_speaks_in_the_middle(template: str) -> None:
    said = [
        {"role": "system", "content": "SYS1"},
        user("ASK1"),
        {"role": "assistant", "content": "SAID1"},
        {"role": "system", "content": "SYS2"},
        user("ASK2"),
    ]
    text = prompt(template, "chat", messages=said)
    assert in_order(text, "SYS1", "ASK1", "SAID1", "ASK2")
    assert "SYS2" in text


@pytest.mark.parametrize("template", [GPT_OSS, "MiniMax-M2", "MiniMax-M3", "Kimi-K3", "apertus"])
def test_row_25_a_result_whose_call_was_cut_out(template: str) -> None:
    for said in ([user("ASK1"), result("c9", "RES9"), user("ASK2")], [result("c9", "RES9"), user("ASK2")]):
        assert in_order(prompt(template, "chat", ("look",), messages=said), "RES9", "ASK2")


def test_row_27_an_answer_without_its_thoughts() -> None:
    said = [user("ASK1"), {"role": "assistant", "content": "SAID1"}, user("ASK2")]
    assert in_order(prompt("IFM-K2-Horizon", "chat", messages=said), "ASK1", "SAID1", "ASK2")


@pytest.mark.parametrize("template", ["google-gemma-4-31B-it", "gemma4"])
def test_row_28_two_turns_of_calls_in_a_row(template: str) -> None:
    said = [
        user("ASK1"),
        calling(("c1", "first", "ARG1")),
        calling(("c2", "second", "ARG2")),
        result("c1", "RES1"),
        result("c2", "RES2"),
    ]
    text = prompt(template, "chat", ("first", "second"), messages=said)
    assert in_order(text, "ASK1", "ARG1")
    assert in_order(text, "RES1", "RES2")
    assert "ARG2" in text

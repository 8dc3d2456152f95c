"""Reported: calls that were cut, invented or lost, and text that was lost around them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.reports.asking import ask, calls_of, content_of, name_of, server, streamed

TEXT = {"type": "string"}
WRITE = {
    "type": "object", "properties": {"path": TEXT, "content": TEXT}, "required": ["path", "content"]
}  # fmt: skip
TOOLS: dict[str, dict[str, Any]] = {
    "write": WRITE,
    "read": {"type": "object", "properties": {"path": TEXT}},
    "f": {"type": "object", "properties": {"a": {}, "b": {}, "n": {}, "t": {}}},
    "g": {"type": "object", "properties": {"b": {"type": "integer"}}},
}


def qwen(content: str) -> str:
    return (
        "<tool_call>\n<function=write>\n<parameter=path>\np.md\n</parameter>\n"
        f"<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>"
    )


def glm(content: str) -> str:
    return (
        "<tool_call>write\n<arg_key>path</arg_key>\n<arg_value>p.md</arg_value>\n"
        f"<arg_key>content</arg_key>\n<arg_value>{content}</arg_value>\n</tool_call>"
    )


def minimax(content: str) -> str:
    return (
        '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">p.md</parameter>\n'
        f'<parameter name="content">{content}</parameter>\n</invoke>\n</minimax:tool_call>'
    )


ENDS = {
    "qwen3_coder": (
        qwen,
        "Use </parameter> to close",
        '<P>\n<parameter name="a">1</parameter>\n</P>',
        "</function>",
    ),
    "glm47": (glm, "Use </arg_value> to close", "<arg_value>x</arg_value> and more", "</tool_call"),
    "minimax_m2": (minimax, "Use </parameter> to close", "an </invoke> alone", "</invoke"),
}
PROSE = (
    "Some models use <tool_call> or <function=x>, others use JSON.",
    "GLM: <tool_call>read\n<arg_key>path</arg_key> and so on.",
)
DROPPED = "<function=write>\n<parameter=path>\na\n<parameter=content>\nb\n</parameter>\n</function>"
UNOPENED = "<tool_call>write<arg_key>path</arg_key>x</arg_value></tool_call>"
ODD = {
    '{"a": 1,}': {"a": 1},
    '["a"]': None,
    '{"t": "\\ud83d"}': None,
    '{"n": NaN}': None,
    '{"n": 1e999}': None,
}
AROUND = 'Before. <tool_call>\n{"name": "g", "arguments": {"b": 1}}\n</tool_call> Between. ' + (
    '<tool_call>\n{"name": "g", "arguments": {"b": 2}}\n</tool_call> After.'
)
THOUGHTS = "<think>one</think>\n<think>two</think>\nAnswer"
UNNAMED = '<tool_call>\n{"name": "g", "arguments": {"b": 1}}\n</tool_call>'
LISTED = (
    '[{"name": "g", "arguments": {"b": 1}}, {"name": "nope", "arguments": {}}, '
    '{"name": "g", "arguments": {"b": 2}}]'
)
ADJACENT = '[f(a="x" "y", b="c"), g(b=1)]'


def odd_call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'


ANSWERS: dict[str, tuple[str, ...]] = {
    "qwen3_coder": (*map(qwen, ENDS["qwen3_coder"][1:]), *PROSE, DROPPED),
    "glm47": (*map(glm, ENDS["glm47"][1:]), UNOPENED, *PROSE),
    "minimax_m2": (*map(minimax, ENDS["minimax_m2"][1:]), *PROSE),
    "json_tools": (*map(odd_call, ODD), AROUND, THOUGHTS, UNNAMED, *PROSE),
    "xlam": (LISTED,),
    "llama4_pythonic": (ADJACENT, *PROSE),
}


@pytest.fixture(scope="module")
def address_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The address of a server whose model calls tools in a format; started when first asked for."""
    with ExitStack() as stack:
        found: dict[str, str] = {}

        def address(form: str) -> str:
            if form not in found:
                folder = tmp_path_factory.mktemp("script")
                found[form] = stack.enter_context(server(folder, *ANSWERS[form], tool_format=form))
            return found[form]

        yield address


Address = Callable[[str], str]


@pytest.mark.parametrize("form", ENDS)
def test_row_4_the_formats_own_end_in_a_value_belongs_to_the_value(address_of: Address, form: str) -> None:
    write, *contents = ENDS[form]
    for content in contents:
        reply = ask(address_of(form), "chat", write(content), TOOLS)
        assert calls_of(reply) == [("write", {"path": "p.md", "content": content})]
        assert content_of(reply) is None
        assert reply["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", ["qwen3_coder", "glm47", "minimax_m2", "json_tools", "llama4_pythonic"])
def test_row_7_words_of_calls_in_prose_are_prose(address_of: Address, form: str) -> None:
    for text in PROSE:
        reply = ask(address_of(form), "chat", text, TOOLS)
        assert (content_of(reply), calls_of(reply)) == (text, [])


def test_row_9_a_closing_tag_that_was_left_out_ends_its_value(address_of: Address) -> None:
    reply = ask(address_of("qwen3_coder"), "chat", DROPPED, TOOLS)
    assert calls_of(reply) == [("write", {"path": "a", "content": "b"})]


def test_row_10_a_value_without_its_opening_tag_is_read_or_is_text(address_of: Address) -> None:
    reply = ask(address_of("glm47"), "chat", UNOPENED, TOOLS)
    assert calls_of(reply) == [("write", {"path": "x"})] or content_of(reply) == UNOPENED


@pytest.mark.parametrize("arguments", ODD)
def test_row_11_arguments_are_an_object_of_the_models_own_fields_or_the_call_is_text(
    address_of: Address, arguments: str
) -> None:
    answer, address = odd_call(arguments), address_of("json_tools")
    whole = ask(address, "messages", answer, TOOLS)
    inputs = [block["input"] for block in whole["content"] if block["type"] == "tool_use"]
    texts = [block["text"] for block in whole["content"] if block["type"] == "text"]
    assert "partial_json" not in str(inputs)
    if inputs:
        assert set(inputs[0]) <= {"a", "t", "n"}
        assert whole["stop_reason"] == "tool_use"
    else:
        assert texts == [answer]
        assert whole["stop_reason"] == "end_turn"
    tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
    frames = streamed(address, "messages", answer, tools=tools)
    kinds = [frame["content_block"]["type"] for frame in frames if frame["type"] == "content_block_start"]
    assert kinds == [block["type"] for block in whole["content"]]


def test_row_12_the_blank_between_the_parts_of_a_text_is_kept(address_of: Address) -> None:
    reply = ask(address_of("json_tools"), "chat", AROUND, TOOLS)
    assert content_of(reply) == "Before. Between. After."
    assert calls_of(reply) == [("g", {"b": 1}), ("g", {"b": 2})]
    message = ask(address_of("json_tools"), "chat", THOUGHTS)["choices"][0]["message"]
    assert message["reasoning_content"].split() == ["one", "two"]
    assert message["content"] == "Answer"


@pytest.mark.parametrize("form", ["json_tools", "qwen3_coder", "glm47", "minimax_m2"])
def test_rows_13_and_38_a_limit_inside_a_call_leaves_nothing_of_its_marks(
    address_of: Address, form: str
) -> None:
    answer = UNNAMED if form == "json_tools" else ANSWERS[form][0]
    for most in range(1, 40, 3):
        assert not content_of(ask(address_of(form), "chat", answer, TOOLS, max_tokens=most))


def test_row_14_an_unknown_tool_in_the_middle_of_a_list_takes_no_other_call_with_it(
    address_of: Address,
) -> None:
    reply = ask(address_of("xlam"), "chat", LISTED, TOOLS)
    assert calls_of(reply) == [("g", {"b": 1}), ("g", {"b": 2})]


def test_row_16_adjacent_strings_are_one_as_python_reads_them(address_of: Address) -> None:
    reply = ask(address_of("llama4_pythonic"), "chat", ADJACENT, TOOLS)
    assert calls_of(reply) == [("f", {"a": "xy", "b": "c"}), ("g", {"b": 1})]


def test_row_36_a_scripted_token_may_be_long(tmp_path_factory: pytest.TempPathFactory) -> None:
    from tests.api.scripted_server import scripted_server

    rule = {"say": ["a token of more than eight bytes", "!"]}
    with scripted_server(tmp_path_factory.mktemp("long"), rule) as address:
        body = {
            "model": "scripted",
            "messages": [{"role": "user", "content": name_of("x")}],
            "logprobs": True,
        }
        reply = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=30).json()
    [first, last] = reply["choices"][0]["logprobs"]["content"]
    assert (first["token"], last["token"]) == ("a token of more than eight bytes", "!")

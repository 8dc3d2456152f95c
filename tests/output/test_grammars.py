"""What a format's grammar admits, its own reader reads as valid calls."""

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
from msgspec import structs

from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.output.formats import tool_format, tool_formats
from tests.output.grammar_walks import Walks, special_tokens
from tests.output.reading import fold, read, reader_of
from tests.output.wire import SAMPLES

ORDER = Tool(
    name="order",
    parameters={
        "type": "object",
        "properties": {
            "item": {"type": "string", "minLength": 1, "maxLength": 12},
            "size": {"enum": ["small", "large"]},
            "count": {"type": "integer", "minimum": 1, "maximum": 9},
            "gift": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "address": {"$ref": "#/$defs/address"},
            "codes": {"type": "array", "items": {"type": "integer", "maximum": 999}, "maxItems": 3},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$", "maxLength": 4},
            "shade": {"$ref": "#/$defs/shade"},
            "tag": {"anyOf": [{"type": "string", "pattern": "^#[a-z]$"}, {"type": "null"}]},
            "place": {
                "anyOf": [
                    {"type": "string", "enum": ["here", "there"]},
                    {"allOf": [{"$ref": "#/$defs/shade"}]},
                ]
            },
        },
        "required": ["item", "size", "count", "address", "code", "shade", "tag", "place"],
        "$defs": {
            "shade": {"type": "string", "enum": ["dark", "light"]},
            "address": {
                "type": "object",
                "properties": {"zip": {"type": "string", "maxLength": 5}},
                "required": ["zip"],
                "additionalProperties": False,
            },
        },
    },
)
LOOK = Tool(
    name="look",
    parameters={"type": "object", "properties": {"where": {"type": "string"}, "far": {"type": "boolean"}}},
)
NOTHING = Tool(name="nothing")
TOOLS = (ORDER, LOOK, NOTHING)
FORMATS = sorted({tool_format(name).name for name in sorted(tool_formats())})
KINDS = ("text", "special")
VALIDATORS = {
    tool.name: jsonschema.Draft202012Validator(tool.parameters or {"type": "object"}) for tool in TOOLS
}


SEEDS = pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 12), marks=pytest.mark.long)], ids=str
)


@cache
def walks_of(name: str, kind: str) -> Walks:
    """With the format's markers as plain text, or as the special tokens that its family has for them."""
    return Walks(special_tokens(tool_format(name).markers) if kind == "special" else ())


def calls_in(name: str, text: str, *, alone: bool = True) -> list[tuple[str, Any]]:
    parts = fold(read(reader_of(name, tools=TOOLS), [text]))
    if alone:
        assert all(part[0] in ("tool_call", "reasoning") for part in parts), (text, parts)
    return [(part[1], json.loads(part[2])) for part in parts if part[0] == "tool_call"]


def assert_valid(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        VALIDATORS[name].validate(arguments)


@SEEDS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_walk_through_a_required_grammar_is_valid_calls(name: str, kind: str, seeds: range) -> None:
    walks = walks_of(name, kind)
    source = tool_format(name).grammar(TOOLS, required=True, parallel=True, special=walks.special)
    texts = [walks.walk(source, f"{name} {seed}") for seed in seeds]
    walked = [calls_in(name, text) for text in texts if text]  # a walk may find no end within its limit
    assert walked
    for calls in walked:
        assert calls
        assert_valid(calls)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_named_grammar_calls_that_tool_once(name: str, kind: str) -> None:
    walks = walks_of(name, kind)
    source = tool_format(name).grammar((ORDER,), required=True, parallel=False, special=walks.special)
    for seed in range(2):
        calls = calls_in(name, walks.walk(source, f"{name} {seed}"))
        assert [called for called, _ in calls] == ["order"]
        assert_valid(calls)


@SEEDS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_call_in_the_text_of_a_strict_grammar_is_valid(name: str, kind: str, seeds: range) -> None:
    found = tool_format(name)
    walks = walks_of(name, kind)
    source = found.grammar((ORDER,), required=False, parallel=True, special=walks.special)
    liked = (*found.openers, *found.leading, "order", "look", " ", "{")
    for seed in seeds:
        text = walks.walk(source, f"{name} {seed}", liked=liked, limit=1500)
        assert_valid(calls_in(name, text, alone=False))


WHOLE: dict[str, dict[str, Any]] = {
    "anyOf": {
        "type": "object",
        "anyOf": [
            {"properties": {key: {"type": "integer"}}, "required": [key], "additionalProperties": False}
            for key in ("a", "b")
        ],
    },
    "dependentRequired": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "dependentRequired": {"a": ["b"]},
        "additionalProperties": False,
    },
    "required": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]},
    "properties.day.format": {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
        "required": ["day"],
    },
}


def grammar_or_refusal(name: str, tool: Tool) -> str:
    try:
        return tool_format(name).grammar((tool,), required=True, parallel=False, special=Walks().special)
    except ServerError as error:
        return error.report.message


@pytest.mark.parametrize("place", WHOLE)
@pytest.mark.parametrize("name", FORMATS)
def test_what_a_strict_grammar_leaves_out_is_refused_by_tool_and_place(name: str, place: str) -> None:
    tool = Tool("whole", None, WHOLE[place], strict=True)
    whole, lax = grammar_or_refusal(name, tool), grammar_or_refusal(name, structs.replace(tool, strict=False))
    refused = f"The parameters of the tool 'whole' can't be enforced at '{place}'"
    # llguidance enforces the whole of a schema that it is given.
    given = [WHOLE[place], *(WHOLE[place]["properties"].values() if "." in place else ())]
    assert whole.startswith(refused) or any(json.dumps(schema)[1:-1] in whole for schema in given)
    assert not lax.startswith("The parameters")


@pytest.mark.parametrize("name", FORMATS)
def test_a_strict_grammar_admits_no_call_of_another_shape(name: str) -> None:
    walks = walks_of(name, "text")
    source = tool_format(name).grammar((ORDER,), required=False, parallel=True, special=walks.special)
    for sample in SAMPLES:
        text = sample.wire.replace("get_weather", "order").replace("get_time", "order")
        if tool_format(sample.format).name == name and calls_in(name, text, alone=False):
            assert not walks.admits(source, text), text


@pytest.mark.parametrize("kind", KINDS)
def test_functionarys_grammar_goes_on_in_the_header_that_the_prompt_opens(kind: str) -> None:
    """MeetKai/functionary, functionary/prompt_template/jinja_templates/v2.txt: prompts end in `<|recipient|>`."""
    walks = walks_of("functionary", kind)
    calls = 'look\n<|content|>{"far": true}\n<|from|>assistant\n<|recipient|>nothing\n<|content|>{}'
    said = "all\n<|content|>Let me see.\n<|from|>assistant\n<|recipient|>"
    required = tool_format("functionary").grammar(TOOLS, required=True, parallel=True, special=walks.special)
    assert walks.admits(required, calls)
    assert not walks.admits(required, said + calls)
    assert not walks.admits(required, "<|from|>assistant\n<|recipient|>" + calls)
    free = tool_format("functionary").grammar(TOOLS, required=False, parallel=True, special=walks.special)
    assert walks.admits(free, calls)
    assert walks.admits(free, said + calls)


def test_a_property_that_may_not_be_there_is_left_out_of_a_grammar_of_tags() -> None:
    tool = Tool("t", None, {"type": "object", "properties": {"a": {"type": "integer"}, "b": False}})
    walks = walks_of("qwen3_coder", "text")
    source = tool_format("qwen3_coder").grammar((tool,), required=True, parallel=False, special=walks.special)
    assert walks.admits(
        source, "<tool_call>\n<function=t>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    )


ENDED = {
    "qwen3_coder": (
        "<tool_call>\n<function=look>\n<parameter=where>\n{}\n</parameter>\n</function>\n</tool_call>",
        "<parameter={}>", "</parameter>",
    ),
    "seed_oss": (
        "<seed:tool_call>\n<function=look>\n<parameter=where>{}</parameter>\n</function>\n</seed:tool_call>",
        "<parameter={}>", "</parameter>",
    ),
    "glm47": (
        "<tool_call>look\n<arg_key>where</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
        "<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>",
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="look">\n<parameter name="where">{}</parameter>\n</invoke>\n'
        "</minimax:tool_call>", '<parameter name="{}">', "</parameter>",
    ),
    "deepseek_v4": (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="where" string="true">{}'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        '<｜DSML｜parameter name="{}">', "</｜DSML｜parameter>",
    ),
    "minicpm5": (
        '<function name="look"><param name="where">{}</param></function>', '<param name="{}">', "</param>"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDED)
def test_a_value_may_hold_the_tags_of_its_format(name: str) -> None:
    walks, (wire, begin, end) = walks_of(name, "text"), ENDED[name]
    source = tool_format(name).grammar((LOOK,), required=True, parallel=True, special=walks.special)
    a, b = begin.format("a"), begin.format("b")
    for where in (
        *(f"Use {end} to close", f"{end}.", f"a{end}b {end} c", "plain", "a < b </other> c", f"{end}{end}"),
        *(f"a{end}<b>c</b>", f"a{end}\n  <b>c</b>", f"x{end}\n{end}\ny", f"Use {a} to open", "x\n\n"),
        *(f"{a}1{end}", f"{a}1{end}\n{b}2{end}\n", f"<log>\n  {a}1{end}\n  {b}2{end}\n</log>"),
        *("</function>", "</tool_call>", "</invoke> x", "", "\n"),
    ):
        text = wire.format(where)
        assert walks.admits(source, text), text
        assert calls_in(name, text) == [("look", {"where": where})]


AROUND = (
    "{}",
    "{}.",
    "So: {} and {}\n",
    "# Calls\n\n{}\n\nand\n\n{}\n\nSo.",
    "```xml\n{}\n```",
    "{}\n</tool_call>.",
)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", ENDED)
def test_a_value_may_hold_whole_calls_of_its_format(name: str, around: str) -> None:
    walks, (wire, _, end) = walks_of(name, "text"), ENDED[name]
    source = tool_format(name).grammar((LOOK,), required=True, parallel=True, special=walks.special)
    for inner in ("inner", f"a {end} b", wire.format("within")):
        where = around.replace("{}", wire.format(inner))
        text = wire.format(where)
        assert calls_in(name, text) == [("look", {"where": where})]
        assert walks.admits(source, text), text


@pytest.mark.parametrize("name", FORMATS)
def test_a_grammar_that_requires_nothing_admits_text(name: str) -> None:
    walks = walks_of(name, "text")
    source = tool_format(name).grammar(TOOLS, required=False, parallel=True, special=walks.special)
    heads = {
        "harmony": "<|channel|>final<|message|>",
        "functionary": "all\n<|content|>",
        "functionary_v32": "all\n",
        "muse_spark": " to=user<|message|>",
    }
    assert walks.admits(source, heads.get(name, "") + "Hello, what a day: 1 < 2.")

"""What a format's grammar admits, its own reader reads as valid calls."""

import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from pippin.core.conversation import Tool
from pippin.output.formats import tool_format, tool_format_names
from tests.output.reading import fold, read, reader_of

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
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$"},
        },
        "required": ["item", "size", "count", "address", "code"],
        "$defs": {
            "address": {
                "type": "object",
                "properties": {"zip": {"type": "string", "maxLength": 5}},
                "required": ["zip"],
                "additionalProperties": False,
            }
        },
    },
)
LOOK = Tool(
    name="look",
    parameters={"type": "object", "properties": {"where": {"type": "string"}, "far": {"type": "boolean"}}},
)
NOTHING = Tool(name="nothing")
TOOLS = (ORDER, LOOK, NOTHING)
FORMATS = sorted({tool_format(name).name for name in tool_format_names()})
BYTES = llguidance.LLTokenizer("byte")
ENDS = [
    '"',
    '"}',
    "}",
    "]",
    ")",
    "</parameter>",
    "\n</parameter>",
    "</param>",
    "</atem:parameter>",
    "<escape>",
]
ENDS += [
    "</arg_value>",
    "</longcat_arg_value>",
    "</｜DSML｜parameter>",
    "]<]minimax[>[",
    '<|"|>',
    "<|end|>",
    ",",
]


def compiled(source: str) -> llguidance.LLMatcher:
    matcher = llguidance.LLMatcher(BYTES, source)
    assert not matcher.is_error(), matcher.get_error() + source
    return matcher


def walk(matcher: llguidance.LLMatcher, chance: random.Random, limit: int = 6000) -> str:
    """A random text of the grammar, which prefers ends to going on for ever."""
    out, whole = bytearray(), 0
    while not matcher.is_stopped() and len(out) < limit:
        if matcher.is_accepting():
            whole = len(out)
            if chance.random() < 0.3:
                break
        end = chance.choice(ENDS).encode()
        if chance.random() < 0.5 and matcher.validate_tokens(list(end)) == len(end):
            step = end
        else:
            step = bytes([pick(matcher, chance)])
        if step == bytes([255]):
            break
        assert matcher.consume_tokens(list(step)), matcher.get_error()
        out += step
    return out[: len(out) if matcher.is_accepting() else whole].decode()


def pick(matcher: llguidance.LLMatcher, chance: random.Random) -> int:
    allowed = [byte for byte in range(32, 127) if matcher.validate_tokens([byte])]
    if not allowed:
        allowed = [byte for byte in (9, 10, *range(128, 255)) if matcher.validate_tokens([byte])]
    return chance.choice(allowed) if allowed else 255


def calls_in(name: str, text: str) -> list[tuple[str, Any]]:
    parts = fold(read(reader_of(name, tools=TOOLS), [text]))
    assert all(part[0] in ("tool_call", "reasoning") for part in parts), (text, parts)
    return [(part[1], json.loads(part[2])) for part in parts if part[0] == "tool_call"]


def assert_valid(calls: list[tuple[str, Any]], tools: tuple[Tool, ...]) -> None:
    schemas = {tool.name: tool.parameters or {"type": "object"} for tool in tools}
    assert calls
    for name, arguments in calls:
        jsonschema.validate(arguments, schemas[name])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FORMATS)
def test_a_walk_through_a_required_grammar_is_valid_calls(name: str, seed: int) -> None:
    found = tool_format(name)
    chance = random.Random(f"{name} {seed}")
    source = found.grammar(TOOLS, required=True, parallel=True, special=lambda _: None)
    text = walk(compiled(source), chance)
    assert_valid(calls_in(name, text), TOOLS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_grammar_calls_that_tool_once(name: str) -> None:
    found = tool_format(name)
    source = found.grammar((ORDER,), required=True, parallel=False, special=lambda _: None)
    for seed in range(2):
        calls = calls_in(name, walk(compiled(source), random.Random(seed)))
        assert len(calls) == 1
        assert_valid(calls, (ORDER,))


@pytest.mark.parametrize("name", FORMATS)
def test_a_grammar_that_requires_nothing_admits_text(name: str) -> None:
    source = tool_format(name).grammar(TOOLS, required=False, parallel=True, special=lambda _: None)
    matcher = compiled(source)
    text = "Hello, what a day."
    if name == "harmony":
        text = "<|channel|>final<|message|>" + text
    assert matcher.validate_tokens(list(text.encode())) == len(text)
    assert matcher.consume_tokens(list(text.encode()))
    assert matcher.is_accepting()

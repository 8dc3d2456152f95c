"""What a finished answer does not keep to is said, and no schema makes a check take long."""

import json
import time
from typing import Any

import pytest

from pippin.core.conversation import Tool
from pippin.core.events import Event, FinishReason, PartDelta, PartEnded, PartStarted
from pippin.core.requests import JsonObject, JsonSchema
from pippin.output.checking import AnswerCheck, fault_of, prepare

UNIQUE = {"type": "object", "properties": {"t": {"type": "array", "uniqueItems": True}}}


def part(kind: Any, text: str, name: str | None = None, thought: bool = False) -> list[Event]:
    halves = text[: len(text) // 2], text[len(text) // 2 :]
    return [
        PartStarted(0, 0, kind, None, name),
        *(PartDelta(0, 0, half) for half in halves),
        PartEnded(0, 0, thought),
    ]


def warnings(
    events: list[Event], wanted: Any = None, tools: tuple[Tool, ...] = (), reason: FinishReason = "stop"
) -> tuple[str, ...]:
    check = AnswerCheck(wanted, tools)
    for event in events:
        check.see([event])
    return check.warnings(reason)


def test_an_answer_that_breaks_its_schema_is_told_with_the_place() -> None:
    wanted = JsonSchema(UNIQUE, strict=False)
    assert warnings(part("text", '{"t": [1, 1]}'), wanted) == (
        "The answer does not keep to the schema at 't': [1,1] has non-unique elements.",
    )
    assert warnings(part("text", '{"t": [1, 2]}'), wanted) == ()
    assert warnings(part("text", "Sorry."), wanted) == (
        "The answer does not keep to the schema: it is no JSON.",
    )


def test_the_arguments_of_a_call_are_checked_against_the_tools_schema() -> None:
    tools = (Tool("f", None, UNIQUE), Tool("g", None, None))
    broken = part("tool_call", '{"t": [1, 1]}', "f")
    found = warnings(
        part("text", "I call.") + broken + part("tool_call", "{}", "g"), None, tools, "tool_calls"
    )
    assert found == (
        "The call of 'f' does not keep to the tool's schema at 't': [1,1] has non-unique elements.",
    )
    assert warnings(broken, JsonSchema(UNIQUE, strict=False), tools, "tool_calls") == found


def test_what_was_cut_off_and_what_has_no_schema_is_not_checked() -> None:
    wanted = JsonSchema(UNIQUE, strict=False)
    assert warnings(part("text", '{"t": [1,'), wanted, reason="length") == ()
    assert warnings(part("text", "7"), JsonObject()) == ()
    assert warnings(part("text", "so", thought=True) + part("text", '{"t": []}'), wanted) == ()


def doubling(levels: int) -> dict[str, Any]:
    """A schema whose first definition is evaluated once, the next twice, and so on."""
    steps = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**steps, f"a{levels}": {"type": "null"}}, "$ref": "#/$defs/a0"}


HOSTILE: dict[str, tuple[Any, str]] = {
    "a reference to itself": ({"$ref": "#"}, "1"),
    "references that double": (doubling(40), "1"),
    "recursion that doubles": ({"allOf": [{"items": {"$ref": "#"}}] * 2}, "[" * 200 + "]" * 200),
    "a document elsewhere": ({"$ref": "https://example.com/schema.json"}, "1"),
    "a pattern that backtracks": ({"pattern": "(?=a)(a|aa)+$"}, json.dumps("a" * 100_000 + "b")),
    "a pattern that looks ahead far": ({"pattern": "(?=(.*a){12})(.*b){12}c"}, json.dumps("ab" * 50_000)),
    "a pattern that is large": ({"pattern": "((a{1000}){1000}){1000}"}, '"a"'),
    "patterns for many texts": ({"items": {"pattern": "(a+)\\1+$"}}, json.dumps(["a" * 100 + "b"] * 900)),
    "long enumerations": ({"items": {"enum": list(range(20_000))}}, json.dumps([-1] * 20_000)),
    "deep values": ({"items": {"$ref": "#"}}, "[" * 900 + "]" * 900),
    "long enumerations of objects": (
        {"items": {"enum": [{"a": number} for number in range(300)]}}, json.dumps([{"a": 299}] * 66)
    ),
    "many patterns": ({"allOf": [{"pattern": f"^[a-z]{{1,{n}}}"} for n in range(1, 70)]}, '"abc"'),
    "a large schema": ({"$defs": {f"d{n}": {"const": n} for n in range(3_000)}, "type": "integer"}, "1"),
    "malformed": ({"enum": 5, "properties": [], "allOf": {"a": 1}}, "{}"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_not_checked_or_quick(name: str) -> None:
    schema, text = HOSTILE[name]
    prepare(JsonSchema(schema), ())
    started = time.process_time()
    assert fault_of(schema, text) is None
    assert time.process_time() - started < 0.1  # for which all answers of the model wait


def test_a_check_ends_with_the_first_of_many_faults() -> None:
    schema = {"items": {"required": [f"r{n}" for n in range(4_000)]}}
    text = json.dumps([{"a": 1}] * 400)
    prepare(JsonSchema(schema), ())
    started = time.process_time()
    assert (fault_of(schema, text) or "").startswith(" at '[0]'")
    assert time.process_time() - started < 0.1


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        (doubling(5), "null", "1"),
        ({"pattern": "^(?=.*[A-Z])(?=.*[0-9]).{8,}$"}, '"Abcdefg1"', '"abcdefg1"'),
        ({"contains": {"const": 1}}, "[0, 1]", "[0]"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 5}]}, "1", "7"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"b": 1}', '{"a": 1}'),
        ({"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b"}, "null", "1"),
    ],
)
def test_what_grammars_lack_is_checked(schema: Any, inside: str, outside: str) -> None:
    assert fault_of(schema, inside) is None
    assert fault_of(schema, outside) is not None

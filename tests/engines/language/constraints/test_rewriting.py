"""Keywords that the compiler of grammars lacks are written in others, which admit exactly the same values."""

import contextlib
import itertools
import json
from typing import Any

import jsonschema
import pytest

from pippin.core.conversation import Tool
from pippin.core.errors import ServerError
from pippin.core.requests import JsonSchema
from pippin.engines.language.constraints.grammar import GrammarCompiler
from pippin.engines.language.constraints.rewriting import rewritten
from tests.engines.language.constraints.test_constraints import accepts
from tests.engines.language.text.small_tokenizer import byte_level

TOKENIZER = byte_level()
COMPILER = GrammarCompiler(TOKENIZER)

INTEGERS = {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}
KIND = {"kind": {"enum": ["x", "y", "z"]}, "n": {"type": "integer"}}
X = {"properties": {"kind": {"const": "x"}}, "required": ["kind"]}
BASE = {"base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}

OBJECTS: dict[str, Any] = {
    "dependentRequired": {"properties": INTEGERS, "dependentRequired": {"a": ["b"], "b": ["c"]}},
    "dependencies": {"properties": INTEGERS, "dependencies": {"a": ["c"], "c": {"required": ["b"]}}},
    "dependentSchemas": {
        "properties": INTEGERS,
        "dependentSchemas": {"a": {"properties": {"b": {"const": 1}}, "required": ["b"]}},
    },
    "if, then": {"properties": KIND, "if": X, "then": {"required": ["n"]}},
    "if, then, else": {
        "properties": KIND, "required": ["kind"],
        "if": {"properties": {"kind": {"enum": ["x", "y"]}}},
        "then": {"properties": {"n": {"const": 1}}}, "else": {"required": ["n"]},
    },
    "if, else": {"properties": KIND, "if": X, "else": {"properties": {"n": False}}},
    "if of a boolean": {
        "properties": {"a": {"type": "boolean"}, "n": {"type": "integer"}},
        "if": {"properties": {"a": {"const": True}}, "required": ["a"]}, "then": {"required": ["n"]},
    },
    "if of two properties": {
        "properties": {**KIND, "a": {"type": "boolean"}},
        "if": {"properties": {"kind": {"const": "x"}, "a": {"const": True}}}, "then": {"required": ["n"]},
    },
    "propertyNames, pattern": {"propertyNames": {"pattern": "^[ab]$"}, "additionalProperties": {"type": "integer"}},
    "propertyNames, lengths": {"propertyNames": {"type": "string", "maxLength": 2}},
    "propertyNames, enum": {
        "propertyNames": {"enum": ["a", "kind"]}, "additionalProperties": {"type": "integer"}, "required": ["a"]
    },
    "propertyNames of any text": {"propertyNames": {"type": "string"}, "properties": INTEGERS},
    "unevaluatedProperties": {"properties": INTEGERS, "unevaluatedProperties": False},
    "unevaluatedProperties behind references": {
        "$defs": BASE, "allOf": [{"$ref": "#/$defs/base"}], "properties": {"b": {"type": "integer"}},
        "unevaluatedProperties": False,
    },
    "unevaluatedProperties behind one reference": {
        "$defs": BASE, "$ref": "#/$defs/base", "unevaluatedProperties": {"type": "boolean"},
    },
    "not of nothing": {"properties": INTEGERS, "not": {"not": {}}},
}  # fmt: skip
LISTS: dict[str, Any] = {
    "uniqueItems": {"items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
    "uniqueItems, sizes": {
        "items": {"enum": ["a", "b", None]},
        "uniqueItems": True,
        "minItems": 1,
        "maxItems": 2,
    },
    "uniqueItems, false": {"items": {"enum": ["a"]}, "uniqueItems": False},
    "uniqueItems of one": {"items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1},
    "unevaluatedItems": {"prefixItems": [{"type": "integer"}], "unevaluatedItems": False},
    "contains, none needed": {"contains": {"type": "integer"}, "minContains": 0},
}

VALUES = {"a": [1, True], "b": [1, 2], "c": [1], "kind": ["x", "y", "z"], "n": [1, 2], "other": [1]}


def objects(schema: Any) -> list[dict[str, Any]]:
    """Objects of up to three properties, in the order in which a grammar writes them."""
    names = [*schema.get("properties", {}), *(schema.get("required", ()))]
    order = list(dict.fromkeys([*names, *VALUES]))
    if "$defs" in schema:
        order = ["a", *(name for name in order if name != "a")]
    found = []
    for size in range(4):
        for chosen in itertools.combinations(order, size):
            found += [
                dict(zip(chosen, values, strict=True))
                for values in itertools.product(*map(VALUES.get, chosen))
            ]
    return found


def differences(schema: Any, values: list[Any]) -> list[Any]:
    valid = jsonschema.Draft202012Validator(schema).is_valid
    if "dependencies" in schema:
        valid = jsonschema.Draft7Validator(schema).is_valid
    grammar = COMPILER.compile(JsonSchema(schema))
    return [value for value in values if valid(value) != accepts(grammar, TOKENIZER, json.dumps(value))]


@pytest.mark.parametrize("name", OBJECTS)
def test_an_objects_grammar_takes_what_its_schema_takes(name: str) -> None:
    schema = {"type": "object", **OBJECTS[name]}
    assert differences(schema, objects(schema)) == []


@pytest.mark.parametrize("name", LISTS)
def test_a_lists_grammar_takes_what_its_schema_takes(name: str) -> None:
    values = [list(each) for size in range(4) for each in itertools.product(["a", "b", None, 1], repeat=size)]
    assert differences({"type": "array", **LISTS[name]}, values) == []


def test_a_strict_tool_may_use_what_can_be_written_in_other_words() -> None:
    parameters = {"properties": INTEGERS, "dependentRequired": {"a": ["b"]}}
    found = COMPILER.enforceable(Tool("f", None, parameters, strict=True)).parameters
    assert found is not None
    assert "dependentRequired" not in found
    assert found["allOf"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "dependentRequired": 5},
        {"type": "object", "if": {"properties": {"a": 1}, "required": 3}, "then": 1},
        {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "minItems": "x"},
        {"type": "object", "properties": [], "unevaluatedProperties": False},
        {"type": "object", "allOf": 7, "unevaluatedProperties": False},
        {"type": "object", "propertyNames": {"enum": [[]]}},
        {"type": "object", "$ref": "#", "unevaluatedProperties": False},
        {"type": "object", "dependentRequired": {f"p{n}": ["a"] for n in range(60)}},
    ],
)
def test_a_schema_that_is_malformed_or_knotted_is_no_fault_of_the_server(schema: Any) -> None:
    with contextlib.suppress(ServerError):
        COMPILER.enforceable(Tool("f", None, {"type": "object", "properties": {"a": schema}}))
    with contextlib.suppress(ServerError):
        COMPILER.compile(JsonSchema(schema, strict=False))


def test_a_schema_without_such_keywords_is_the_same_object() -> None:
    schema = {"type": "object", "properties": INTEGERS, "required": ["a"]}
    assert rewritten(schema) is schema

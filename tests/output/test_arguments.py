"""Values that are not JSON on the wire become what the tool's schema says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pippin.output.notations.arguments import convert, types_of
from pippin.output.notations.literals import PYTHON, read_literal
from pippin.output.stream import Malformed, Source

ROOT: dict[str, Any] = {"$defs": {"size": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"enum": ["a", 1]}, {"string", "integer"}),
        ({"const": True}, {"boolean"}),
        ({"$ref": "#/$defs/size"}, {"integer"}),
        ({"$ref": "#/$defs/loop"}, set()),
        ({"$ref": "#/no/where"}, set()),
        ({"type": "date"}, set()),
        ({}, set()),
        (True, set()),
    ],
)
def test_types_are_read_from_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


class CountedRoot(dict[str, Any]):
    lookups = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.lookups += 1
        return super().get(key, default)


def test_definitions_that_stand_for_millions_are_not_followed_to_their_end() -> None:
    step = {"anyOf": [{"$ref": "#/$defs/step"}] * 12}
    root = CountedRoot({"$defs": {"step": step}})
    assert types_of({"$ref": "#/$defs/step"}, root) == set()
    assert root.lookups < 200


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("3", {"integer"}, 3),
        (" 3\n", {"number"}, 3),
        ("3.0", {"integer"}, 3.0),
        ("True", {"boolean"}, True),
        ("FALSE", {"boolean"}, False),
        ("None", {"integer", "null"}, None),
        ("{'a': [1, None, (2,)]}", {"object"}, {"a": [1, None, [2]]}),
        ("['it\\'s', \"b\"]", {"array"}, ["it's", "b"]),
        ("three", {"integer"}, "three"),
        ("5", {"string", "integer"}, 5),
        ("[1", {"array"}, "[1"),
        ("NaN", {"number"}, "NaN"),
        ("[" * 5000, {"array"}, "[" * 5000),
        ("9" * 5000, {"string", "null"}, "9" * 5000),
        ("free text", set(), "free text"),
    ],
)
def test_a_value_becomes_what_its_type_says(text: str, types: set[str], value: Any) -> None:
    assert json.loads(convert(text, frozenset(types))) == value


@given(st.text(max_size=40))
def test_a_string_stays_unchanged(text: str) -> None:
    assert json.loads(convert(text, frozenset({"string"}))) == text


@given(st.sampled_from(["null", "None", "nu", "nullable", "", "north", '"null"', "5"]))
def test_a_string_that_may_be_null_is_null_only_as_a_whole(text: str) -> None:
    value = json.loads(convert(text, frozenset({"string", "null"})))
    assert value == (None if text in ("null", "None") else text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans())
def test_pythons_and_jsons_notation_of_a_value_are_read(value: Any, as_json: bool) -> None:
    assert json.loads(json_of(json.dumps(value) if as_json else repr(value))) == value


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"'\x1b[0m \U0001F600 \u00e9'", "\x1b[0m \U0001f600 \u00e9"),
        (r"'C:\users\xerox'", r"C:\users\xerox"),
        (r"'C:\u'", r"C:\u"),
        (r"'\ud83d\ude00 \ud83d.'", "\U0001f600 \ufffd."),
        (r"'\ud83d'", "\ufffd"),
        (r"'\ud83d\ud83d'", "\ufffd\ufffd"),
        (r"'\x4\q \u12\\'", r"\x4\q \u12\ "[:-1]),
        (".5", 0.5),
        ("+1_000", 1000),
    ],
)
def test_escapes_and_numbers_are_pythons(written: str, meant: Any) -> None:
    assert json.loads(json_of(written)) == meant


@pytest.mark.parametrize("written", ["1e999", "-1e999", "9" * 5000])
def test_a_number_that_json_has_not_is_refused(written: str) -> None:
    with pytest.raises(Malformed):
        json_of(written)


def json_of(written: str) -> str:
    source = Source()
    source.push(written)
    source.close(truncated=False)
    reading = read_literal(source, PYTHON)
    with pytest.raises(StopIteration) as read:
        next(reading)
    json_text: str = read.value.value
    return json_text


def test_deep_nesting_is_refused_and_not_an_overflow() -> None:
    with pytest.raises(Malformed):
        json_of("[" * 100_000)

"""A whole number may be written with a point: Home Assistant asks Ollama for `num_ctx: 2048.0` (rkllama#80)."""

import json

import pytest
from msgspec import inspect

from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.shared.body_types import members
from pippin.api.dialects.shared.fields import convert, decode_json
from pippin.core.errors import ServerError
from tests.api.dialects.test_null_is_absent import BODIES, DIALECTS, OBJECTS, smallest


def numbers(kind: inspect.StructType) -> dict[str, int]:
    """The fields of an object that hold a whole number, each with one that it may hold."""
    return {
        field.encode_name: max(place.ge or 0, (place.gt or 0) + 1)
        for field in kind.fields
        for place in members([field.type])
        if isinstance(place, inspect.IntType) and not (place.le is not None and place.le < 1)
    }


@pytest.mark.parametrize("name", sorted(name for name, kind in OBJECTS.items() if numbers(kind)))
def test_a_whole_number_with_a_point_is_one(name: str) -> None:
    kind = OBJECTS[name]
    for field, number in numbers(kind).items():
        given, pointed = smallest(kind) | {field: number}, smallest(kind) | {field: float(number)}
        try:
            expected = convert(given, kind.cls, "at")
        except ServerError:
            continue
        read = (decode_json(json.dumps(pointed).encode(), kind.cls), convert(pointed, kind.cls, "at"))
        assert [repr(each) for each in read] == [repr(expected)] * 2, field


@pytest.mark.parametrize("number", [4.5, 1e300, -0.5])
def test_other_numbers_are_refused(number: float) -> None:
    body = BODIES["/chat/completions"] | {"max_tokens": number}
    with pytest.raises(ServerError, match=r"Invalid `max_tokens`: expected `int \| null`, got `float`"):
        DIALECTS["/chat/completions"].decode(json.dumps(body).encode(), DecodeContext())

"""`null` in a field that may be left out says the same as leaving it out, in every object of every request."""

import gc
import importlib
import json
import pkgutil
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct, inspect

from pippin.api import batches, kinds, routes
from pippin.api.dialects.base import DecodeContext
from pippin.api.dialects.registry import find_dialects
from pippin.api.dialects.shared.body_types import members, objects_of, type_of
from pippin.api.dialects.shared.fields import Contract, convert, decode_json, names_of
from pippin.core.errors import ServerError

DIALECTS: Final = find_dialects()
GEMINI: Final = "/v1beta/models/{model:path}:generateContent"
BODIES: Final[dict[str, dict[str, Any]]] = {
    "/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/completions": {"prompt": "Hi"},
    "/messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/responses": {"input": [{"role": "user", "content": "Hi"}]},
    GEMINI: {"contents": [{"parts": [{"text": "Hi"}]}]},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi"},
}


def contracts() -> list[Contract[Any]]:
    """All contracts of all addresses, which importing their rooms has made."""
    for room in (batches, kinds, routes):
        for module in pkgutil.iter_modules(room.__path__):
            importlib.import_module(f"{room.__name__}.{module.name}")

    # `isinstance` would ask each object for its class, and a lazy module would import itself to say it.
    return [each for each in gc.get_objects() if type(each) is Contract]


def objects() -> dict[str, inspect.StructType]:
    """Every object that a request may hold, and those that dialects read out of untyped items."""
    bodies = [type_of(contract.body) for contract in contracts()]
    bodies += [type_of(each) for each in subclasses(Struct) if each.__module__ in READ_LATER]
    found = [kind for body in bodies for _, kind in objects_of(body, "")]
    return {f"{kind.cls.__module__}.{kind.cls.__qualname__}": kind for kind in found}


READ_LATER: Final = {
    "pippin.api.dialects.gemini.content",
    "pippin.api.dialects.messages.content",
    "pippin.api.dialects.messages.tools",
    "pippin.api.dialects.responses.items",
    "pippin.api.dialects.responses.tools",
    "pippin.api.dialects.ollama.dialect",
}


def subclasses(base: type) -> Iterator[type[Any]]:
    for each in base.__subclasses__():
        yield each
        yield from subclasses(each)


def sample(place: inspect.Type) -> Any:
    """A value of a type."""
    kind = next(iter(sorted(members([place]), key=lambda each: isinstance(each, inspect.StructType))))
    match kind:
        case inspect.StructType():
            return smallest(kind)
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.IntType(ge=least) | inspect.FloatType(ge=least):
            return least or 1
        case inspect.StrType():
            return "x"
        case inspect.BoolType():
            return True
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [sample(item)]
        case inspect.DictType(min_length=least, value_type=value) if least:
            return {"x": sample(value)}
        case inspect.DictType() | inspect.AnyType() | inspect.RawType():
            return {}
        case _:
            raise AssertionError(kind)


def smallest(struct: inspect.StructType) -> dict[str, Any]:
    given = {field.encode_name: sample(field.type) for field in struct.fields if field.required}
    return given | ({struct.tag_field: struct.tag} if struct.tag_field else {})


OBJECTS: Final = objects()


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_every_field_that_may_be_left_out_may_be_null(name: str) -> None:
    kind = OBJECTS[name]
    given = smallest(kind)
    bare = decode_json(json.dumps(given).encode(), kind.cls)
    for field in kind.fields:
        if field.required:
            continue
        with_null = given | {field.encode_name: None}
        for read in (
            decode_json(json.dumps(with_null).encode(), kind.cls),
            convert(with_null, kind.cls, "at"),
        ):
            found, left_out = getattr(read, field.name), getattr(bare, field.name)
            assert found is None or found == left_out, f"{field.encode_name}: {found!r}"


@pytest.mark.parametrize("path", sorted(BODIES))
def test_null_changes_nothing_of_a_request(path: str) -> None:
    dialect = DIALECTS[path]
    body = {"model": "m", **BODIES[path]}

    def decoded(given: dict[str, Any]) -> Any:
        try:
            found = dialect.decode(json.dumps(given).encode(), DecodeContext())
        except ServerError as refusal:
            return refusal.report.message
        return found.requests, found.stream

    bare = decoded(body)
    assert not isinstance(bare, str)
    for name in sorted(names_of(dialect.contract.body) - body.keys()):
        assert decoded(body | {name: None}) == bare, name
    for name, place in dialect.contract.settings().items():
        for kind in members([place]):
            if isinstance(kind, inspect.StructType) and name not in body:
                given = smallest(kind)
                optional = {field.encode_name: None for field in kind.fields if not field.required}
                assert decoded(body | {name: {**optional, **given}}) == decoded(body | {name: given}), name


def test_null_of_an_object_inside_another_is_left_out() -> None:
    class Inner(Struct):
        many: int = 3
        told: str | None = "so"

    class Outer(Struct):
        inner: list[Inner]
        named: dict[str, Inner] = {}

    body = b'{"inner": [{"many": null}, {"told": null}], "named": {"a": {"many": null}}}'
    assert decode_json(body, Outer) == Outer([Inner(), Inner(told=None)], {"a": Inner()})
    assert msgspec.json.decode(b"{}", type=Inner) == Inner()

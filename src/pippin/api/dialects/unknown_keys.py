"""Finds the keys in a body's settings that the structs of its contract do not have."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, inspect

from pippin.api.dialects.body_types import members, objects_of

MOST_LETTERS: Final = 64
"""Of a name that goes to the log."""

NAME: Final = re.compile(r"[A-Za-z0-9_.$-]+")
"""What is none may be a text, which is not for the log."""


@functools.cache
def settings_of(body: type[Struct]) -> Mapping[str, inspect.Type]:
    """The fields of a body in which objects with keys of their own stand."""
    fields = {field.encode_name: field.type for field in inspect.type_info(body).fields}  # type: ignore[attr-defined]
    return {name: place for name, place in fields.items() if any(objects_of(place, name))}


def unknown_keys(value: Any, place: inspect.Type, path: str) -> Iterator[str]:
    """Where the keys of a decoded value stand that no struct at that place has: `tools[].function.foo`."""
    kinds = list(members([place]))
    match value:
        case dict():
            if (struct := _struct_for(value, kinds)) is not None:
                yield from _unknown_of(value, struct, path)
                return
            for kind in kinds:
                if isinstance(kind, inspect.DictType):
                    for inner in value.values():
                        yield from unknown_keys(inner, kind.value_type, f"{path}.*")
        case list():
            for kind in kinds:
                if isinstance(kind, inspect.ListType | inspect.VarTupleType):
                    for inner in value:
                        yield from unknown_keys(inner, kind.item_type, f"{path}[]")


def _unknown_of(value: dict[str, Any], struct: inspect.StructType, path: str) -> Iterator[str]:
    known = {field.encode_name: field.type for field in struct.fields}
    for key, inner in value.items():
        if key in known:
            yield from unknown_keys(inner, known[key], f"{path}.{key}")
        elif key != struct.tag_field:
            yield f"{path}.{key[:MOST_LETTERS] if NAME.fullmatch(key) else '?'}"


def _struct_for(value: dict[str, Any], kinds: Sequence[inspect.Type]) -> inspect.StructType | None:
    structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    tagged = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
    return next(iter(tagged or [each for each in structs if not each.tag_field]), None)

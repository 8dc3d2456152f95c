"""Walks the types of a body: what may stand where, without the shells that unions and metadata are."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Meta, inspect


def read_as(*shapes: Any) -> Meta:
    """Annotates an object whose type is open, because it is given back as it came, with what it is read as."""
    return Meta(extra={"read_as": shapes})


@functools.cache
def type_of(shape: Any) -> inspect.Type:
    """msgspec takes a millisecond to tell it."""
    return inspect.type_info(shape)


def members(places: Iterable[inspect.Type]) -> Iterator[inspect.Type]:
    for place in places:
        match place:
            case inspect.UnionType(types=types):
                yield from members(types)
            case inspect.Metadata(extra={"read_as": shapes}):
                yield from members(map(type_of, shapes))
            case inspect.Metadata(type=inner):
                yield from members([inner])
            case _:
                yield place


def objects_of(place: inspect.Type, path: str) -> Iterator[tuple[str, inspect.StructType]]:
    """Each struct that may stand at that place or inside of it, and where: `tools[].function`."""
    for kind in members([place]):
        match kind:
            case inspect.StructType(fields=fields):
                yield path, kind
                for field in fields:
                    yield from objects_of(field.type, f"{path}.{field.encode_name}")
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                yield from objects_of(item, f"{path}[]")
            case inspect.DictType(value_type=item):
                yield from objects_of(item, f"{path}.*")

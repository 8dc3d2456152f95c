"""Kinds of cache in messages between ranks: the name of the class, and its fields."""

from dataclasses import fields

import mlx.core as mx
from msgspec import Struct

from pippin.engines.language.kv_cache.kinds.base import CacheKind, TokenArray
from pippin.engines.language.kv_cache.layout import UnknownKind, find_kinds

Shape = tuple[int, int, str]
"""Heads, size and the name of the type of a `TokenArray`."""


class Kind(Struct, frozen=True):
    name: str  # of its class
    fields: dict[str, int | Shape]


def written(kind: CacheKind) -> Kind:
    found: dict[str, int | Shape] = {}
    for field in fields(kind):  # type: ignore[arg-type] # each kind is a dataclass
        value = getattr(kind, field.name)
        if isinstance(value, TokenArray):
            value = (value.heads, value.size, str(value.dtype).rpartition(".")[2])
        found[field.name] = value
    return Kind(type(kind).__name__, found)


def read(kind: Kind) -> CacheKind:
    """Raises `KeyError` for a class that is not known here."""
    known: dict[str, type] = {served.__name__: served for served in find_kinds().values()}
    known[UnknownKind.__name__] = UnknownKind
    given = {
        name: value if isinstance(value, int) else TokenArray(value[0], value[1], getattr(mx, value[2]))
        for name, value in kind.fields.items()
    }
    found: CacheKind = known[kind.name](**given)
    return found

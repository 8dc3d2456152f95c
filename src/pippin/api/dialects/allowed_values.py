"""Finds what a struct takes at a place of a body, for the sentence that refuses something else."""

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec import inspect

from pippin.api.dialects.body_types import members

MOST: Final = 24
"""More values than that would hide the sentence that they stand in."""

_STEPS: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def allowed_values(type: Any, path: str) -> tuple[str, ...]:
    """The words that may stand at `path` (`messages[0].role`), in the order in which they are declared; none where
    they are not a closed list, or too many."""
    steps = _STEPS.findall(path)
    places = [inspect.type_info(type)]
    for step in steps[:-1]:
        places = [inner for place in members(places) for inner in _entered(place, step)]
    words = dict.fromkeys(word for place in members(places) for word in _words(place, steps[-1:]))
    return tuple(words) if len(words) <= MOST else ()


def _entered(place: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match place:
        case inspect.StructType(fields=fields):
            yield from (field.type for field in fields if field.encode_name == step)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if step[0] == "[":
            yield item
        case inspect.DictType(value_type=value) if step == "[...]":
            yield value


def _words(place: inspect.Type, steps: list[str]) -> Iterator[str]:
    for step in steps:
        match place:
            case inspect.StructType(tag_field=field, tag=str(tag)) if field == step:
                yield tag
            case _:
                for inner in members(_entered(place, step)):
                    if isinstance(inner, inspect.LiteralType):
                        yield from (value for value in inner.values if isinstance(value, str))

"""Walks the types of a body, looking through unions and metadata."""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Meta, Struct, inspect


def read_as(*shapes: Any) -> Meta:
    """Annotates an untyped object, which the answer repeats as it came, with the types that it is read as."""
    return Meta(extra={"read_as": shapes})


@functools.cache
def type_of(shape: Any) -> inspect.Type:
    """msgspec's description of a type, cached because building it takes a millisecond."""
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
    """Each struct that may occur at that place or inside it, with its path, such as `tools[].function`."""
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


MOST: Final = 24
"""The most values that an error message lists; more would bury its sentence."""

_AFTER_WORD: Final = re.compile(r"(?<=[A-Za-z0-9])_([a-z])")
_STEPS: Final = re.compile(r"\[[^\]]*\]|[^.\[\]]+")


def allowed_values(type: Any, path: str) -> tuple[str, ...]:
    """The words allowed at `path` (`messages[0].role`), in the order of declaration. Empty if they are not a closed
    list, or are more than `MOST`."""
    *outer, last = _STEPS.findall(path)
    places = [inspect.type_info(type)]
    for step in outer:
        places = [inner for place in members(places) for inner in _entered(place, step)]
    words = dict.fromkeys(word for place in members(places) for word in _words(place, last))
    return tuple(words) if len(words) <= MOST else ()


def _entered(place: inspect.Type, step: str) -> Iterator[inspect.Type]:
    match place:
        case inspect.StructType(fields=fields):
            yield from (field.type for field in fields if field.encode_name == step)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item) if step[0] == "[":
            yield item
        case inspect.DictType(value_type=value) if step == "[...]":
            yield value


def _words(place: inspect.Type, step: str) -> Iterator[str]:
    match place:
        case inspect.StructType(tag_field=field, tag=str(tag)) if field == step:
            yield tag
        case _:
            for inner in members(_entered(place, step)):
                if isinstance(inner, inspect.LiteralType):
                    yield from (value for value in inner.values if isinstance(value, str))


MOST_LETTERS: Final = 64
"""The length to which a key's name is cut for the log."""

NAME: Final = re.compile(r"[A-Za-z0-9_.$-]+")
"""A key that may be named in the log. Any other key may be the client's text, which must not be logged."""


@functools.cache
def settings_of(body: type[Struct]) -> Mapping[str, inspect.Type]:
    """The fields of a body that hold objects with declared keys."""
    fields = {field.encode_name: field.type for field in inspect.type_info(body).fields}  # type: ignore[attr-defined]
    return {name: place for name, place in fields.items() if any(objects_of(place, name))}


Change = Callable[[dict[str, Any], inspect.StructType, str], dict[str, Any]]


def unknown_keys(value: Any, place: inspect.Type, path: str) -> list[str]:
    """The paths of keys in a decoded value that no struct at that place declares: `tools[].function.foo`."""
    found: list[str] = []

    def note(given: dict[str, Any], struct: inspect.StructType, at: str) -> dict[str, Any]:
        known = {struct.tag_field, *(field.encode_name for field in struct.fields)}
        strange = (key for key in given if key not in known)
        found.extend(f"{at}.{key[:MOST_LETTERS] if NAME.fullmatch(key) else '?'}" for key in strange)
        return given

    _rewritten(value, place, note, path)
    return found


def without_nulls(value: Any, place: inspect.Type) -> Any:
    """A decoded value of that type without the fields that are null though their type has no null: many clients write
    what they leave out so."""

    def change(given: dict[str, Any], struct: inspect.StructType, _: str) -> dict[str, Any]:
        omitted = {
            field.encode_name
            for field in struct.fields
            if not field.required
            and not any(
                isinstance(kind, inspect.NoneType | inspect.AnyType) for kind in members([field.type])
            )
        }
        return {name: inner for name, inner in given.items() if inner is not None or name not in omitted}

    return _rewritten(value, place, change)


def with_whole_numbers(value: Any) -> Any:
    """A decoded value in which whole numbers are integers: some clients write all numbers as `4096.0`."""
    match value:
        case float() if value.is_integer() and abs(value) < 2**53:
            return int(value)
        case list():
            return [with_whole_numbers(each) for each in value]
        case dict():
            return {name: with_whole_numbers(inner) for name, inner in value.items()}
    return value


def in_camel_case(value: Any, place: inspect.Type) -> Any:
    """A decoded value of that type with the fields of its structs in camel case: clients of protocol buffers may write
    `max_tokens` for `maxTokens`. Keys of free-form values stay."""
    return _rewritten(value, place, lambda given, *_: {camel(name): inner for name, inner in given.items()})


def camel(name: str) -> str:
    return _AFTER_WORD.sub(lambda found: found[1].upper(), name)


def _rewritten(value: Any, place: inspect.Type, change: Change, path: str = "") -> Any:
    """A decoded value of that type in which each object that is read as a struct is changed. `change` is also told its
    path."""
    kinds = list(members([place]))
    if isinstance(value, list):
        items = [kind for kind in kinds if isinstance(kind, inspect.ListType | inspect.VarTupleType)]
        inside = f"{path}[]"
        return [_rewritten(each, items[0].item_type, change, inside) for each in value] if items else value
    if not isinstance(value, dict):
        return value
    if (struct := _struct_for(value, kinds)) is not None:
        types = {field.encode_name: field.type for field in struct.fields}
        return {
            name: _rewritten(inner, types[name], change, f"{path}.{name}") if name in types else inner
            for name, inner in change(value, struct, path).items()
        }
    maps = [kind for kind in kinds if isinstance(kind, inspect.DictType)]
    return (
        {name: _rewritten(inner, maps[0].value_type, change, f"{path}.*") for name, inner in value.items()}
        if maps
        else value
    )


def _struct_for(value: dict[str, Any], kinds: Sequence[inspect.Type]) -> inspect.StructType | None:
    """The struct with the value's tag, else the first without a tag that declares all its keys, else the first such."""
    structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    tagged = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
    plain = [each for each in structs if not each.tag_field]
    whole = [each for each in plain if value.keys() <= {field.encode_name for field in each.fields}]
    return next(iter(tagged or whole or plain), None)

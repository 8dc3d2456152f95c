"""Finds every number in a request's body, however deep, and makes the least body that holds it."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

HERE = "@@number@@"
"""Stands where the number will be."""

Place = tuple[str, Any]  # the name of the field, and a value that holds `HERE`


def unwrapped(annotation: Any) -> list[Any]:
    """The types that a value may be of, without their bounds."""
    if get_origin(annotation) is Annotated:
        return unwrapped(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [each for argument in get_args(annotation) for each in unwrapped(argument)]
    return [annotation]


def is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)


def places(annotation: Any, name: str = "", within: tuple[Any, ...] = ()) -> Iterator[Place]:
    for each in unwrapped(annotation):
        arguments = [argument for argument in get_args(each) if argument is not ...]
        if each in (int, float):
            yield name, HERE
        elif get_origin(each) in (list, tuple):
            for found, value in places(arguments[0], name, within):
                yield found, [value]
        elif get_origin(each) is dict:
            for found, value in places(arguments[1], name, within):
                yield found, {"1": value}
        elif is_struct(each) and each not in within:
            for field in msgspec.structs.fields(each):
                for found, value in places(field.type, field.encode_name, (*within, each)):
                    yield found, least(each) | {field.encode_name: value}


def least(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Its required fields, and its tag."""
    config = struct.__struct_config__
    tag = {config.tag_field: config.tag} if config.tag_field else {}
    return tag | {
        field.encode_name: least_value(field.type)
        for field in msgspec.structs.fields(struct)
        if field.required
    }


def least_value(annotation: Any) -> Any:
    first = unwrapped(annotation)[0]
    if get_origin(first) is Literal:
        return get_args(first)[0]
    if is_struct(first):
        return least(first)
    simple: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: True, list: [], tuple: [], dict: {}}
    return simple.get(get_origin(first) or first, {})

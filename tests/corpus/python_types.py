"""Makes values of Python's types: of TypedDict and pydantic's models with all of their fields.

    python python_types.py < TYPES

prints the value of each type named in a JSON list; it needs nothing but the packages, and may run where they are.
"""

import enum
import importlib
import json
import sys
import types
import typing
from typing import Any

DEEPEST = 3


def sample(kind: Any, depth: int = 0) -> Any:
    """A value of a type; None where its fields would be too deep."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    match origin:
        case typing.Annotated | typing.Required | typing.NotRequired:
            return sample(inner[0], depth)
        case typing.Literal:
            return inner[0]
        case _ if getattr(kind, "__pydantic_root_model__", False):
            return sample(_of_root(kind), depth)
        case typing.Union | types.UnionType:
            known = [each for each in inner if each is not type(None)]
            return sample(next(filter(_fields, known), known[0]), depth)
    if fields := _fields(kind):
        values = {} if depth > DEEPEST else {name: sample(of, depth + 1) for name, of in fields.items()}
        return {name: value for name, value in values.items() if value is not None} or None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return next(iter(kind)).value
    name = getattr(origin or kind, "__name__", "")
    if name in ("list", "List", "Iterable", "Sequence", "SequenceNotStr"):
        held = [sample(each, depth) for each in _kinds(inner[0])] if inner else ["x"]
        return [each for each in held if each is not None] or None
    if name in ("dict", "Dict", "Mapping"):
        kinds = [each for each in _kinds(_of_root(inner[1])) if _fields(each)] if inner else []
        if len(kinds) > 1:
            return {f"x{number}": sample(each, depth) for number, each in enumerate(kinds)}
        held = sample(inner[1], depth) if inner else "x"
        return None if held is None else {"x": held}
    return {"bool": True, "int": 1, "float": 0.5}.get(name, "x")


def _of_root(kind: Any) -> Any:
    """The type of the value that a model of pydantic's consists of."""
    return kind.model_fields["root"].annotation if getattr(kind, "__pydantic_root_model__", False) else kind


def _kinds(kind: Any) -> tuple[Any, ...]:
    """What a list may hold."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _fields(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "__total__"):  # of either TypedDict
        return typing.get_type_hints(kind, include_extras=True)
    models = getattr(kind, "model_fields", {})
    return {(field.alias or name): field.annotation for name, field in models.items()}


def named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    json.dump([sample(named(place)) for place in json.load(sys.stdin)], sys.stdout)

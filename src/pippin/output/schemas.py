"""Questions about JSON schemas: the types that they admit, and the schemas of properties."""

from collections.abc import Iterator
from typing import Any, Final

_KINDS: Final = {"integer", "number", "boolean", "null", "object", "array", "string"}


MOST_PARTS: Final = 128
"""Most parts of a schema visited for one type: a few definitions that refer to each other can expand to millions."""


def types_of(schema: Any, root: dict[str, Any]) -> frozenset[str]:
    """JSON types that a schema admits; empty if it does not say, or if the answer takes more than `MOST_PARTS`."""
    return _types_of(schema, root, iter(range(MOST_PARTS)))


def _types_of(schema: Any, root: dict[str, Any], left: Iterator[int]) -> frozenset[str]:
    """`left` has one item for each part that may still be visited."""
    if not isinstance(schema, dict) or next(left, None) is None:
        return frozenset()
    if isinstance(schema.get("$ref"), str):
        return _types_of(resolve(schema["$ref"], root), root, left)
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return frozenset(name for name in ([kind] if isinstance(kind, str) else kind) if name in _KINDS)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            found = [_types_of(option, root, left) for option in schema[key][:MOST_PARTS]]
            return frozenset().union(*found) if all(found) or key == "allOf" else frozenset()
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(type_of(value) for value in values) if isinstance(values, list) else frozenset()


def resolve(reference: Any, root: dict[str, Any]) -> Any:
    """The schema that a reference within the document names; None if it names none."""
    if reference != "#" and not str(reference).startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def property_schema(schema: dict[str, Any] | None, key: str) -> Any:
    """The schema of one property of a parameters schema."""
    if not isinstance(schema, dict):
        return None
    properties = schema.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return schema.get("additionalProperties")


_TYPES: Final = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    return _TYPES.get(type(value), "object")

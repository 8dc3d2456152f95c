"""Where in a JSON schema something stands that can't be honoured."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MOST_NODES = 50_000
DEEPEST = 200

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties", "additionalItems", "contentSchema",
)  # fmt: skip

Node = tuple[str, dict[str, Any]]
"""A schema inside a schema, and its path in JSON-pointer style with dots."""


class TooLarge(Exception):
    """The schema nests too deep or has too many parts."""


def nodes(schema: Any, path: str = "", depth: int = 0) -> Iterator[Node]:
    """All object schemas, outermost first. Raises `TooLarge`."""
    if depth > DEEPEST:
        raise TooLarge(f"it nests deeper than {DEEPEST} levels")
    if not isinstance(schema, dict):
        return
    yield path, schema
    for keyword in _MAPS:
        held = schema.get(keyword)
        if isinstance(held, dict):
            for name, inner in held.items():
                yield from nodes(inner, f"{path}.{keyword}.{name}", depth + 1)
    for keyword in _LISTS:
        held = schema.get(keyword)
        if isinstance(held, list):
            for place, inner in enumerate(held):
                yield from nodes(inner, f"{path}.{keyword}[{place}]", depth + 1)
    for keyword in _SINGLE:
        yield from nodes(schema.get(keyword), f"{path}.{keyword}", depth + 1)


def check_size(schema: Any) -> None:
    """Raises `TooLarge` for a schema that would take too long to compile."""
    for count, _ in enumerate(nodes(schema)):
        if count > MOST_NODES:
            raise TooLarge(f"it has more than {MOST_NODES} parts")


def keyword_path(schema: Any, keyword: str) -> str | None:
    """The path of the first place that has the keyword."""
    for path, node in nodes(schema):
        if keyword in node:
            return f"{path}.{keyword}".removeprefix(".")
    return None


def value_path(schema: Any, keyword: str, value: Any) -> str | None:
    """The path of the first place where the keyword has this value (or holds it, in a list)."""
    for path, node in nodes(schema):
        held = node.get(keyword)
        if held == value or (isinstance(held, list) and value in held):
            return f"{path}.{keyword}".removeprefix(".")
    return None


def innermost_failing(schema: Any, fault: Callable[[dict[str, Any]], str]) -> tuple[str, str] | None:
    """The path and the `fault` (empty: none) of the last part that fails by itself, of the first 200. A part is tried
    with the whole schema's definitions, so that its references hold."""
    if not isinstance(schema, dict):
        return None
    definitions = {
        name: schema[name] for name in ("$defs", "definitions") if isinstance(schema.get(name), dict)
    }
    found = None
    for path, node in islice(nodes(schema), 1, 200):
        reason = fault({**definitions, **node})
        if reason:
            found = path.removeprefix("."), reason
    return found

"""Finds the part of a JSON schema that can't be honoured, and bounds the size of schemas."""

import copy
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
"""A schema inside a schema, and its path: keywords and names joined by dots, indices in brackets."""


class TooLarge(Exception):
    """Raised for a schema that nests too deep or has too many parts; the message says which."""


def nodes(schema: Any, path: str = "", depth: int = 0) -> Iterator[Node]:
    """Yield all schemas inside a schema that are objects, outermost first. Raises `TooLarge`."""
    if depth > DEEPEST:
        raise TooLarge(f"it nests deeper than {DEEPEST} levels")
    if isinstance(schema, dict):
        yield path, schema
        for place, holder, key in _inner(schema):
            yield from nodes(holder[key], path + place, depth + 1)


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The schemas right inside a schema: the path of each from there, what holds it, and under which key."""
    for keyword in _MAPS:
        held = schema.get(keyword)
        if isinstance(held, dict):
            yield from ((f".{keyword}.{name}", held, name) for name in held)
    for keyword in _LISTS:
        held = schema.get(keyword)
        if isinstance(held, list):
            yield from ((f".{keyword}[{index}]", held, index) for index in range(len(held)))
    yield from ((f".{keyword}", schema, keyword) for keyword in _SINGLE if keyword in schema)


def check_size(schema: Any) -> None:
    """Raises `TooLarge` for a schema that would take too long to compile."""
    for count, _ in enumerate(nodes(schema)):
        if count > MOST_NODES:
            raise TooLarge(f"it has more than {MOST_NODES} parts")


def path_of(schema: Any, keyword: str, value: str | None = None) -> str | None:
    """The path of the first occurrence of the keyword: with any value, or with this one or a list that contains it."""
    for path, node in nodes(schema):
        held = node.get(keyword)
        if keyword in node and (value is None or held == value or (isinstance(held, list) and value in held)):
            return f"{path}.{keyword}".removeprefix(".")
    return None


def innermost_failing(schema: Any, fault: Callable[[dict[str, Any]], str]) -> tuple[str, str] | None:
    """The path and fault of the last of the first 200 inner schemas that fails by itself, or None.

    `fault` compiles a schema and returns the error, empty if there is none. An inner schema is compiled together with
    the definitions of the whole one, which it may refer to.
    """
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


def without_keyword(schema: Any, keyword: str) -> Any:
    """The schema without a keyword, wherever it occurs. Of `oneOf`, what is left is `anyOf`."""
    found = copy.deepcopy(schema)
    for _, node in nodes(found):
        if keyword == "oneOf" and "anyOf" not in node and "oneOf" in node:
            node["anyOf"] = node["oneOf"]
        node.pop(keyword, None)
    return found


def without(schema: Any, path: str) -> Any:
    """The schema without the keyword at a path as `nodes` writes them; a schema at that path admits anything then."""
    found = copy.deepcopy(schema)
    for inner, node in nodes(found):
        keywords = ((f".{keyword}", node, keyword) for keyword in node)
        for place, holder, key in (*keywords, *_inner(node)):
            if (inner + place).removeprefix(".") == path:
                if holder is node:
                    del node[key]
                else:
                    holder[key] = {}
                return found
    return found

"""Converts arguments that the model does not write as JSON into one JSON object, typed by the tool's schema."""

import json
import math
import re
from typing import Any, Final, Literal

from pippin.output.notations.json_text import quoted, whole
from pippin.output.notations.literals import PYTHON, read_literal
from pippin.output.schemas import property_schema, type_of, types_of
from pippin.output.stream import Malformed, Source

Untyped = Literal["string", "json"]
"""How to read a value whose type the schema does not say: as a string, or as JSON if it parses."""

_NAMES: Final = {"true": "true", "false": "false", "null": "null", "none": "null"}
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # of a surrogate pair, escaped or not
LITERAL_LIMIT: Final = 1 << 16  # most characters of a value that is parsed as a Python literal


def _parse(text: str) -> tuple[str, str] | None:
    """The type of a text that is one JSON value, and the text. Only the type of the parsed value is used."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_int=len)
    except (ValueError, RecursionError):
        return None
    kind = type_of(value)
    return ("integer" if isinstance(value, float) and value.is_integer() else kind), text


def _refuse(name: str) -> Any:
    raise ValueError(name)


def convert(text: str, types: frozenset[str]) -> str:
    """The JSON of a value: of one of `types` if the text parses as such, else a string."""
    bare = text.strip()
    if types == {"string"} or (types == {"string", "null"} and bare.lower() not in ("null", "none")):
        return quoted(text)
    parsed = _parse(_NAMES.get(bare.lower(), bare)) or _parse_literal(bare)
    if parsed is None:
        return quoted(text)
    kind, value = parsed
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return value if fits else quoted(text)


def _parse_literal(text: str) -> tuple[str, str] | None:
    """A Python list, tuple or dict as JSON. Nothing is evaluated: the text is parsed, within limits."""
    if not text.startswith(("[", "{", "(")) or len(text) > LITERAL_LIMIT:
        return None
    source = Source()
    source.push(text)
    source.close(truncated=False)
    try:
        next(read_literal(source, PYTHON))
    except StopIteration as read:
        kind = "object" if text[0] == "{" else "array"
        return (kind, read.value) if source.position == len(text) else None
    except Malformed:
        return None
    raise AssertionError("a source that has ended is waited for")


def object_text(text: str) -> str | None:
    """Arguments as the text of one JSON object that every JSON parser reads; None if they are no object.

    Nothing at all is an object without members. Notations that models slip into (single quotes, a comma behind the last
    member) are rewritten, and halves of surrogate pairs replaced. Numbers that JSON does not have are not accepted.
    """
    bare = text.strip() or "{}"
    try:
        value = json.loads(bare, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        rewritten = _parse_literal(bare)
        return object_text(rewritten[1]) if rewritten is not None and rewritten[0] == "object" else None
    if not isinstance(value, dict):
        return None
    return whole(json.dumps(value, ensure_ascii=False)) if _HALF.search(bare) else bare


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


class Arguments:
    """One JSON object under construction, of arguments whose types a tool's schema says."""

    def __init__(self, schema: dict[str, Any] | None, untyped: Untyped) -> None:
        self._schema, self._untyped = schema, untyped
        self._members: list[str] = []

    def add(self, key: str, text: str, kind: Literal["string", "json"] | None = None) -> None:
        """Add a value as the model wrote it. `kind` is its type, if the model wrote that, too."""
        types = types_of(property_schema(self._schema, key), self._schema or {})
        if kind == "string" or (not types and kind is None and self._untyped == "string"):
            types = frozenset({"string"})
        self.put(key, convert(text, types))

    def put(self, key: str, value: str) -> None:
        """Add a value that is JSON."""
        self._members.append(f"{quoted(key)}: {value}")

    @property
    def json(self) -> str:
        return f"{{{', '.join(self._members)}}}"

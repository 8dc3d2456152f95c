"""Converts arguments that the model does not write as JSON into one JSON object, typed by the tool's schema."""

import json
import math
from typing import Any, Final, Literal

from pippin.output.notations.literals import PYTHON, read_literal
from pippin.output.schemas import property_schema, type_of, types_of
from pippin.output.stream import Malformed, Put, Source

Untyped = Literal["string", "json"]
"""How to read a value whose type the schema does not say: as a string, or as JSON if it parses."""

_NAMES: Final = {"true": "true", "false": "false", "null": "null", "none": "null"}
LITERAL_LIMIT: Final = 1 << 16  # most characters of a value that is parsed as a Python literal


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


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
    """The JSON of a complete value: of one of `types` if the text parses as such, else a string."""
    bare = text.strip()
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
    pieces: list[str] = []
    try:
        next(read_literal(source, pieces.append, PYTHON), None)
    except Malformed:
        return None
    return None if source.position < len(text) else ("object" if text[0] == "{" else "array", "".join(pieces))


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
    return (
        bare
        if _encodes(bare) and _encodes(value)
        else json.dumps(_whole_characters(value), ensure_ascii=False)
    )


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _encodes(value: Any) -> bool:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _whole_characters(value: Any) -> Any:
    """The value with halves of surrogate pairs replaced by U+FFFD."""
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


class ArgumentsWriter:
    """Writes one JSON object, argument by argument; strings are streamed, other values are written at their end."""

    def __init__(self, put: Put, schema: dict[str, Any] | None, untyped: Untyped) -> None:
        self._put, self._schema, self._untyped = put, schema, untyped
        self._count = 0
        self._types: frozenset[str] = frozenset()
        self._streams = False
        self._held: list[str] = []
        self._opened = False  # a string's opening quote was written

    def begin(self, key: str, *, kind: Literal["string", "json"] | None = None) -> None:
        """Begin the value of this key. `kind` is its type as the model wrote it, if it did."""
        self.begin_value(key, kind=kind)
        self.member(key)

    def begin_value(self, key: str, *, kind: Literal["string", "json"] | None = None) -> None:
        """Begin a value without writing its key."""
        types = types_of(property_schema(self._schema, key), self._schema or {})
        if kind == "string" or (not types and kind is None and self._untyped == "string"):
            types = frozenset({"string"})
        self._types = types
        self._streams = types == {"string"}
        self._held, self._opened = [], False

    def member(self, key: str) -> None:
        """Write the key of a value."""
        self._put(("{" if not self._count else ", ") + quoted(key) + ": ")
        self._count += 1

    def put(self, text: str) -> None:
        """Add more of the value's text."""
        if self._streams:
            self._put(('"' if not self._opened else "") + quoted(text)[1:-1])
            self._opened = True
            return
        self._held.append(text)
        if self._types == {"string", "null"} and not _may_be_null(held := "".join(self._held)):
            self._streams, self._held = True, []
            self.put(held)

    def raw(self, text: str) -> None:
        self._put(text)

    def end(self) -> None:
        """End the value."""
        if self._streams:
            self._put('"' if self._opened else '""')
        else:
            self._put(convert("".join(self._held), self._types))

    def close(self) -> None:
        self._put("}" if self._count else "{}")


def _may_be_null(text: str) -> bool:
    bare = text.strip().lower()
    return len(text) < 16 and ("null".startswith(bare) or "none".startswith(bare))

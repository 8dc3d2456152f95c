"""Reads JSON to the end of a value, as raw text, and decodes strings."""

import json
import re

from pippin.output.stream import UNLIMITED, Malformed, Reading, Source

_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s<|]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_LEGAL_ESCAPES = frozenset('"\\/bfnrtu')
_ESCAPE = re.compile(r"\\(?:(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8})|(.))", re.DOTALL)
# In Python, a backslash before a line break joins the lines.
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "\n": "",
    **dict(zip("\\'\"/", "\\'\"/", strict=True)),
}
_HALF = re.compile(r"[\ud800-\udfff]")  # of a surrogate pair
_CLOSING = {"{": "}", "[": "]"}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def read_value(source: Source) -> Reading[str]:
    """Read one JSON value.

    A `<` outside strings can only be the format's own end marker: the value ends before it, or where the model ended,
    and brackets that it left open are closed. Malformed if the stream ends inside a string, or by a limit.
    """
    first = yield from source.peek()
    if first in _CLOSING:
        return (yield from read_rest(source, source.take(1)))
    if first == '"':
        return '"' + (yield from read_string(source)) + '"'
    return (yield from source.word(_SCALAR_END, UNLIMITED))


def read_rest(source: Source, opener: str) -> Reading[str]:
    """Read the rest of an object or a list after its opening bracket; returns all of it."""
    pieces, opened = [opener], [_CLOSING[opener]]
    while opened and (yield from source.more()):
        pieces.append((yield from source.upto(_STRUCTURE)))
        token = yield from source.peek()
        if token == '"':
            pieces.append('"' + (yield from read_string(source)) + '"')
        elif token in _CLOSING:
            pieces.append(source.take(1))
            opened.append(_CLOSING[token])
        elif token == "<":
            break
        elif token:
            pieces.append(source.take(1))
            opened.pop()
    if opened and source.cut:
        raise Malformed
    return "".join([*pieces, *reversed(opened)])


def read_string(source: Source) -> Reading[str]:
    """Read a string; returns its raw text without the quotes.

    Line breaks and invalid escapes, which JSON forbids but models write, are escaped.
    """
    source.take(1)
    pieces: list[str] = []
    while (yield from source.more()):
        pieces.append(_CONTROL.sub(_escaped, (yield from source.upto(_STRING))))
        token = yield from source.peek()
        if token == '"':
            source.take(1)
            return "".join(pieces)
        if token:
            escape = yield from source.exactly(2)
            legal = escape[1] in _LEGAL_ESCAPES
            pieces.append(escape if legal else "\\\\" + _CONTROL.sub(_escaped, escape[1]))
    raise Malformed


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def decoded(raw: str) -> str:
    """The text of a string of JSON or Python. An escape that is unknown, or without its digits, stays unchanged."""
    return whole(_ESCAPE.sub(_decoded, raw))


def _decoded(match: re.Match[str]) -> str:
    digits, escaped = match.groups()
    if digits is None:
        return _ESCAPES.get(escaped, match.group())
    code = int(digits[1:], 16)
    return chr(code) if code <= 0x10FFFF else "\ufffd"


def whole(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced where the other half is missing."""
    if not _HALF.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

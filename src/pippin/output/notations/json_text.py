"""Reads JSON as it arrives: values are passed on as raw text, short strings are decoded."""

import json
import re
from collections.abc import Mapping
from typing import ClassVar

from pippin.output.stream import Malformed, Put, Reading, Source

_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING = re.compile(r'["\\]')
_SCALAR_END = re.compile(r"[,}\]\s<|]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_LEGAL_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = re.compile(r"[0-9a-fA-F]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CLOSING = {"{": "}", "[": "]"}


def read_value(source: Source, put: Put) -> Reading[None]:
    """Read one JSON value and put its raw text as it arrives.

    A `<` outside strings can only be the format's own end marker: the value ends before it, or where the model ended,
    and brackets that it left open are closed. Malformed if the stream ends inside a string, or by a limit.
    """
    first = yield from source.peek()
    if first in ("{", "["):
        put(source.take(1))
        yield from _read_rest(source, put, [_CLOSING[first]])
    elif first == '"':
        yield from _read_string(source, put)
    else:
        yield from _read_scalar(source, put)


def _read_string(source: Source, put: Put) -> Reading[None]:
    put(source.take(1))
    yield from read_string_body(source, put)
    put('"')


def read_object_rest(source: Source, put: Put) -> Reading[None]:
    """Read the rest of an object after its opening brace."""
    yield from _read_rest(source, put, ["}"])


def _read_rest(source: Source, put: Put, opened: list[str]) -> Reading[None]:
    while (yield from source.more()):
        token = yield from _until_pattern(source, _STRUCTURE, put)
        if token == '"':
            yield from _read_string(source, put)
        elif token in _CLOSING:
            put(source.take(1))
            opened.append(_CLOSING[token])
        elif token == "<":
            put("".join(reversed(opened)))
            return
        elif token:
            put(source.take(1))
            opened.pop()
            if not opened:
                return
    if source.truncated:
        raise Malformed
    put("".join(reversed(opened)))


def read_string_body(source: Source, put: Put) -> Reading[None]:
    """Read a string after its opening quote: puts its raw text and takes the closing quote.

    Line breaks and invalid escapes, which JSON forbids but models write, are escaped.
    """
    while (yield from source.more()):
        token = yield from _until_pattern(source, _STRING, lambda text: put(_CONTROL.sub(_escaped, text)))
        if token == '"':
            source.take(1)
            return
        if token:
            escape = yield from source.exactly(2)
            if escape[1] not in _LEGAL_ESCAPES:
                put("\\\\")
                escape = _CONTROL.sub(_escaped, escape[1])
            put(escape)
    raise Malformed


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def _read_scalar(source: Source, put: Put) -> Reading[None]:
    start = source.position
    yield from _until_pattern(source, _SCALAR_END, put)
    if source.position == start:
        raise Malformed


def _until_pattern(source: Source, pattern: re.Pattern[str], put: Put) -> Reading[str]:
    """Put the text before the next match of a one-character pattern; the match itself is not taken."""
    while (yield from source.more()):
        count, token = source.find(pattern)
        if count:
            put(source.take(count))
        if token:
            return token
    return ""


class StringDecoder:
    """Decodes JSON inside a JSON string (arguments encoded twice), in the pieces that `read_string_body` puts.

    An escape without its digits stays unchanged.
    """

    digits: ClassVar[Mapping[str, int]] = {"u": 4}
    """The number of hexadecimal digits that an escape requires."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._escape = ""  # an incomplete escape
        self._size = 0  # the length of the escape when complete
        self._high = 0  # first half of a surrogate pair

    def __call__(self, raw: str) -> None:
        if self._escape:
            left = self._size - len(self._escape)
            self._escape, raw = self._escape + raw[:left], raw[left:]
            if len(self._escape) < self._size:
                return
            escape, self._escape = self._escape, ""
            digits = escape[2:]
            if _HEX.fullmatch(digits):
                self._character(int(digits, 16))
            else:
                self._plain(escape)
        if len(raw) == 2 and raw[0] == "\\" and raw[1] in self.digits:
            self._escape, self._size = raw, 2 + self.digits[raw[1]]
        elif raw.startswith("\\"):
            self._plain(_ESCAPES.get(raw[1], raw[1]))
        elif raw:
            self._plain(raw)

    def end(self) -> None:
        """End the string: an incomplete escape becomes text."""
        escape, self._escape = self._escape, ""
        if escape or self._high:
            self._plain(escape)

    def _plain(self, text: str) -> None:
        self._put("\ufffd" + text if self._high else text)
        self._high = 0

    def _character(self, code: int) -> None:
        if 0xD800 <= code < 0xDC00:
            if self._high:
                self._plain("")
            self._high = code
        elif self._high and 0xDC00 <= code < 0xE000:
            self._put(chr(0x10000 + (self._high - 0xD800) * 0x400 + code - 0xDC00))
            self._high = 0
        else:
            self._plain("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))

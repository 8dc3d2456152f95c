"""Reads values in notations other than JSON (Python's, Gemma's) and puts them as JSON as they arrive."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pippin.output.notations.json_text import StringDecoder
from pippin.output.stream import Malformed, Markers, Put, Reading, Source

MAX_DEPTH: Final = 64
_WORD_END = re.compile(r"[,:=()\[\]{}\s\"'<]")
_WORDS: Final = {
    "True": "true",
    "False": "false",
    "None": "null",
    "true": "true",
    "false": "false",
    "null": "null",
}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9_]*)?\.?[0-9]*(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Notation:
    """`quotes` delimit strings with backslash escapes, `fences` strings without escapes.

    If `bare_end` is set, strings without quotes are allowed; they end before any of these characters. `counts` tells
    whether a delimiter that comes next is one, not text that spells it.
    """

    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")
    fences: tuple[str, ...] = ()
    bare_end: re.Pattern[str] | None = None
    counts: Callable[[str], bool] = lambda _: True


PYTHON: Final = Notation()


def read_literal(source: Source, put: Put, notation: Notation, depth: int = 0) -> Reading[None]:
    """Read one value.

    Malformed where the text is not a value; the text put until then is the beginning of one.
    """
    if depth > MAX_DEPTH:
        raise Malformed
    delimiter = yield from source.literal(*notation.fences, *notation.quotes, *_CLOSING)
    if delimiter is None:
        yield from _read_bare(source, put, notation)
    elif delimiter in _CLOSING:
        yield from _read_container(source, put, notation, delimiter, depth)
    else:
        put('"')
        yield from _read_strings(source, lambda text: put(_inside(text)), notation, delimiter)
        put('"')


def _read_strings(source: Source, put: Put, notation: Notation, delimiter: str) -> Reading[None]:
    """Read a string after its opening delimiter, and strings that follow it: as in Python, they are one."""
    found: str | None = delimiter
    while found is not None:
        yield from read_string_rest(source, put, notation, found)
        if found in notation.fences:
            return
        yield from source.space()
        found = yield from source.literal(*notation.quotes)


def read_string_rest(source: Source, put: Put, notation: Notation, delimiter: str) -> Reading[None]:
    """Read a string after its opening delimiter and put its decoded text."""
    escapes = delimiter in notation.quotes
    markers = Markers((delimiter, "\\") if escapes else (delimiter,))
    decoder = _PythonString(put)
    while (found := (yield from source.until(markers, decoder if escapes else put, notation.counts))) == "\\":
        decoder("\\" + (yield from source.exactly(1)))
    decoder.end()
    if found is None:
        raise Malformed


class _PythonString(StringDecoder):
    """Reads strings as Python does: an unknown escape is kept, and a backslash before a line break joins the lines."""

    digits: ClassVar[Mapping[str, int]] = {"x": 2, "u": 4, "U": 8}

    def __call__(self, raw: str) -> None:
        if len(raw) == 2 and raw[0] == "\\" and raw[1] not in "ntrbfxuU\\'\"/":
            super().__call__("" if raw[1] == "\n" else "\\\\")
            raw = raw[1] if raw[1] != "\n" else ""
        super().__call__(raw)


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _read_container(source: Source, put: Put, notation: Notation, opener: str, depth: int) -> Reading[None]:
    closer = _CLOSING[opener]
    json_closer = "}" if opener == "{" else "]"
    separator = "{" if opener == "{" else "["
    while True:
        yield from source.space()
        if (yield from source.literal(closer)):
            put(separator + json_closer if separator in "{[" else json_closer)
            return
        put(separator)
        separator = ", "
        if opener == "{":
            put(json.dumps((yield from read_key(source, notation)), ensure_ascii=False) + ": ")
            yield from source.space()
        yield from read_literal(source, put, notation, depth + 1)
        yield from source.space()
        if (yield from source.literal(",")) is None and (yield from source.peek()) != closer:
            raise Malformed


def read_key(source: Source, notation: Notation) -> Reading[str]:
    """Read a key, quoted or a bare word, and its colon."""
    delimiter = yield from source.literal(*notation.fences, *notation.quotes)
    pieces: list[str] = []
    if delimiter is None:
        pieces.append((yield from source.word(_WORD_END)))
    else:
        yield from read_string_rest(source, pieces.append, notation, delimiter)
    yield from source.space()
    yield from source.expect(":")
    return "".join(pieces)


def _read_bare(source: Source, put: Put, notation: Notation) -> Reading[None]:
    put(word_value((yield from source.word(notation.bare_end or _WORD_END, limit=1 << 16)), notation))


def word_value(word: str, notation: Notation) -> str:
    """The JSON of a word without quotes: a constant, a number, or a string if the notation allows bare strings."""
    for fence in notation.fences:  # which models forget before a string more often than behind it
        word = word.strip().removesuffix(fence)
    value = _WORDS.get(word.strip()) or _number(word)
    if value is None and notation.bare_end is None:
        raise Malformed
    return value or json.dumps(word.strip(), ensure_ascii=False)


def _number(word: str) -> str | None:
    digits = word.strip().replace("_", "")
    if not any(character.isdigit() for character in digits) or not _NUMBER.fullmatch(digits):
        return None
    try:
        value: float = int(digits)
    except ValueError:
        value = float(digits)
    return json.dumps(value) if value - value == 0 else None  # JSON has no infinity

"""Reads values in notations other than JSON (Python's, Gemma's) and writes them as JSON."""

import json
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from pippin.output.notations.json_text import decoded, quoted
from pippin.output.stream import Malformed, Markers, Reading, Source

MAX_DEPTH: Final = 64
_WORD_END = re.compile(r"[,:=()\[\]{}\s\"'<]")
_WORDS: Final = {
    **{word: word.lower() for word in ("True", "False", "true", "false")},
    **dict.fromkeys(("None", "null"), "null"),
}
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9_]*)?\.?[0-9]*(?:[eE][+-]?[0-9]+)?")


class Notation(Struct, frozen=True):
    """`quotes` delimit strings with backslash escapes, `fences` strings without escapes.

    If `bare_end` is set, strings without quotes are allowed; they end before any of these characters. `counts` tells
    whether a delimiter that comes next is one, not text that spells it.
    """

    quotes: tuple[str, ...] = ('"""', "'''", '"', "'")
    fences: tuple[str, ...] = ()
    bare_end: re.Pattern[str] | None = None
    counts: Callable[[str], bool] = lambda _: True


PYTHON: Final = Notation()


def read_literal(source: Source, notation: Notation, depth: int = 0) -> Reading[str]:
    """Read one value; returns its JSON. Malformed where the text is not a value."""
    if depth > MAX_DEPTH:
        raise Malformed
    delimiter = yield from source.literal(*notation.fences, *notation.quotes, *_CLOSING)
    if delimiter is None:
        word = yield from source.word(notation.bare_end or _WORD_END, limit=1 << 16)
        return word_value(word, notation)
    if delimiter in _CLOSING:
        return (yield from _read_container(source, notation, delimiter, depth))
    text = yield from read_string_rest(source, notation, delimiter)
    # As in Python, strings that follow each other are one.
    while delimiter not in notation.fences:
        yield from source.space()
        delimiter = yield from source.literal(*notation.quotes)
        if delimiter is None:
            break
        text += yield from read_string_rest(source, notation, delimiter)
    return quoted(text)


def read_string_rest(source: Source, notation: Notation, delimiter: str) -> Reading[str]:
    """Read a string after its opening delimiter; returns its decoded text."""
    escapes = delimiter in notation.quotes
    markers = Markers((delimiter, "\\") if escapes else (delimiter,))
    pieces: list[str] = []
    while (found := (yield from source.until(markers, pieces.append, notation.counts))) == "\\":
        pieces.append("\\" + (yield from source.exactly(1)))
    if found is None:
        raise Malformed
    return decoded("".join(pieces)) if escapes else "".join(pieces)


def _read_container(source: Source, notation: Notation, opener: str, depth: int) -> Reading[str]:
    closer, members = _CLOSING[opener], list[str]()
    while True:
        yield from source.space()
        if (yield from source.literal(closer)):
            inner = ", ".join(members)
            return f"{{{inner}}}" if opener == "{" else f"[{inner}]"
        key = ""
        if opener == "{":
            key = quoted((yield from read_key(source, notation))) + ": "
            yield from source.space()
        members.append(key + (yield from read_literal(source, notation, depth + 1)))
        yield from source.space()
        if (yield from source.literal(",")) is None and (yield from source.peek()) != closer:
            raise Malformed


def read_key(source: Source, notation: Notation) -> Reading[str]:
    """Read a key, quoted or a bare word, and its colon."""
    delimiter = yield from source.literal(*notation.fences, *notation.quotes)
    if delimiter is None:
        key = yield from source.word(_WORD_END)
    else:
        key = yield from read_string_rest(source, notation, delimiter)
    yield from source.space()
    yield from source.expect(":")
    return key


def word_value(word: str, notation: Notation) -> str:
    """The JSON of a word without quotes: a constant, a number, or a string if the notation allows bare strings."""
    for fence in notation.fences:  # which models forget before a string more often than behind it
        word = word.strip().removesuffix(fence)
    value = _WORDS.get(word.strip()) or _number(word)
    if value is None and notation.bare_end is None:
        raise Malformed
    return value or quoted(word.strip())


def _number(word: str) -> str | None:
    digits = word.strip().replace("_", "")
    if not any(character.isdigit() for character in digits) or not _NUMBER.fullmatch(digits):
        return None
    try:
        value: float = int(digits)
    except ValueError:
        value = float(digits)
    return json.dumps(value) if value - value == 0 else None  # JSON has no infinity

"""A tokenizer without a vocabulary: a token is at most five bytes of a word, and its id is those bytes."""

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

LONGEST: Final = 5  # bytes
MOST_REVERSED: Final = 7  # bytes, whose ids fit into 64 bits
WORD: Final = re.compile(r"\s?\w+|\s?[^\w\s]|\s+")


def pieces(text: str) -> list[str]:
    """Words with the space before them, punctuation one by one, in pieces of whole characters.

    One word at a time: to find all of a long text in one call would keep the interpreter from every other thread.
    """
    return [piece for word in WORD.finditer(text) for piece in _cut(word[0])]


def count(text: str, most: int) -> int:
    """How many tokens a text has; where they are surely more than `most`, the fewest that it can have."""
    least = len(text.encode()) // LONGEST
    return least if least > most else len(pieces(text))


def token_id(piece: str) -> int:
    """Reversible: the bytes with a one in front, as a number below 2**41. A longer piece that a script or a marker is
    has a number of its own below 2**58, which says nothing of its bytes."""
    raw = piece.encode()
    if len(raw) > MOST_REVERSED:
        return int.from_bytes(b"\x02" + blake2b(raw, digest_size=MOST_REVERSED).digest(), "big")
    return int.from_bytes(b"\x01" + raw, "big")


def token_bytes(id: int) -> bytes:
    """The bytes of a token; nothing for an id that no text has."""
    data = id.to_bytes((id.bit_length() + 7) // 8, "big")
    return data[1:] if data[:1] == b"\x01" else b""


def encode(text: str) -> tuple[int, ...]:
    return tuple(token_id(piece) for piece in pieces(text))


def decode(ids: Iterable[int]) -> str:
    return b"".join(token_bytes(token) for token in ids if token > 0).decode(errors="replace")


def _cut(word: str) -> list[str]:
    if len(word.encode()) <= LONGEST:
        return [word]
    cut, piece = [], ""
    for character in word:
        if len((piece + character).encode()) > LONGEST:
            cut.append(piece)
            piece = ""
        piece += character
    return [*cut, piece]

"""Tokens back to text, one at a time, exact to the byte."""

import codecs
import json
import re
from typing import Any

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Pieces:
    """The bytes of each token of a vocabulary, spelled out when a token is first met. One serves all streams."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.added: dict[int, tokenizers.AddedToken] = backend.get_added_tokens_decoder()
        self.special = frozenset(token for token, added in self.added.items() if added.special)
        steps = _decoder_steps(backend)
        self._byte_level = byte_values() if any(step["type"] == "ByteLevel" for step in steps) else None
        self.strips_first_space = any(_strips_first_space(step) for step in steps)
        self._space = next(filter(None, map(_space_mark, steps)), "▁")
        self._known: dict[int, bytes] = {}

    def raw(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character; empty for an id that the vocabulary lacks."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._spell(token)
        return known

    def _spell(self, token: int) -> bytes:
        added = self.added.get(token)
        if added is not None:
            return str(added.content).encode()
        piece = self._backend.id_to_token(token) if token >= 0 else None
        if piece is None:
            return b""
        if self._byte_level is not None:
            return b"".join(
                bytes((self._byte_level[mark],)) if mark in self._byte_level else mark.encode()
                for mark in piece
            )
        byte = _BYTE_TOKEN.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace(self._space, " ").encode()


def byte_values() -> dict[str, int]:
    """The byte for each character of a byte-level vocabulary (GPT-2's `bytes_to_unicode`, the other way round)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _strips_first_space(step: dict[str, Any]) -> bool:
    match step:
        case {"type": "Strip", "content": " ", "start": start}:
            return bool(start)
        case {"type": "Metaspace", "prepend_scheme": scheme}:
            return bool(scheme != "never")
        case _:
            return False


def _space_mark(step: dict[str, Any]) -> str | None:
    match step:
        case {"type": "Replace", "pattern": {"String": str(mark)}, "content": " "}:
            return mark
        case {"type": "Metaspace", "replacement": str(mark)}:
            return mark
        case _:
            return None


class Detokenizer:
    """The text of one stream of tokens. The bytes of an incomplete character are held back."""

    def __init__(self, pieces: Pieces, shown: frozenset[int], *, strip_first_space: bool) -> None:
        self._pieces = pieces
        self._dropped = pieces.special - shown
        self._strip = strip_first_space and pieces.strips_first_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """The text that is complete with this token."""
        if token in self._dropped:
            return ""
        text = self._decoder.decode(self._pieces.raw(token))
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """End the stream: replacement characters for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)

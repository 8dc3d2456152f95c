"""Tokens back to text, one at a time, exact to the byte."""

import codecs

import tokenizers


class Pieces:
    """The bytes of each token of a vocabulary. Made once for each model."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self.added = {id: token for id, token in backend.get_added_tokens_decoder().items()}

    def raw(self, token: int) -> bytes:
        if token in self.added:
            return str(self.added[token].content).encode()
        text = self._backend.id_to_token(token)
        if text is None:
            return b""
        return bytes(_BYTES.get(character, 32) for character in text)


def _byte_table() -> dict[str, int]:
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_table()


class Detokenizer:
    """One stream. Holds back the bytes of a character that is not whole."""

    def __init__(self, pieces: Pieces, markers: frozenset[str]) -> None:
        self._pieces = pieces
        self._markers = markers
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        added = self._pieces.added.get(token)
        if added is not None and added.special and added.content not in self._markers:
            return ""
        return self._decoder.decode(self._pieces.raw(token))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)

"""The vocabulary as llguidance reads it: the bytes of each token, with special tokens apart from text.

llguidance's own reader of tokenizer files encodes forced text with the special tokens that the text spells, and then
refuses what its mask allowed: a schema with the constant "<think>" would end in an error.
"""

from typing import TYPE_CHECKING, Final

from pippin.engines.language.text.tokenizer import Literals, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


SLICES: Final = (r'[^"\\\x00-\x1F\x7F]{1,10}', r'[^"\\\x00-\x1F\x7F]{1,30}')
"""Tokens whose masks are known ahead: text in JSON's strings, so long at most. llguidance's other two kinds for JSON
make no mask faster, and take a third more time and half as much more memory."""


def open_tokens(tokenizer: Tokenizer) -> "LLTokenizer":
    """llguidance's view of a tokenizer. For 50,000 tokens this takes 0.17 s; other threads stand still for 0.07 s of
    it, for which llguidance keeps the GIL."""
    from llguidance import LLTokenizer

    asked, ends = _Asked(tokenizer), sorted(tokenizer.eos) or [0]
    found = LLTokenizer(asked, n_vocab=tokenizer.size, eos_token=ends, slices=list(SLICES))
    asked.tokens = []  # llguidance has a copy
    return found


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """The special tokens, and the added tokens in angle brackets, which mark tool calls and reasoning. Free text of a
    grammar never matches them."""
    return [
        token
        for token, added in tokenizer.pieces.added.items()
        if added.special or (added.content.startswith("<") and added.content.endswith(">"))
    ]


class _Asked:
    """A tokenizer with what llguidance asks of its own `TokenizerWrapper`."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos, default=0)
        self.special_token_ids = special_tokens(tokenizer)
        self.tokens = [tokenizer.pieces.spell(token) or b"" for token in range(tokenizer.size)]
        special = (str(tokenizer.pieces.added[token].content) for token in self.special_token_ids)
        self._literals = Literals(tokenizer.backend, "\0".join(special))

    def __call__(self, text: str) -> list[int]:
        return self._literals.encode(self._literals.shield(text))

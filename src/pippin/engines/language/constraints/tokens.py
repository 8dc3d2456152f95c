"""The vocabulary as llguidance reads it: the bytes of each token, with special tokens apart from text.

llguidance's own reader of tokenizer files encodes forced text with the special tokens that the text spells, and then
refuses what its mask allowed: a schema with the constant "<think>" would end in an error.
"""

from typing import TYPE_CHECKING

from pippin.engines.language.text.tokenizer import Literals, Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


def open_tokens(tokenizer: Tokenizer) -> "LLTokenizer":
    """llguidance's view of a tokenizer. Making it takes about a second for 50,000 tokens."""
    from llguidance import LLTokenizer, TokenizerWrapper

    return LLTokenizer(
        TokenizerWrapper(_WrappedTokenizer(tokenizer)),
        n_vocab=tokenizer.size,
        eos_token=sorted(tokenizer.eos) or [0],
        slices=LLTokenizer.json_slices(),
    )


def special_tokens(tokenizer: Tokenizer) -> list[int]:
    """The special tokens, and the added tokens in angle brackets, which mark tool calls and reasoning. Free text of a
    grammar never matches them."""
    return [
        token
        for token, added in tokenizer.pieces.added.items()
        if added.special or (added.content.startswith("<") and added.content.endswith(">"))
    ]


class _WrappedTokenizer:
    """The tokenizer interface that llguidance's `TokenizerWrapper` reads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos, default=0)
        self.bos_token_id = None
        self.special_token_ids = special_tokens(tokenizer)
        self.tokens = [tokenizer.raw(token) for token in range(tokenizer.size)]
        special = (str(tokenizer.pieces.added[token].content) for token in self.special_token_ids)
        self._literals = Literals(tokenizer.backend, "\0".join(special))

    def __call__(self, text: str) -> list[int]:
        # The wrapper calls with bytes to learn whether they are taken.
        if not isinstance(text, str):
            raise TypeError("this tokenizer reads text")
        return self._literals.encode(self._literals.shield(text))

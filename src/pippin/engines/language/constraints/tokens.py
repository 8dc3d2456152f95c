"""The tokenizer as grammars see it: bytes of each token, special ones apart, and text that is never a special token.

llguidance's own reading of a tokenizer file tokenizes forced text with the special tokens in it, and then refuses what
its mask allowed: a schema with the constant "<think>" would end in an error.
"""

from llguidance import LLTokenizer, TokenizerWrapper

from pippin.engines.language.text.literals import NAME, encode_text, renamed_twin
from pippin.engines.language.text.tokenizer import Tokenizer


def special_id(tokenizer: Tokenizer, text: str) -> int | None:
    """The token that grammars name instead of `text`, if it is one: free text can't hold it then."""
    token = tokenizer.single(text)
    return token if token is not None and token in _special(tokenizer) else None


def open_tokens(tokenizer: Tokenizer) -> LLTokenizer:
    """Takes about a second for 50k tokens."""
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(tokenizer)),
        n_vocab=tokenizer.size,
        eos_token=sorted(tokenizer.eos) or [0],
        slices=LLTokenizer.json_slices(),
    )


def _special(tokenizer: Tokenizer) -> list[int]:
    """Special tokens, and added ones in angle brackets: markers of calls and of reasoning."""
    return [
        token
        for token, added in tokenizer.pieces.added.items()
        if added.special or (added.content.startswith("<") and added.content.endswith(">"))
    ]


class _Vocabulary:
    """What `TokenizerWrapper` asks for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eos, default=0)
        self.bos_token_id = None
        self.special_token_ids = _special(tokenizer)
        self.tokens = [tokenizer.raw(token) for token in range(tokenizer.size)]
        added = tokenizer.pieces.added
        names = {str(added[token].content): f"{NAME}{token}{NAME}" for token in self.special_token_ids}
        self._twin = renamed_twin(tokenizer.backend, names)

    def __call__(self, text: str) -> list[int]:
        if not isinstance(text, str):  # how the wrapper asks whether bytes will do
            raise TypeError("this tokenizer reads text")
        return encode_text(self._twin, text)

"""The model's tokenizer: text to tokens and back, and what its special tokens are."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from transformers import AutoTokenizer

from pippin.engines.language.detokenizer import Detokenizer, Pieces


class Tokenizer:
    """Safe for use from several threads at once, but for what `detokenizer()` gives, which is one stream's own."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos: frozenset[int] = frozenset(),
        vocab_size: int | None = None,
    ) -> None:
        self.backend = backend
        self.eos = eos
        self.size = max(backend.get_vocab_size(with_added_tokens=True), vocab_size or 0)
        """Rows of the model's logits, where the model's own configuration says more than the tokenizer."""
        self.pieces = Pieces(backend)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        wrapped = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = json.loads((folder / "config.json").read_text())
        eos = config.get("eos_token_id")
        ends = {wrapped.eos_token_id} | set(eos if isinstance(eos, list) else [eos])
        return cls(
            wrapped.backend_tokenizer,
            eos=frozenset(end for end in ends if end is not None),
            vocab_size=config.get("vocab_size"),
        )

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self.backend.decode(list(tokens), skip_special_tokens=False)
        return text

    def raw(self, token: int) -> bytes:
        """The token's bytes, which may be a part of a character."""
        return self.pieces.raw(token)

    def detokenizer(
        self, markers: frozenset[str] = frozenset(), *, strip_first_space: bool = False
    ) -> Detokenizer:
        """A new stream. Special tokens are dropped, but for `markers`."""
        return Detokenizer(self.pieces, markers)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        added = self.backend.get_added_tokens_decoder()
        return frozenset(id for id, token in added.items() if token.special)

"""The model's tokenizer: text to tokens and back, and what its special tokens are."""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.engines.language.template.template import named_templates
from pippin.engines.language.text.detokenizer import Detokenizer, Pieces
from pippin.engines.language.text.length import check_length
from pippin.engines.language.text.literals import Literals


class Tokenizer:
    """Safe for use from several threads at once, but for what `detokenizer()` gives, which is one stream's own."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos: frozenset[int] = frozenset(),
        bos: int | None = None,
        vocab_size: int | None = None,
        special_names: dict[str, str] | None = None,
        chat_templates: dict[str, str] | None = None,
        marker_text: str = "",
    ) -> None:
        """`vocab_size` is the model's own count, which may be above the tokenizer's. `special_names` are what templates
        know tokens by: `bos_token`, `eos_token` and so on. `marker_text` is as in `Literals`."""
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.eos = eos
        self.bos = bos
        self.size = max(backend.get_vocab_size(with_added_tokens=True), vocab_size or 0)
        self.special_names = special_names or {}
        self.chat_templates = chat_templates or {}
        self.literals = Literals(backend, marker_text)
        self.pieces = Pieces(backend)
        self.tokens_holding = lru_cache(maxsize=16)(self._tokens_holding)
        self._shown = lru_cache(maxsize=16)(self._find_shown)

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False) -> "Tokenizer":
        """Raises `ServerError` for a folder whose tokenizer can't be read."""
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        try:
            wrapped: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
            backend = wrapped.backend_tokenizer
        except Exception as error:  # the library raises bare Exception too
            raise ServerError(
                "load_failed",
                f"The tokenizer in {folder.name!r} can't be read ({type(error).__name__}: {_first_line(error)}). Is "
                "the folder complete? A tokenizer that is Python code needs --trust-remote-code.",
            ) from error
        config, generation = _read(folder / "config.json"), _read(folder / "generation_config.json")
        text_config = config.get("text_config") or {}
        ends = (wrapped.eos_token_id, generation.get("eos_token_id"), config.get("eos_token_id"))
        return cls(
            backend,
            eos=_ids((*ends, text_config.get("eos_token_id"))),
            bos=wrapped.bos_token_id,
            vocab_size=config.get("vocab_size") or text_config.get("vocab_size"),
            special_names={
                name: text for name, text in wrapped.special_tokens_map.items() if isinstance(text, str)
            },
            chat_templates=dict(named_templates(wrapped.chat_template)),
        )

    def encode(self, text: str, *, add_special_tokens: bool = False, most: int | None = None) -> list[int]:
        """Special tokens that `text` spells are read as such. Raises `TooLong` for a long text of more than `most`."""
        check_length(self.backend, text, most)
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """All of the text, special tokens too."""
        text: str = self.backend.decode(list(tokens), skip_special_tokens=False)
        return text

    def raw(self, token: int) -> bytes:
        """The token's bytes, which may be a part of a character."""
        return self.pieces.raw(token)

    def detokenizer(self, markers: Iterable[str] = (), *, strip_first_space: bool = False) -> Detokenizer:
        """A new stream. Special tokens are dropped, but for those that are in `markers`. `strip_first_space` is for
        an answer of its own, as against text that goes on from a prompt."""
        return Detokenizer(self.pieces, self._shown(frozenset(markers)), strip_first_space=strip_first_space)

    def single(self, text: str) -> int | None:
        """The token that `text` is by itself where it is an added one."""
        return self._added_ids.get(text)

    def with_markers(self, text: str) -> "Tokenizer":
        """The same, with `text` as in `Literals`."""
        return Tokenizer(
            self.backend,
            eos=self.eos,
            bos=self.bos,
            vocab_size=self.size,
            special_names=self.special_names,
            chat_templates=self.chat_templates,
            marker_text=text,
        )

    @cached_property
    def line_ends(self) -> tuple[int, ...]:
        return tuple(token for token in range(self.size) if self.raw(token) == b"\n")

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {str(added.content): token for token, added in self.pieces.added.items()}

    def _find_shown(self, markers: frozenset[str]) -> frozenset[int]:
        """Added tokens that markers are made of: a marker may be several of them, with text between."""
        return frozenset(
            token for text, token in self._added_ids.items() if any(text in marker for marker in markers)
        )

    def _tokens_holding(self, texts: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which tokens [size] hold any of `texts`."""
        wanted = [text.encode() for text in texts]
        return np.array(
            [any(text in self.raw(token) for text in wanted) for token in range(self.size)], np.bool_
        )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ServerError(
            "load_failed", f"{path.name} of this model is not readable JSON: {error}."
        ) from error
    return found if isinstance(found, dict) else {}


def _ids(found: Iterable[int | list[int] | None]) -> frozenset[int]:
    flat = [number for entry in found for number in (entry if isinstance(entry, list) else [entry])]
    return frozenset(number for number in flat if isinstance(number, int))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:300]

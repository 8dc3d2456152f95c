"""The model's tokenizer: text to tokens and back, its special tokens and its chat templates."""

import codecs
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from pippin.core.errors import ServerError
from pippin.engines.language.text.length import check_length
from pippin.engines.language.text.literals import Literals

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


class Tokenizer:
    """Several threads may use one tokenizer at once; each stream has a detokenizer of its own."""

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
        """Wrap a tokenizer of the tokenizers library.

        `vocab_size` is the size of the model's logits, which may be above that of the tokenizer. `special_names` are
        the variables of chat templates for special tokens: `bos_token`, `eos_token` and so on. `marker_text` is the
        `template_text` of `Literals`.
        """
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
        """Read the tokenizer of a model folder. Raises `ServerError("load_failed")` for one that can't be read."""
        from transformers import AutoTokenizer, PreTrainedTokenizerBase

        try:
            wrapped: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=trust_remote_code, local_files_only=True
            )
            backend = wrapped.backend_tokenizer
        except Exception as error:
            # tokenizers raises bare `Exception` for a file that it can't read.
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
            chat_templates=_named_templates(wrapped.chat_template),
        )

    def encode(self, text: str, *, add_special_tokens: bool = False, most: int | None = None) -> list[int]:
        """The tokens of a text; special tokens that it spells are encoded as such.

        Raises `TooLong` for a long text of more than `most` tokens.
        """
        check_length(self.backend, text, most)
        ids: list[int] = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of these tokens, with special tokens spelled out."""
        text: str = self.backend.decode(list(tokens), skip_special_tokens=False)
        return text

    def check(self, tokens: Iterable[int], field: str) -> None:
        """Raises `ServerError` naming the field for ids of no token."""
        for token in tokens:
            if not 0 <= token < self.size:
                raise ServerError(
                    "invalid_request",
                    f"'{field}' holds the token {token}; this model's go from 0 to {self.size - 1}.",
                    field,
                )

    def raw(self, token: int) -> bytes:
        """The bytes of a token, which may be a part of a character."""
        return self.pieces.raw(token)

    def detokenizer(self, markers: Iterable[str] = (), *, strip_first_space: bool = False) -> Detokenizer:
        """A detokenizer for a new stream, which drops special tokens other than those in `markers`.

        With `strip_first_space` an answer loses the leading space that many decoders strip from a text; text that
        goes on from a prompt keeps it.
        """
        return Detokenizer(self.pieces, self._shown(frozenset(markers)), strip_first_space=strip_first_space)

    def single(self, text: str) -> int | None:
        """The id of the added token that is spelled `text`, or None."""
        return self._added_ids.get(text)

    def with_markers(self, text: str) -> "Tokenizer":
        """The same tokenizer with `text` as the `template_text` of its `Literals`."""
        return Tokenizer(
            self.backend,
            eos=self.eos,
            bos=self.bos,
            vocab_size=self.size,
            special_names=self.special_names,
            chat_templates=self.chat_templates,
            marker_text=text,
        )

    def added_in(self, markers: Iterable[str]) -> frozenset[str]:
        """The texts of the added tokens that these markers are written with."""
        return frozenset(str(self.pieces.added[token].content) for token in self._shown(frozenset(markers)))

    @cached_property
    def line_ends(self) -> tuple[int, ...]:
        """The tokens that are a line feed and nothing else."""
        return tuple(token for token in range(self.size) if self.raw(token) == b"\n")

    @cached_property
    def _added_ids(self) -> dict[str, int]:
        return {str(added.content): token for token, added in self.pieces.added.items()}

    def _find_shown(self, markers: frozenset[str]) -> frozenset[int]:
        """The added tokens that occur in markers, of which one may be several tokens with text between them."""
        return frozenset(
            token for text, token in self._added_ids.items() if any(text in marker for marker in markers)
        )

    def _tokens_holding(self, texts: tuple[str, ...]) -> NDArray[np.bool_]:
        """Which tokens contain any of `texts`, a mask [vocabulary]."""
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


def _named_templates(found: str | dict[str, str] | None) -> dict[str, str]:
    """The chat templates of a folder by name; a single one is called `default`."""
    match found:
        case str():
            return {"default": found}
        case dict():
            return dict(found)
        case None:
            return {}

"""Tokenizers that checkpoints hold as Python code only, built from their vocabularies without that code."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, decoders, models

from pippin.core.published import object_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAMO_VOCABULARY = "tokenizer.jsonl"

NEVER = -1e5
"""The score of byte pieces, so low that only characters without a piece of their own are cut into bytes."""


def open_fast_form(folder: Path) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of a folder whose own code is not needed to read it; None for any other folder.

    Raises `OSError`, `ValueError` or `KeyError` for files that can't be read.
    """
    if (folder / PLAMO_VOCABULARY).exists():
        return _plamo(folder)
    # Its tokenizer in Python is the SentencePiece model `tokenizer.model` and nothing else.
    if object_in(folder / "config.json").get("model_type") == "ernie4_5_moe_vl":
        from transformers import PreTrainedTokenizerFast

        opened: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        return opened
    return None


def _plamo(folder: Path) -> "PreTrainedTokenizerBase":
    """PLaMo 2's tokenizer: cuts a text into the pieces with the greatest sum of scores, and a character without a piece
    into bytes. A line of the vocabulary is `[piece, score, kind, ...]`."""
    from transformers import PreTrainedTokenizerFast

    config = object_in(folder / "tokenizer_config.json")
    names: dict[str, str] = {
        "unk_token": "<|plamo:unk|>",
        "bos_token": "<|plamo:bos|>",
        "eos_token": "<|plamo:bos|>",
        "pad_token": "<|plamo:pad|>",
    }
    names |= {name: _content(config[name]) for name in names if config.get(name)}
    lines = (folder / PLAMO_VOCABULARY).read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line]
    pieces = [(str(row[0]), NEVER if row[2:3] == ["BYTE"] else float(row[1])) for row in rows]
    known = {piece for piece, _ in pieces}
    ids = {piece: id_ for id_, (piece, _) in enumerate(pieces)}
    backend = Tokenizer(models.Unigram(pieces, unk_id=ids[names["unk_token"]], byte_fallback=True))
    spaces: Any = decoders.Replace(" ", " ")  # marks spaces as plain, not "▁" as in SentencePiece
    backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse()])
    listed = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    added = [token for token in (config.get("added_tokens_decoder") or {}).values() if token.get("special")]
    special = [*names.values(), *map(_content, listed), *map(_content, added)]
    backend.add_special_tokens([token for token in dict.fromkeys(special) if token in known])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=config.get("chat_template"),
        **{name: token for name, token in names.items() if token in known},
    )


def _content(token: Any) -> str:
    """The text of a special token, which is a string or an object."""
    return str(token["content"] if isinstance(token, dict) else token)

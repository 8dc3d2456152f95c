"""Tokenizers that checkpoints hold as Python code or as models of SentencePiece only, built from their vocabularies."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from pippin.core.published import object_in

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAMO_VOCABULARY = "tokenizer.jsonl"
SENTENCEPIECE = "tokenizer.model"
SPACE = "▁"  # SentencePiece's substitute for a space
OF_BPE = 2
"""What SentencePiece calls the type of a model that merges pairs."""

NEVER = -1e5
"""The score of byte pieces, so low that only characters without a piece of their own are cut into bytes."""


def as_sentencepiece(folder: Path, made: str) -> str:
    """The tokenizer that transformers `made` of a folder's SentencePiece model, cutting texts as that model does.
    transformers 5 merges by ids, where runs of blanks have later scores, and its blank before a text goes by the class.
    Other files of that name stay as they were read."""
    stored = (folder / SENTENCEPIECE).read_bytes()
    if not stored.startswith(b"\n"):  # the field of pieces; tiktoken's files begin with a word
        return made
    from sentencepiece import sentencepiece_model_pb2

    # Written at run time.
    messages: Any = sentencepiece_model_pb2
    model = messages.ModelProto.FromString(stored)
    document, rules = json.loads(made), model.normalizer_spec
    if model.trainer_spec.model_type != OF_BPE or document["model"]["type"] != "BPE":
        return made
    scores = {piece.piece: piece.score for piece in model.pieces}
    document["model"]["merges"].sort(key=lambda pair: -scores["".join(pair)])
    config = object_in(folder / "tokenizer_config.json")
    if config.get("legacy") is False:
        return json.dumps(document)
    before: list[Any]  # untyped in tokenizers, as is `found`
    cuts = (document["pre_tokenizer"] or {}).get("pretokenizers", ())
    # Since 5.24 transformers cuts out pieces that the model never merges.
    whole = [cut for cut in cuts if cut["type"] == "Split"]
    way = {"type": "Sequence", "pretokenizers": whole} if whole else None
    found: Any = Tokenizer.from_str(json.dumps({**document, "pre_tokenizer": way}))
    prefixed = config.get("add_prefix_space", rules.add_dummy_prefix)
    before, after = ([normalizers.Prepend(SPACE)], [decoders.Strip(" ", 1, 0)]) if prefixed else ([], [])
    if rules.remove_extra_whitespaces:
        before = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip(), *before]
    if rules.precompiled_charsmap:
        before.insert(0, normalizers.Precompiled(rules.precompiled_charsmap))
    found.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", SPACE)])
    found.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    )
    return str(found.to_str())


def open_plamo(folder: Path) -> "PreTrainedTokenizerBase":
    """PLaMo 2's tokenizer without its own code. It cuts a text into the pieces with the greatest sum of scores, and a
    character without a piece into bytes. A line of the vocabulary is `[piece, score, kind, ...]`.

    Raises `OSError`, `ValueError` or `KeyError` for files that can't be read.
    """
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

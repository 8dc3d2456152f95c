"""Tokenizers that checkpoints hold as Python code or as models of SentencePiece only, built from their vocabularies."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from pippin.core.published import object_in, table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAMO_VOCABULARY = "tokenizer.jsonl"
KIMI_VOCABULARY = "tiktoken.model"
KIMI_RESERVED = 256
"""Ids behind the vocabulary, of which tokenizer_config.json names some."""

_ANY, _CONTRACTION = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_UPPER, _LOWER = rf"[\p{{Lu}}\p{{Lt}}{_ANY}", rf"[\p{{Ll}}{_ANY}"
KIMI_WORDS = (
    rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*){_CONTRACTION}|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Kimi's texts are cut: as GPT-4o's, with runs of Han apart."""
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


def open_kimi(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of Kimi's and Moonlight's models without its own code. A line of the vocabulary is a word in
    base64 and its rank. Raises `OSError` or `ValueError` for files that can't be read."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    rows = (line.split() for line in (folder / KIMI_VOCABULARY).read_text("ascii").splitlines())
    ranks = {base64.b64decode(word): int(rank) for word, rank in rows}
    converter: Any = TikTokenConverter(pattern=KIMI_WORDS)
    converter.load_tiktoken_bpe = lambda _: ranks  # its own needs the package
    backend, config = converter.converted(), object_in(folder / "tokenizer_config.json")
    named = table(config.pop("added_tokens_decoder", None))
    for id_ in range(len(ranks), len(ranks) + KIMI_RESERVED):
        unnamed: dict[str, Any] = {"content": f"<|reserved_token_{id_}|>", "special": True}
        backend.add_tokens([AddedToken(**unnamed | table(named.get(str(id_))))])
    return PreTrainedTokenizerFast(tokenizer_object=backend, **config)


def open_known(folder: Path) -> "PreTrainedTokenizerBase | None":
    """The tokenizer of a folder in one of these forms; None for any other."""
    if (folder / PLAMO_VOCABULARY).exists():
        return open_plamo(folder)
    named = object_in(folder / "tokenizer_config.json").get("tokenizer_class") == "TikTokenTokenizer"
    kimi = named and (folder / KIMI_VOCABULARY).exists() and not (folder / "tokenizer.json").exists()
    return open_kimi(folder) if kimi else None


def _content(token: Any) -> str:
    """The text of a special token, which is a string or an object."""
    return str(token["content"] if isinstance(token, dict) else token)

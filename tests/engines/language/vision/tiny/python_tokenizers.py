"""Tiny tokenizers in the formats of checkpoints whose tokenizer is Python code: SentencePiece's and PLaMo's."""

import io
import json
import string
from pathlib import Path

import sentencepiece

ERNIE_MARKS = (
    *("<|begin_of_sentence|>", "<|end_of_sentence|>", "<mask:1>", "<mask:7>"),
    *("<|IMAGE_START|>", "<|IMAGE_END|>", "<|VIDEO_START|>", "<|VIDEO_END|>"),
    *("<|IMAGE_PLACEHOLDER|>", "<|image@placeholder|>"),
)
PLAMO_MARKS = (
    *("<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:pad|>"),
    *("<plamo:image>", "<siglip2:img>", "</siglip2:img>"),
)
WORDS = ("the ", "picture", "What", "No ", "is", "it", "ure", "pic", "日本", "語")


def write_sentencepiece(folder: Path) -> dict[str, int]:
    """Write `tokenizer.model` and the configuration of ERNIE's tokenizer. Gives the ids of its markers."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["user: What is it? assistant: No picture."] * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        user_defined_symbols=list(ERNIE_MARKS),
        add_dummy_prefix=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    settings = {
        "tokenizer_class": "Ernie4_5_VLTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_ernie4_5_vl.Ernie4_5_VLTokenizer", None]},
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return {processor.id_to_piece(id_): id_ for id_ in range(processor.vocab_size())}


def write_plamo(folder: Path) -> dict[str, int]:
    """Write `tokenizer.jsonl` and the configuration of PLaMo 2's tokenizer. Gives the ids of its pieces."""
    rows: list[tuple[str, float, str]] = [(mark, 0.0, "CONTROL") for mark in PLAMO_MARKS]
    rows += [(f"<0x{byte:02X}>", 0.0, "BYTE") for byte in range(256)]
    letters = string.printable[:95] + "\n日本語"
    rows += [(piece, -3.0 - 0.37 * index, "NORMAL") for index, piece in enumerate((*WORDS, *letters))]
    lines = (json.dumps(row, ensure_ascii=False) for row in rows)
    (folder / "tokenizer.jsonl").write_text("\n".join(lines), "utf-8")
    settings = {
        "tokenizer_class": "Plamo2Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_plamo.Plamo2Tokenizer", None]},
        "additional_special_tokens": list(PLAMO_MARKS[3:]),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return {piece: id_ for id_, (piece, _, _) in enumerate(rows)}

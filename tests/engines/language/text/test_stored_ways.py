"""A text is cut as tokenizer.json says, whatever class tokenizer_config.json names, by which transformers 5 goes."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from pippin.engines.language.text.tokenizer import Tokenizer

TEXTS = ("Hello world 12345  x\n\ndef f():\n    return 1", " lead", "l'été", "It's 2024", "\t\tx\r\n")
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(*first: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    # Untyped in tokenizers.
    last: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not first)
    made.pre_tokenizer = pre_tokenizers.Sequence([*first, last]) if first else last  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return trained(made, trainers.BpeTrainer(vocab_size=400, initial_alphabet=ALPHABET, show_progress=False))


def trained(made: tokenizers.Tokenizer, trainer: Any) -> tokenizers.Tokenizer:
    made.train_from_iterator(TEXTS * 3, trainer)
    made.add_special_tokens(["<s>", "</s>"])
    return made


def words_of_three_digits() -> tokenizers.Tokenizer:
    return byte_level(pre_tokenizers.Split(Regex(r"\p{N}{1,3}|\s*[\r\n]+| ?[^\s\p{N}]+|\s+"), "isolated"))


def without_a_first_space() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)  # type: ignore[assignment]
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])  # type: ignore[assignment]
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return trained(made, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        # As published models of Llama's architecture are cut by other rules than GPT-2.
        ("GPT2Tokenizer", words_of_three_digits),
        ("Qwen2Tokenizer", byte_level),
        ("GPTNeoXTokenizer", words_of_three_digits),
        ("GemmaTokenizer", byte_level),
        ("LlamaTokenizerFast", without_a_first_space),
        ("MistralCommonBackend", words_of_three_digits),
    ],
)
def test_a_text_is_cut_as_its_file_says(kind: str, make: Any, tmp_path: Path) -> None:
    stored = make()
    stored.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    settings = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = Tokenizer.load(tmp_path)
    for text in TEXTS:
        ids = stored.encode(text, add_special_tokens=False).ids
        assert read.encode(text) == ids
        assert read.decode(ids) == stored.decode(ids)


def test_a_space_that_is_asked_for_begins_a_text(tmp_path: Path) -> None:
    stored = byte_level()
    stored.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    read = Tokenizer.load(tmp_path)
    assert read.encode("Hello") == stored.encode(" Hello").ids


@pytest.mark.parametrize("kind", ["LlamaTokenizerFast", "TokenizersBackend"])
@pytest.mark.parametrize(
    ("settings", "version", "words"),
    [
        ({}, None, ["camelCase"]),
        ({"fix_mistral_regex": False}, None, ["camelCase"]),
        ({"fix_mistral_regex": True}, None, ["camel", "Case"]),
        ({"fix_mistral_regex": True}, "4.57.1", ["camel", "Case"]),
        # What transformers 5 has saved it does not mend again.
        ({"fix_mistral_regex": True}, "5.0.0", ["camelCase"]),
    ],
)
def test_words_of_mistrals_models_are_cut_anew_where_the_folder_asks_for_it(
    kind: str, settings: dict[str, bool], version: str | None, words: list[str], tmp_path: Path
) -> None:
    made = byte_level(pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated"))
    stored = json.loads(made.to_str())
    # transformers mends no vocabulary of up to 100,000 tokens.
    ids = stored["model"]["vocab"]
    ids |= {f"unused {place}": len(ids) + place for place in range(100_001 - len(ids))}
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "mistral", "transformers_version": version})
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **settings}))
    cut: Any = Tokenizer.load(tmp_path).backend.pre_tokenizer
    assert [word for word, _ in cut.pre_tokenize_str("camelCase")] == words


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("kind", [None, "LlamaTokenizer"])
def test_a_model_of_sentencepiece_alone_cuts_as_sentencepiece_does(
    kind: str | None, rule: str, prefixed: bool, tmp_path: Path
) -> None:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3),
        model_writer=written,
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name=rule,
        add_dummy_prefix=prefixed,
        remove_extra_whitespaces=rule != "identity",
        minloglevel=2,
    )
    made: Any = sentencepiece_model_pb2.ModelProto.FromString(written.getvalue())
    # Llama's and Mistral's have runs of blanks behind the bytes, with the last scores.
    blank = type(made.pieces[0])(piece="▁▁", score=-1e9)
    made.pieces.insert(259, blank)
    (tmp_path / "tokenizer.model").write_bytes(made.SerializeToString())
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings |= {"tokenizer_class": kind} if kind else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    reference: Any = sentencepiece.SentencePieceProcessor(model_proto=made.SerializeToString())
    read = Tokenizer.load(tmp_path)
    for text in (*TEXTS, "  two  three   x", "ﬁt ", " ", "x\n   return"):
        assert read.encode(text) == reference.encode(text), text
        assert read.decode(reference.encode(text)) == reference.decode(reference.encode(text))

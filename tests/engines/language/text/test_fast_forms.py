"""Tokenizers that checkpoints hold as Python code: read from their vocabularies, they give the tokens of that code."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from pippin.core.errors import ServerError
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.vision.tiny.python_tokenizers import write_plamo, write_sentencepiece

ALPHABET = "acehipt.,?<>0x4 \n日本語kéß😀あ"


def texts(*marks: str) -> list[str]:
    """Texts of letters with and without pieces of their own, with markers. No letter is repeated: where two ways to
    cut a text have the same score, the libraries choose differently."""
    chance = random.Random(1)
    drawn = ["".join(chance.sample(ALPHABET, chance.randint(0, len(ALPHABET)))) for _ in range(200)]
    words = ["What is it?", "  the picture\n", "日本語", "No picture.", "", " "]
    return [*drawn, *words, *(f"a{mark}b {mark}" for mark in marks)]


def theirs(name: str, folder: Path) -> Any:
    module = pytest.importorskip(f"mlx_vlm.models.{name}")
    assert module is not None
    if name == "plamo2vl":
        from mlx_vlm.models.plamo2vl.processing import Plamo2Tokenizer

        return Plamo2Tokenizer.from_pretrained(folder)
    from mlx_vlm.models.ernie4_5_moe_vl.processing_ernie4_5_moe_vl import Ernie4_5_VLTokenizer

    return Ernie4_5_VLTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "write", "mark"),
    [
        ("plamo2vl", write_plamo, "<plamo:image>"),
        ("ernie4_5_moe_vl", write_sentencepiece, "<|IMAGE_START|>"),
    ],
)
def test_tokens_are_those_of_the_tokenizer_in_python(
    name: str, write: Any, mark: str, tmp_path: Path
) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
    ours, expected = Tokenizer.load(tmp_path), theirs(name, tmp_path)
    assert ours.eos == {expected.eos_token_id}
    for text in texts(mark):
        tokens = ours.encode(text)
        assert tokens == expected.encode(text, add_special_tokens=False), text
        stream = ours.detokenizer([mark])
        assert "".join(map(stream.add, tokens)) + stream.finish() == text


def test_a_vocabulary_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.jsonl").write_text("no json")
    with pytest.raises(ServerError, match="can't be read") as caught:
        Tokenizer.load(tmp_path)
    assert caught.value.report.kind == "load_failed"


def test_kimis_ranks_are_read_without_its_code(tmp_path: Path) -> None:
    """As tiktoken reads them: words are joined by rank, runs of Han are words of their own, and so are markers."""
    words = [bytes((byte,)) for byte in range(256)]
    words += [
        b"he",
        b"ll",
        b"hell",
        b"hello",
        "日".encode(),
        "本".encode(),
        "日本".encode(),
        b"12",
        b"123",
        b"'s",
    ]
    lines = (b"%s %d" % (base64.b64encode(word), rank) for rank, word in enumerate(words))
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(lines))
    first = len(words)
    named = {"content": "<|im_end|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    settings = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "added_tokens_decoder": {str(first + 2): named},
        "eos_token": "<|im_end|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k2", "vocab_size": first + 256}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos == {first + 2}
    for text, wanted in (
        ("hello's", [words.index(b"hello"), words.index(b"'s")]),
        ("日本a", [words.index("日本".encode()), ord("a")]),
        ("1234", [words.index(b"123"), ord("4")]),
        ("<|im_end|>", [first + 2]),
        (f"<|reserved_token_{first + 255}|>", [first + 255]),
    ):
        assert tokenizer.encode(text) == wanted, text
        assert tokenizer.decode(wanted) == text

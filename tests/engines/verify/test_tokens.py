"""The tokens of this server against those of the publisher's tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Tokenizers
from tokenizers import processors
from transformers import AutoTokenizer

from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify import tokens
from pippin.engines.verify.folder import Folder
from tests.engines.verify.folders import edit, write, write_sound

TEXT = "Two  words"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    return write_sound(tmp_path / "model")


def swap_letters(folder: Path) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    letters = stored["model"]["vocab"]
    letters["a"], letters["e"] = letters["e"], letters["a"]
    write(folder, "tokenizer.json", stored)


def spoil(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("[1, 2")


@pytest.mark.parametrize(
    ("change", "code"), [(swap_letters, "tokens-differ"), (spoil, "publisher-unread"), (lambda _: None, None)]
)
def test_what_the_publishers_tokenizer_makes_of_texts_is_compared(
    sound: Path, change: Callable[[Path], object], code: str | None
) -> None:
    own = Tokenizer.load(sound)
    change(sound)
    found = [each.code for each in tokens.check(Folder.read(sound), own, "embeddings")]
    assert [each for each in found if each in ("tokens-differ", "publisher-unread")] == [code] * (
        code is not None
    )


def test_a_class_that_transformers_cuts_texts_by_does_not_count_before_the_file(sound: Path) -> None:
    stored = json.loads((sound / "tokenizer.json").read_text())
    stored["model"]["vocab"]["oĠ"] = len(stored["model"]["vocab"]) + len(stored["added_tokens"])
    stored["model"]["merges"] = [["o", "Ġ"]]  # across words, at which this class cuts
    write(sound, "tokenizer.json", stored)
    edit(sound, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    own = Tokenizer.load(sound)
    theirs = AutoTokenizer.from_pretrained(sound)(TEXT, add_special_tokens=False)["input_ids"]
    assert theirs != own.encode(TEXT)
    assert "tokens-differ" not in [each.code for each in tokens.check(Folder.read(sound), own, "language")]


def test_an_encoder_whose_texts_have_no_marks_around_them_is_found(sound: Path) -> None:
    edit(sound, "tokenizer_config.json", cls_token="<s>", sep_token="<|im_end|>")
    for single, lost in (
        ("<s> $A <|im_end|>", ""),
        ("<s> $A", "no <|im_end|> around"),
        ("$A", "no <s>, <|im_end|>"),
    ):
        ends = [("<s>", 256), ("<|im_end|>", 258)]
        around = processors.TemplateProcessing(single=single, special_tokens=ends)
        backend = Tokenizers.from_file(str(sound / "tokenizer.json"))
        backend.post_processor = around
        backend.save(str(sound / "tokenizer.json"))
        found = tokens.check(Folder.read(sound), Tokenizer.load(sound), "embeddings")
        told = [each.text for each in found if each.code == "marks-left-out"]
        assert len(told) == bool(lost)
        assert all(lost in text for text in told)

"""The tokens of this server against those of the publisher's tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
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

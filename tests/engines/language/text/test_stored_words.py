"""A tokenizer that is kept with its words apart is the same one when it is opened."""

import json
from collections.abc import Callable

import pytest
from msgspec import msgpack
from tokenizers import AddedToken

from pippin.engines.language.text.stored_words import StoredWords, opened, stored
from pippin.engines.language.text.tokenizer import Tokenizer
from tests.engines.language.text.small_tokenizer import byte_level, sentencepiece


@pytest.mark.parametrize("made", [byte_level, sentencepiece])
def test_words_and_merges_of_bpe_are_kept_apart(made: Callable[[], Tokenizer]) -> None:
    text = made().backend.to_str()
    kept = msgpack.decode(msgpack.encode(stored(text)), type=StoredWords)
    assert len(kept.words) == len(json.loads(text)["model"]["vocab"]) > 100
    assert json.loads(opened(kept).to_str()) == json.loads(text)


def test_a_tokenizer_whose_ids_have_gaps_is_kept_whole() -> None:
    document = json.loads(byte_level().backend.to_str())
    vocabulary = document["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary[last] += 1000
    kept = stored(json.dumps(document))
    assert kept.words == []
    assert opened(kept).token_to_id(last) == vocabulary[last]


def test_added_tokens_keep_what_they_are() -> None:
    made = byte_level().backend
    made.add_tokens([AddedToken("<tool>", single_word=True, lstrip=True, normalized=False)])
    made.add_special_tokens([AddedToken("<last>", rstrip=True)])
    kept = stored(made.to_str())
    assert kept.words
    assert opened(kept).to_str() == made.to_str()

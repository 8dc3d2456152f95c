"""A tokenizer as it is kept on the disk: the words and merges of BPE apart from the rest of its JSON, in which the
tokenizers library takes twice as long to read them (measured: 83 and 50 ms for 49,000 words)."""

import json
from array import array
from contextlib import suppress
from typing import Final

import tokenizers
from msgspec import Struct
from tokenizers import AddedToken, models

ID: Final = "I"  # of a word in `merges`, 4 bytes
APART: Final = ("type", "vocab", "merges")


class StoredWords(Struct, frozen=True):
    """Without `words`, all of it is in `rest`."""

    rest: str  # JSON of the tokenizers library
    words: list[str] = []  # in the order of their ids, which count from 0
    merges: bytes = b""  # the ids of all first words, then of all second ones


def stored(text: str) -> StoredWords:
    """`text` is JSON of the tokenizers library. Raises what that raises."""
    whole = tokenizers.Tokenizer.from_str(text).to_str()
    # What is not as it seems (ids with gaps, settings that are new) is kept as it is.
    with suppress(KeyError, ValueError, TypeError):
        document = json.loads(whole)
        model, ids = document["model"], document["model"]["vocab"]
        merges = array(ID, [ids[pair[side]] for side in (0, 1) for pair in model["merges"]])
        rest = json.dumps({**document, "model": {**model, "vocab": {}, "merges": []}})
        found = StoredWords(rest, sorted(ids, key=ids.__getitem__), merges.tobytes())
        if opened(found).to_str() == whole:
            return found
    return StoredWords(text)


def opened(kept: StoredWords) -> tokenizers.Tokenizer:
    if not kept.words:
        return tokenizers.Tokenizer.from_str(kept.rest)
    document = json.loads(kept.rest)
    added, model = document.pop("added_tokens"), document["model"]
    found = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    ids, word = memoryview(kept.merges).cast(ID), kept.words.__getitem__
    half = len(ids) // 2
    merges = list(zip(map(word, ids[:half]), map(word, ids[half:]), strict=True))
    settings = {name: value for name, value in model.items() if name not in APART and value is not None}
    found.model = models.BPE(dict(zip(kept.words, range(len(kept.words)), strict=True)), merges, **settings)
    for each in added:
        token = AddedToken(**{name: value for name, value in each.items() if name != "id"})
        (found.add_special_tokens if token.special else found.add_tokens)([token])
    return found


def without_dropout(backend: tokenizers.Tokenizer) -> None:
    """Have a tokenizer join all pieces of words: its `dropout` leaves some apart, by chance, in training."""
    if getattr(backend.model, "dropout", None):
        backend.model.dropout = None

"""A tokenizer as it is kept on the disk: the words and merges of BPE apart from the rest of its JSON, in which the
tokenizers library takes twice as long to read them (measured: 83 and 50 ms for 49,000 words)."""

import json
from array import array
from contextlib import suppress
from typing import Any, Final

import tokenizers
from msgspec import Struct
from tokenizers import AddedToken, models

ID: Final = "I"  # of a word in `merges`, 4 bytes
APART: Final = ("type", "vocab", "merges")


class StoredWords(Struct, frozen=True):
    """Without `words`, all of it is in `rest`."""

    rest: str  # JSON of the tokenizers library, whose added tokens and whose model's settings are kept apart
    added: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    words: list[str] = []  # in the order of their ids, which count from 0
    merges: bytes = b""  # the ids of all first words, then of all second ones


def stored(text: str) -> StoredWords:
    """`text` is JSON of the tokenizers library. Raises what that raises."""
    whole = tokenizers.Tokenizer.from_str(text).to_str()
    # What is not as it seems (ids with gaps, settings that are new) is kept as it is.
    with suppress(KeyError, ValueError, TypeError):
        found = _apart(json.loads(whole))
        if opened(found).to_str() == whole:
            return found
    return StoredWords(text)


def opened(kept: StoredWords) -> tokenizers.Tokenizer:
    found = tokenizers.Tokenizer.from_str(kept.rest)
    if kept.words:
        ids, word = memoryview(kept.merges).cast(ID), kept.words.__getitem__
        half = len(ids) // 2
        merges = list(zip(map(word, ids[:half]), map(word, ids[half:]), strict=True))
        found.model = models.BPE(
            dict(zip(kept.words, range(len(kept.words)), strict=True)), merges, **kept.settings
        )
        for each in kept.added:
            token = AddedToken(**each)
            (found.add_special_tokens if token.special else found.add_tokens)([token])
    return found


def _apart(document: dict[str, Any]) -> StoredWords:
    """Raises `KeyError` or `ValueError` for a model of another kind."""
    model, added = document["model"], document["added_tokens"]
    ids: dict[str, int] = model["vocab"]
    words = sorted(ids, key=ids.__getitem__)
    merges = [ids[pair[side]] for side in (0, 1) for pair in model["merges"]]
    return StoredWords(
        rest=json.dumps({**document, "added_tokens": [], "model": {**model, "vocab": {}, "merges": []}}),
        added=[{name: value for name, value in each.items() if name != "id"} for each in added],
        settings={name: value for name, value in model.items() if name not in APART and value is not None},
        words=words,
        merges=array(ID, merges).tobytes(),
    )

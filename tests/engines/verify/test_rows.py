"""Rows of an embedding and a head that are not those of the vocabulary's words."""

from itertools import islice, product
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from pippin.engines.language.text.tokenizer import Tokenizer
from pippin.engines.verify import weights
from pippin.engines.verify.folder import Folder
from tests.engines.verify.folders import edit, write

WORDS = ["".join(letters) for letters in islice(product("abcdefghij", repeat=4), 400)]
VOCABULARY = {word: place for place, word in enumerate(each for word in WORDS for each in (word, f"{word}s"))}
TOKENIZER = Tokenizer(Backend(models.WordLevel(VOCABULARY, "aaaa")))
RANDOM = np.random.default_rng(5)
TRAINED = np.repeat(RANDOM.normal(size=(400, 64)), 2, axis=0) + RANDOM.normal(size=(800, 64)) * 0.5
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def displaced(start: int) -> np.ndarray:
    return np.concatenate([TRAINED[:start], np.roll(TRAINED[start:], 1, 0)])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("embedding", "head", "told"),
    [
        (TRAINED, TRAINED, []),
        (displaced(400), TRAINED, [(EMBEDDING, 6)]),
        (TRAINED, displaced(600), [(HEAD, 3)]),
        (TRAINED, np.concatenate([TRAINED[:200], RANDOM.permutation(TRAINED[200:])]), [(HEAD, 9)]),
        (RANDOM.normal(size=TRAINED.shape), TRAINED, []),  # was never trained
        (TRAINED[:700], TRAINED, []),  # which other findings tell
    ],
)
def test_rows_are_found_that_are_not_their_words(
    embedding: np.ndarray, head: np.ndarray, told: list[tuple[str, int]], packed: bool, tmp_path: Path
) -> None:
    arrays = {
        name: mx.array(each.astype(np.float32)) for name, each in ((EMBEDDING, embedding), (HEAD, head))
    }
    if packed:
        for name in list(arrays):
            part = name.removesuffix("weight")
            parts = mx.quantize(arrays[name], group_size=32, bits=8)
            arrays |= dict(zip((name, f"{part}scales", f"{part}biases"), parts, strict=True))
    write(tmp_path, "config.json", {"quantization": {"bits": 8, "group_size": 32}} if packed else {})
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays)
    found = [*weights.check_rows(Folder.read(tmp_path), TOKENIZER)]
    if packed:
        edit(tmp_path, "config.json", quantization={"bits": 4, "group_size": 32})
        assert [
            *weights.check_rows(Folder.read(tmp_path), TOKENIZER)
        ] == []  # which is told as bits that do not fit
    said = [f"In {count} of 12 parts of the vocabulary the rows of {name} are not" for name, count in told]
    assert [each.text[: len(text)] for each, text in zip(found, said, strict=True)] == said

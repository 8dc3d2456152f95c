"""Batches of sequences across requests, over an encoder that is a plain function."""

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer

from pippin.core.errors import ServerError
from pippin.core.events import Accepted, Embedded
from pippin.engines.encoding import (
    BATCH_TOKENS,
    EncoderInput,
    EncodingEngine,
    EncodingJob,
    EncodingTokenizer,
    Floats,
)
from tests.engines.driving import run


class Sums:
    """Each row is the sum of its tokens; remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[EncoderInput]] = []

    def __call__(self, batch: list[EncoderInput]) -> Floats:
        self.batches.append(list(batch))
        return np.array([[sum(row.tokens)] for row in batch], dtype=np.float32)


def job(id: str, *rows: tuple[int, ...]) -> EncodingJob:
    def answer(found: Floats) -> Embedded:
        return Embedded(found.tobytes(), 1, 0)

    return EncodingJob(id, Accepted(0), tuple(EncoderInput(row) for row in rows), answer)


def values(event: object) -> list[float]:
    assert isinstance(event, Embedded)
    return [float(value) for value in np.frombuffer(event.vectors, "<f4")]


def test_rows_of_several_requests_share_a_batch_and_keep_their_order() -> None:
    sums = Sums()
    found = run(EncodingEngine(sums), job("a", (1, 2), (3, 4)), job("b", (5, 6)))
    assert (values(found["a"][0]), values(found["b"][0])) == ([3, 7], [11])
    assert len(sums.batches) == 1


def test_sequences_of_unlike_length_are_not_padded_to_each_other() -> None:
    sums = Sums()
    run(EncodingEngine(sums), job("a", (1,) * 10, (1,) * 400, (1,) * 11))
    assert sorted(len(batch) for batch in sums.batches) == [1, 2]


def test_a_cancelled_request_is_not_computed_and_says_nothing() -> None:
    sums = Sums()
    engine = EncodingEngine(sums)
    engine.submit(job("a", (1,)))
    engine.submit(job("b", (2,)))
    engine.cancel("a")
    engine.cancel("unknown")
    found = run(engine)
    assert list(found) == ["b"]
    assert [len(batch) for batch in sums.batches] == [1]


def test_the_oldest_row_is_always_in_the_next_batch() -> None:
    sums = Sums()
    engine = EncodingEngine(sums)
    engine.submit(job("long", (9,) * (BATCH_TOKENS + 1)))
    engine.submit(job("short", *[(1,)] * 6))
    engine.step()
    assert len(sums.batches[0][0].tokens) == BATCH_TOKENS + 1


@given(st.lists(st.lists(st.integers(1, 2400), min_size=1, max_size=8), min_size=1, max_size=8))
def test_every_row_is_computed_once_within_the_bounds(requests: list[list[int]]) -> None:
    sums = Sums()
    engine = EncodingEngine(sums)
    jobs = [
        job(str(number), *[(number,) * length for length in lengths])
        for number, lengths in enumerate(requests)
    ]
    found = run(engine, *jobs)
    for number, lengths in enumerate(requests):
        assert values(found[str(number)][0]) == [number * length for length in lengths]
    assert sum(len(batch) for batch in sums.batches) == sum(map(len, requests))
    for batch in sums.batches:
        longest = max(len(row.tokens) for row in batch)
        assert len(batch) == 1 or longest * len(batch) <= BATCH_TOKENS


def test_options_of_an_encoder_need_a_restart() -> None:
    with pytest.raises(Exception, match="restart"):
        EncodingEngine(Sums()).reconfigure({"dtype": "float16"})


def test_a_share_of_memory_is_no_news_to_an_engine_without_caches() -> None:
    EncodingEngine(Sums()).reconfigure({"memory_bytes": 1 << 30})


@pytest.mark.parametrize("end", ["</s>", {"content": "</s>", "lstrip": False}])
def test_a_text_ends_as_its_configuration_asks(end: object, tmp_path: Path) -> None:
    # As transformers reads e5-mistral and its kind, whose vector is that of the last token.
    words(tmp_path, "<s> $A")
    for asked, tokens in ((True, (2, 0, 1, 3)), (False, (2, 0, 1))):
        settings = {"add_eos_token": asked, "eos_token": end}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert EncodingTokenizer(tmp_path, 8).encode("a b").tokens == tokens


def words(folder: Path, single: str) -> None:
    """A tokenizer of words, which stand in a text as `single` says."""
    stored = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2, "</s>": 3}, unk_token="a"))
    stored.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    around = [("<s>", 2), ("</s>", 3)]
    stored.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=single, pair="<s> $A </s> $B </s>", special_tokens=around
    )
    stored.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("single", ["$A", "<s> $A"])
def test_a_text_begins_once_as_its_configuration_asks(single: str, tmp_path: Path) -> None:
    words(tmp_path, single)
    asked = {
        "add_bos_token": True,
        "bos_token": "<s>",
        "add_eos_token": True,
        "eos_token": {"content": "</s>"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(asked))
    assert EncodingTokenizer(tmp_path, 8).encode("a b").tokens == (2, 0, 1, 3)


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({}, (0, 1, 2)),
        ({"do_lower_case": True}, (0, 1, 2)),
        ({"do_lower_case": False}, (3, 4, 2)),
        ({"strip_accents": False}, (0, 5, 2)),
        ({"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}, (0, 1, 2)),
    ],
)
def test_words_are_cleaned_as_their_configuration_says(
    settings: dict[str, object], tokens: tuple[int, ...], tmp_path: Path
) -> None:
    known = {word: number for number, word in enumerate(("a", "e", "b", "A", "É", "é"))}
    stored = tokenizers.Tokenizer(models.WordPiece(known, unk_token="b"))
    stored.normalizer = normalizers.BertNormalizer(lowercase=True)  # type: ignore[assignment]
    stored.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # type: ignore[assignment]
    stored.save(str(tmp_path / "tokenizer.json"))
    said = {"tokenizer_class": "BertTokenizer", "unk_token": "b", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)("A É b", add_special_tokens=False)["input_ids"]
    assert EncodingTokenizer(tmp_path, 8).plain("A É b") == tokens == tuple(theirs)


@pytest.mark.parametrize(
    ("file", "words_beside"),
    [
        ("tokenizer_config.json", {"added_tokens_decoder": {"4": {"content": "ab", "special": False}}}),
        ("added_tokens.json", {"ab": 4}),
    ],
)
def test_words_that_other_files_add_to_a_tokenizer_are_refused_by_name(
    file: str, words_beside: dict[str, object], tmp_path: Path
) -> None:
    words(tmp_path, "$A")
    (tmp_path / file).write_text(json.dumps(words_beside))
    with pytest.raises(ServerError, match=f"lacks the word 'ab', which {file} adds"):
        EncodingTokenizer(tmp_path, 8)
    stored = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    stored.add_tokens(["ab"])
    stored.save(str(tmp_path / "tokenizer.json"))
    assert EncodingTokenizer(tmp_path, 8).encode("ab").tokens == (4,)


@pytest.mark.parametrize(
    ("sentences", "limit"),
    [
        ({}, 5),
        ({"max_seq_length": 6}, 6),
        ({"max_seq_length": None}, 5),
        ({"processing_kwargs": {"text": {"max_length": 4}}}, 4),
    ],
)
def test_the_length_of_a_text_is_sentence_transformers(
    sentences: dict[str, object], limit: int, tmp_path: Path
) -> None:
    words(tmp_path, "$A")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 5}')
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(sentences))
    assert EncodingTokenizer(tmp_path, None).limit == limit
    if sentences:  # older folders have the model's type in the file's name
        (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_xlm-roberta_config.json")
        assert EncodingTokenizer(tmp_path, None).limit == limit


@pytest.mark.parametrize("pad", [None, "1"])
def test_a_padding_token_that_no_position_can_be_counted_from_is_refused_by_name(
    pad: object, tmp_path: Path
) -> None:
    words(tmp_path, "$A")
    config = {"model_type": "roberta", "max_position_embeddings": 40}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert EncodingTokenizer(tmp_path, None).limit == 38
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": pad}))
    with pytest.raises(ServerError, match=f"config.json of the model .* has pad_token_id {pad!r}"):
        EncodingTokenizer(tmp_path, 7)


@pytest.mark.parametrize(
    ("query", "document", "tokens"),
    [
        ("a a a a a a", "b", (2, 0, 0, 3, 1, 3)),
        ("a", "b b b b b b", (2, 0, 3, 1, 1, 3)),
        ("a a a a", "b b b b", (2, 0, 3, 1, 1, 3)),
        ("a", "b b", (2, 0, 3, 1, 1, 3)),
    ],
)
def test_a_pair_that_is_too_long_loses_the_end_of_its_longer_text(
    query: str, document: str, tokens: tuple[int, ...], tmp_path: Path
) -> None:
    words(tmp_path, "$A")
    assert EncodingTokenizer(tmp_path, 6).encode(query, document, truncating=True).tokens == tokens


def test_a_text_loses_its_beginning_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    words(tmp_path, "<s> $A </s>")
    (tmp_path / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    long = "a " * 9999 + "b b"
    assert EncodingTokenizer(tmp_path, 5).encode(long, truncating=True).tokens == (2, 0, 1, 1, 3)
    assert EncodingTokenizer(tmp_path, 6).encode(long, "b", truncating=True).tokens == (2, 1, 1, 3, 1, 3)


def test_a_text_that_is_cut_keeps_what_stands_around_it(tmp_path: Path) -> None:
    words(tmp_path, "<s> $A </s>")
    assert EncodingTokenizer(tmp_path, 4).encode("a b a b", truncating=True).tokens == (2, 0, 1, 3)
    asked = {"add_bos_token": True, "bos_token": "<s>", "add_eos_token": True, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(asked))
    words(tmp_path, "$A")
    assert EncodingTokenizer(tmp_path, 4).encode("a b a b", truncating=True).tokens == (2, 0, 1, 3)

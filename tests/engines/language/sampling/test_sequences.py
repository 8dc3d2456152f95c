"""Sequences that a generation_config.json forbids or biases, beside their definitions in transformers."""

import json
import math
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pippin.config.options.model import ModelOptions
from pippin.core.parameters import OfEveryAnswer
from pippin.core.requests import Sampling
from pippin.engines.language.sampling.sampler import BatchSampler, Masks
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.language.sampling.test_sampling import Words, logits_of
from tests.engines.tiny_models import TinyModels

WIDTH = 6


class Asking(Words):
    """A tokenizer whose folder asks something of every answer."""

    def __init__(self, asked: OfEveryAnswer) -> None:
        self.asked = asked


def reference(row: np.ndarray, said: list[int], asked: OfEveryAnswer) -> np.ndarray:
    """transformers' `SequenceBiasLogitsProcessor`, `NoRepeatNGramLogitsProcessor` and `NoBadWordsLogitsProcessor` of
    one row, in float64, for sequences of several tokens."""
    row, size = row.astype(np.float64), asked.no_repeat_ngram_size or 0
    for ids, bias in dict(asked.sequence_bias or ()).items():
        if len(ids) > 1 and tuple(said[1 - len(ids) :]) == ids[:-1]:
            row[ids[-1]] += bias
    if size:
        grams = {tuple(said[place : place + size]) for place in range(len(said) - size + 1)}
        row[[gram[-1] for gram in grams if gram[:-1] == tuple(said[len(said) - size + 1 :])]] = -math.inf
    for ids in asked.bad_words_ids or ():
        if len(ids) > 1 and tuple(said[1 - len(ids) :]) == ids[:-1]:
            row[ids[-1]] = -math.inf
    return row


def sampler_of(asked: OfEveryAnswer, prompts: list[list[int]]) -> BatchSampler:
    sampler = BatchSampler(Asking(asked))  # type: ignore[arg-type]
    for prompt in prompts:
        sampler.join(Sampling(), seed=0, prompt=prompt, logprobs=None, vocabulary=WIDTH)
    return sampler


SEQUENCE = st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=4).map(tuple)


@settings(deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, WIDTH - 1), min_size=1, max_size=300), min_size=1, max_size=3),
    size=st.sampled_from([None, 0, 1, 2, 3, 4, 7, 10**9]),
    words=st.lists(SEQUENCE, max_size=6),
    biased=st.lists(st.tuples(SEQUENCE, st.sampled_from([-3.0, 2.5])), max_size=4),
)
def test_each_draw_is_the_best_that_the_definitions_leave(
    prompts: list[list[int]], size: int | None, words: list[tuple[int, ...]], biased: list[object]
) -> None:
    asked = OfEveryAnswer(
        no_repeat_ngram_size=size,
        bad_words_ids=tuple(words),
        sequence_bias=tuple(biased),  # type: ignore[arg-type]
    )
    sampler, said = sampler_of(asked, prompts), [[*prompt] for prompt in prompts]
    for step in range(4):
        logits = logits_of(step, len(prompts), width=WIDTH)
        drawn = np.array(sampler.sample(mx.array(logits)).tokens).tolist()
        for row, tokens, token in zip(logits, said, drawn, strict=True):
            left = reference(row, tokens, asked)
            assert token == (left if left.max() > -math.inf else row).argmax()
            tokens.append(token)


def test_what_comes_after_a_draft_is_forbidden_by_it() -> None:
    asked = OfEveryAnswer(no_repeat_ngram_size=2, bad_words_ids=((4, 5),))
    logits = np.tile(np.array([0, 0, 0, 1, 2, 3], np.float32), (1, 3, 1))
    drafts = np.array([[3, 4]], np.int32)
    ahead = sampler_of(asked, [[3, 5, 1]]).sample_ahead(mx.array(logits), drafts)
    # After 3, 5 would come twice; after 4 it is a bad word.
    assert [int(each.tokens.item()) for each in ahead] == [5, 4, 4]
    chain, counts = np.array([[3, 4]], np.int32), np.array([1], np.int32)
    behind = sampler_of(asked, [[3, 5, 1]]).sample_behind(mx.array(logits[:, 0]), chain, counts)
    assert behind.tokens.item() == 4


def test_a_grammar_goes_before_what_is_forbidden() -> None:
    asked = OfEveryAnswer(no_repeat_ngram_size=1)
    logits, masks = mx.array(logits_of(0, 2, width=WIDTH)), np.array([[0b1000], [0b1010]], np.int32)
    sampler = sampler_of(asked, [[3, 5], [3, 5]])
    assert np.array(sampler.sample(logits, Masks([0, 1], masks)).tokens).tolist() == [3, 1]


def test_sequences_that_no_answer_can_hold_change_nothing() -> None:
    words = ((1, WIDTH), (1, 10**6), (-1, 2), (1, -2), ())
    sampler = sampler_of(OfEveryAnswer(bad_words_ids=words), [[1], [2]])
    logits = logits_of(0, 2, width=WIDTH)
    assert np.array(sampler.sample(mx.array(logits)).tokens).tolist() == logits.argmax(-1).tolist()


PHRASE = tuple(place * 17 % 240 for place in range(12))


@pytest.fixture(scope="module")
def folder(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(tiny_models("llama"), tmp_path_factory.mktemp("asking") / "llama"))


@pytest.mark.even
@pytest.mark.parametrize("way", ["ahead", "in order", "prompt_lookup", "draft_model_path"])
def test_an_answer_holds_nothing_forbidden_alone_in_a_batch_from_the_cache_and_with_drafts(
    folder: Path, way: str, always: None
) -> None:
    plain = Bench(folder, ModelOptions(cache_block_tokens=8))
    free, _ = run_all(plain, {"a": (PHRASE * 2, 40)})
    words = [list(pair) for pair in zip(free["a", 0], free["a", 0][1:], strict=False)][::3]
    asked = {"no_repeat_ngram_size": 3, "bad_words_ids": words}
    (folder / "generation_config.json").write_text(json.dumps(asked))
    more = {"prompt_lookup": {way: True}, "draft_model_path": {way: str(folder)}}.get(way, {})
    options = ModelOptions(cache_block_tokens=8, num_draft_tokens=4, **more)  # type: ignore[arg-type]
    bench = Bench(folder, options, replace(PLAN, overlaps=way != "in order"))
    prompts = {"a": (PHRASE * 2, 40), "b": (PHRASE, 30), "c": (PHRASE[:5], 20)}
    together, _ = run_all(bench, prompts)
    for name, prompt in prompts.items():
        again, _ = run_all(bench, {name: prompt})
        assert again[name, 0] == together[name, 0] == expected(bench, *prompt)
    if more:
        assert bench.engine.stats().draft_tokens > 0


def expected(bench: Bench, prompt: tuple[int, ...], count: int) -> list[int]:
    """The best tokens that the definitions leave, each from a whole pass."""
    said = [*prompt]
    for _ in range(count):
        logits = np.array(bench.model(mx.array([said]))[0, -1].astype(mx.float32))
        said.append(int(reference(logits, said, bench.tokenizer.asked).argmax()))
    return said[len(prompt) :]

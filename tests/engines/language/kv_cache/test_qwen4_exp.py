"""Qwen 4, mlx-vlm's alone: recurrent layers, embeddings of the last tokens, and an index of blocks of tokens."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_vlm import load as mlx_vlm_load

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.kv_cache.layout import new_prompt_cache
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.language.vision.any_family import Family, write
from tests.engines.language.vision.family_settings import FAMILIES

pytestmark = pytest.mark.float32

TEXT = tuple((place * 17 + place // 9) % 240 for place in range(150))
PROMPTS = {f"r{place}": (TEXT[place : place + length], 14) for place, length in enumerate((3, 18, 40, 101))}
Judge = Callable[[tuple[int, ...], mx.array | None], mx.array]


def qwen4_exp(**changes: Any) -> Family:
    made = FAMILIES["qwen4_exp"]
    text = {
        **made.config["text_config"],
        "num_hidden_layers": 4,
        "hc_lowrank": 16,
        "ple_layer_ids": [1, 3],
        "ple_embed_dim": 64,
        "heads_per_ngram": 2,
        "ngram_vocab_size_base": 100,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 4,
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_compress_ratio": 4,
        "indexer_head_dim": 16,
        "indexer_budget": 12,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "eos_token_id": 11,
        # mlx-vlm's, where a file says nothing; transformers would take another gate and base for granted.
        "output_gate_type": "sigmoid",
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [11, 11, 10],
            "rope_theta": 10_000_000,
            "partial_rotary_factor": 0.25,
        },
        **changes,
    }
    return dataclasses.replace(made, config={**made.config, "text_config": text})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("qwen4_exp", qwen4_exp(), tmp_path_factory.mktemp("qwen") / "qwen4_exp")


@pytest.fixture(scope="module")
def bench(folder: Path) -> Bench:
    return Bench(folder, ModelOptions(cache_block_tokens=8))


@pytest.fixture(scope="module")
def by_mlx_vlm(folder: Path) -> Judge:
    """Its own model's logits [tokens, vocabulary], with its own caches, in one pass, at positions [3, 1, tokens]."""
    model, _ = mlx_vlm_load(folder)
    language = model.language_model
    assert type(language).__module__.startswith("mlx_vlm")

    def logits(tokens: tuple[int, ...], positions: mx.array | None = None) -> mx.array:
        if positions is None:
            positions = mx.broadcast_to(mx.arange(len(tokens)), (3, 1, len(tokens)))
        found: mx.array = language(
            mx.array([tokens]), cache=language.make_cache(), position_ids=positions
        ).logits
        return found[0]

    return logits


@pytest.mark.parametrize("cuts", [(1, 2, 3), (5, 20, 20, 1, 1, 60), (128, 3)])
def test_however_a_prompt_is_cut_it_says_what_mlx_vlm_says_of_all_of_it(
    bench: Bench, by_mlx_vlm: Judge, cuts: tuple[int, ...]
) -> None:
    cache, start = new_prompt_cache(bench.model), 0
    expected = by_mlx_vlm(TEXT, None)
    for count in (*cuts, len(TEXT) - sum(cuts)):
        found = bench.model(mx.array([TEXT[start : start + count]]), cache=cache)[0]
        assert mx.abs(found - expected[start : start + count]).max() < 1e-3
        start += count


def test_blocks_are_rotated_by_the_positions_of_a_picture(folder: Path, by_mlx_vlm: Judge) -> None:
    """In three axes, of which those of a picture's tokens differ."""
    model = Bench(folder, ModelOptions()).model
    places = mx.arange(60)
    inside = 30 + mx.stack([mx.zeros_like(places), places // 10, places % 10])
    after = mx.broadcast_to(mx.arange(40, 100), (3, 60))
    before = mx.broadcast_to(mx.arange(30), (3, 30))
    positions = mx.concatenate([before, inside, after], axis=1)[:, None]
    expected, cache = by_mlx_vlm(TEXT, positions), model.make_cache()
    for start, stop in ((0, 41), (41, 97), (97, 150)):
        given = {"cache": cache, "position_ids": positions[..., start:stop]}
        found = model.inner.language_model(mx.array([TEXT[start:stop]]), **given).logits[0]
        assert mx.abs(found - expected[start:stop]).max() < 1e-3
    plain = by_mlx_vlm(TEXT, None)
    assert mx.abs(plain - expected)[31:].max() > 0.1


@pytest.mark.parametrize("most", [pytest.param(3, marks=pytest.mark.long), 12])
def test_sequences_of_a_batch_say_what_mlx_vlm_says(
    folder: Path, by_mlx_vlm: Judge, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=most))
    answers: dict[tuple[str, int], list[int]] = {}
    for known in (0, 96):  # the second time, the prefix cache has them, and what was said is predicted
        answers, ends = run_all(bench, PROMPTS, predicted=answers)
        assert ends["r3", 0].usage.cached_tokens == known
        for name, (prompt, _) in PROMPTS.items():
            answer = answers[name, 0]
            logits = by_mlx_vlm((*prompt, *answer[:-1]), None)[len(prompt) - 1 :]
            said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)
            assert (logits.max(axis=-1, keepdims=True) - said).max() < 1e-3
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    assert bench.engine.stats().accepted_tokens > 0


@pytest.mark.long
def test_drawn_answers_are_the_same_alone_together_and_with_proposals(
    folder: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = Sampling(temperature=0.25, seed=3)
    alone = [run_all(bench, {name: each}, sampling=sampling)[0][name, 0] for name, each in PROMPTS.items()]
    together, _ = run_all(bench, PROMPTS, sampling=sampling)
    monkeypatch.setattr(drafting, "Pace", Eager)
    proposing = Bench(folder, ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=4))
    drawn, _ = run_all(proposing, PROMPTS, sampling=sampling)
    checked, _ = run_all(proposing, PROMPTS, sampling=sampling, predicted=drawn)
    assert alone == [together[name, 0] for name in PROMPTS] == [checked[name, 0] for name in PROMPTS]
    assert proposing.engine.stats().accepted_tokens > 0

"""GLM 5 Next, mlx-vlm's alone: recurrent layers, latent vectors, and an index of pooled keys."""

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


def glm5_next(**changes: Any) -> Family:
    made = FAMILIES["glm5_next"]
    text = {
        **made.config["text_config"],
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", *["deepseek_sparse_attention"] * 3],
        "indexer_types": ["full", "full", "shared", "full"],
        "index_topk": 12,
        "index_n_heads": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        **changes,
    }
    return dataclasses.replace(made, config={**made.config, "text_config": text})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("glm5_next", glm5_next(), tmp_path_factory.mktemp("glm") / "glm5_next")


@pytest.fixture(scope="module")
def bench(folder: Path) -> Bench:
    return Bench(folder, ModelOptions(cache_block_tokens=8))


@pytest.fixture(scope="module")
def by_mlx_vlm(folder: Path) -> Callable[[tuple[int, ...]], mx.array]:
    """Its own model's logits [tokens, vocabulary], with its own caches, in one pass."""
    model, _ = mlx_vlm_load(folder)
    language = model.language_model
    assert type(language).__module__.startswith("mlx_vlm")

    def logits(tokens: tuple[int, ...]) -> mx.array:
        found: mx.array = language(mx.array([tokens]), cache=language.make_cache()).logits
        return found[0]

    return logits


@pytest.mark.parametrize("cuts", [(1, 2, 3), (5, 20, 20, 1, 1, 60), (128, 3)])
def test_however_a_prompt_is_cut_it_says_what_mlx_vlm_says_of_all_of_it(
    bench: Bench, by_mlx_vlm: Callable[[tuple[int, ...]], mx.array], cuts: tuple[int, ...]
) -> None:
    cache, start = new_prompt_cache(bench.model), 0
    expected = by_mlx_vlm(TEXT)
    for count in (*cuts, len(TEXT) - sum(cuts)):
        found = bench.model(mx.array([TEXT[start : start + count]]), cache=cache)[0]
        assert mx.abs(found - expected[start : start + count]).max() < 1e-3
        start += count


@pytest.mark.parametrize("most", [pytest.param(3, marks=pytest.mark.long), 12])
def test_sequences_of_a_batch_say_what_mlx_vlm_says(
    folder: Path,
    by_mlx_vlm: Callable[[tuple[int, ...]], mx.array],
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = Bench(folder, ModelOptions(cache_block_tokens=8, prompt_lookup=True, num_draft_tokens=most))
    answers: dict[tuple[str, int], list[int]] = {}
    for known in (0, 96):  # the second time, the prefix cache has them, and what was said is predicted
        answers, ends = run_all(bench, PROMPTS, predicted=answers)
        assert ends["r3", 0].usage.cached_tokens == known
        for name, (prompt, _) in PROMPTS.items():
            answer = answers[name, 0]
            logits = by_mlx_vlm((*prompt, *answer[:-1]))[len(prompt) - 1 :]
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
    likeliest, _ = run_all(proposing, PROMPTS)
    checked, _ = run_all(proposing, PROMPTS, sampling=sampling, predicted=likeliest)
    assert alone == [together[name, 0] for name in PROMPTS] == [checked[name, 0] for name in PROMPTS]
    stats = proposing.engine.stats()
    assert stats.draft_tokens > stats.accepted_tokens > 0

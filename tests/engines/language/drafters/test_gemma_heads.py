"""Gemma 4's drafters of blocks: what they propose is what mlx-vlm's module drafts, and answers are the model's own."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters import load_drafter
from mlx_vlm.speculative.drafters.gemma4_dspark.config import Gemma4DsparkConfig
from mlx_vlm.speculative.drafters.gemma4_dspark.gemma4_dspark import (
    Gemma4DSparkAttention,
    Gemma4DSparkDraftModel,
)

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.blocks import BlockHead
from pippin.engines.language.drafters.gemma_blocks import GemmaBlockHead
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import Bench, Eager, run_all
from tests.engines.language.drafting import drafts_of, judge_own_answers, prompts_of
from tests.engines.language.step.test_heads import heads_of
from tests.engines.language.tiny_heads import (
    LAYERS,
    _written,
    dflash_head,
    eagle3_model,
    gemma_model,
    spread,
)
from tests.engines.tiny_models import COMMON, HEADS

PROMPTS = prompts_of(20, 3, count=3)

DRAFTER: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "architectures": ["Gemma4DSparkModel"],
    "model_type": "gemma4_text",
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "full_attention"],
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "full_attention": {"rope_theta": 10000.0, "rope_type": "proportional", "partial_rotary_factor": 0.25}
    },
    "block_size": 5,
    "mask_token_id": 301,
    "target_layer_ids": list(LAYERS),
    "num_target_layers": 4,
    "markov_rank": 8,
}


@pytest.fixture(scope="module", params=[True, False], ids=["keys are values", "values apart"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("gemma")
    config = {**DRAFTER, "attention_k_eq_v": request.param}
    drafter = Gemma4DSparkDraftModel(Gemma4DsparkConfig.from_dict(config))
    folder = _written(root / "drafter", spread(drafter, 3), config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafting, "Pace", Eager)
        options = ModelOptions(cache_block_tokens=8, num_draft_tokens=3, draft_model_path=str(folder))
        return Bench(eagle3_model(root / "model"), options)


def test_a_drafter_of_gemma_gives_the_models_own_answer(bench: Bench) -> None:
    judge_own_answers(bench, PROMPTS)


def test_it_proposes_what_mlx_vlm_drafts_with_its_own_embeddings(bench: Bench) -> None:
    speculation = bench.engine.speculation
    assert speculation is not None
    heads = speculation.heads
    assert heads is not None
    head, states = heads._head, heads._states
    assert isinstance(head, GemmaBlockHead)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 12):
        tokens, first = sequence.tokens, heads._followed[sequence].first
        bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
        assert found == drafted(head, states.take()[:, first:], tokens[-1])


def drafted(head: GemmaBlockHead, hidden: mx.array, last: int) -> list[int]:
    """By mlx-vlm's own attention, over all states at once. Where keys are values, its shortcut for the context asks
    for a projection that there is not (mlx-vlm 0.7.10), so that its layers have to project by themselves."""
    inner = head.inner
    if "v_proj" not in inner.layers[0].self_attn:
        object.__setattr__(inner, "_project_context_kv", lambda hidden: None)
    ours = [type(layer.self_attn) for layer in inner.layers]
    for layer in inner.layers:
        layer.self_attn.__class__ = Gemma4DSparkAttention
    likeliest = partial(mx.argmax, axis=-1)
    found: list[int] = inner.draft_block(last, hidden, inner.make_cache(), 4, likeliest)[0].tolist()
    for layer, each in zip(inner.layers, ours, strict=True):
        layer.self_attn.__class__ = each
    return found


@pytest.fixture(scope="module")
def dflash(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of Gemma 4, whose embeddings are scaled and logits capped, and a drafter that does not name its mask."""
    root = tmp_path_factory.mktemp("dflash")
    model, _ = gemma_model(root / "model")
    drafter = dflash_head(root / "drafter", final_logit_softcapping=30.0, layers=(0, 2, 4))
    config = json.loads((drafter / "config.json").read_text())
    del config["dflash_config"]["mask_token_id"]
    (drafter / "config.json").write_text(json.dumps({**config, "model_type": "gemma4"}))
    return model, drafter


def dflash_bench(folders: tuple[Path, Path], *, drafts: bool = True) -> Bench:
    path = str(folders[1]) if drafts else None
    return Bench(folders[0], ModelOptions(cache_block_tokens=8, num_draft_tokens=3, draft_model_path=path))


@pytest.mark.usefixtures("always")
def test_a_drafter_of_gemmas_dflash_proposes_what_mlx_vlm_drafts(dflash: tuple[Path, Path]) -> None:
    bench = dflash_bench(dflash)
    heads = heads_of(bench)
    assert isinstance(heads._head, BlockHead)
    reference, _ = load_drafter(str(dflash[1]))
    assert reference.config.mask_token_id == 4
    likeliest = partial(mx.argmax, axis=-1)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 12):
        tokens, first = sequence.tokens, heads._followed[sequence].first
        bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
        hidden = heads._states.take()[:, first:]
        cache = reference.reset(bench.model)
        assert found == reference.draft_block(tokens[-1], hidden, cache, 4, likeliest)[0].tolist()


@pytest.mark.usefixtures("always")
def test_answers_with_gemmas_dflash_are_the_models_own(dflash: tuple[Path, Path]) -> None:
    judge_own_answers(dflash_bench(dflash), PROMPTS)
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(dflash_bench(dflash, drafts=drafts), PROMPTS, sampling=sampling)[0]
        for drafts in (False, True)
    ]
    assert found[0] == found[1]

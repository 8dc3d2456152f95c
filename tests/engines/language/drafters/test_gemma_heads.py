"""Gemma 4's drafters of blocks: what they propose is what mlx-vlm's module drafts, and answers are the model's own."""

from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters.gemma4_dspark.config import Gemma4DsparkConfig
from mlx_vlm.speculative.drafters.gemma4_dspark.gemma4_dspark import (
    Gemma4DSparkAttention,
    Gemma4DSparkDraftModel,
)

from pippin.config.options.model import ModelOptions
from pippin.engines.language import loading
from pippin.engines.language.drafters.gemma_blocks import GemmaBlockHead
from tests.engines.language.bench import Bench, Eager
from tests.engines.language.drafting import drafts_of, judge_own_answers, prompts_of
from tests.engines.language.tiny_heads import LAYERS, _written, eagle3_model, spread
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
        patch.setattr(loading, "Pace", Eager)
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

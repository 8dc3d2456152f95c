"""Laguna's and Muse Glimmer's drafters of blocks propose what mlx-vlm's modules draft; answers are the model's own."""

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters import laguna_dflash, muse_glimmer_assistant
from mlx_vlm.speculative.drafters.laguna_dflash.dflash import LagunaDFlashAttention
from mlx_vlm.speculative.drafters.muse_glimmer_assistant.dflash import MuseGlimmerAssistantAttention

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.blocks import BlockHead
from tests.engines.language.bench import Bench, judge_others_of_one_that_leaves, run_all
from tests.engines.language.drafting import PHRASE, drafts_of, judge_own_answers, prompts_of
from tests.engines.language.tiny_heads import LAYERS, _written, eagle3_model, spread
from tests.engines.tiny_models import COMMON, HEADS

PROMPTS = prompts_of(12)
pytestmark = pytest.mark.usefixtures("always")

OWN: dict[str, Any] = {
    "block_size": 5,
    "mask_token_id": 301,
    "target_layer_ids": list(LAYERS),
    "num_target_layers": 4,
}
SLIDING: dict[str, Any] = {
    **HEADS,
    **COMMON,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention"] * 3,
    "sliding_window": 16,
}
LAGUNA: dict[str, Any] = {
    **SLIDING,
    "model_type": "laguna",
    "draft_vocab_size": COMMON["vocab_size"],
    "gating": "per-head",
    "eagle_aux_hidden_state_layer_ids": [each + 1 for each in LAYERS],
    "dflash_config": {**OWN, "causal": True},
}
MUSE: dict[str, Any] = {**SLIDING, **OWN, "model_type": "muse_glimmer_assistant"}
KINDS = {
    "laguna": (laguna_dflash, LAGUNA, LagunaDFlashAttention),
    "muse": (muse_glimmer_assistant, MUSE, MuseGlimmerAssistantAttention),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folders(kind: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp(kind)
    module, config, _ = KINDS[kind]
    drafter = module.Model(module.ModelConfig.from_dict(config))
    model = eagle3_model(root / "model", tie_word_embeddings=False)
    return model, _written(root / "drafter", spread(drafter, 3), config)


def bench_of(folders: tuple[Path, Path], *, drafts: bool = True) -> Bench:
    path = str(folders[1]) if drafts else None
    return Bench(folders[0], ModelOptions(cache_block_tokens=8, num_draft_tokens=3, draft_model_path=path))


def test_a_drafter_gives_the_models_own_answer(folders: tuple[Path, Path]) -> None:
    bench = bench_of(folders)
    judge_own_answers(bench, PROMPTS)


def test_it_proposes_what_mlx_vlm_drafts(kind: str, folders: tuple[Path, Path]) -> None:
    bench = bench_of(folders)
    speculation = bench.engine.speculation
    assert speculation is not None
    heads: Any = speculation.heads
    for sequence, found in drafts_of(bench, heads, PROMPTS, 12):
        tokens, first = sequence.tokens, heads._followed[sequence].first
        bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
        assert found == drafted(kind, heads._head, heads._states.take()[:, first:], tokens[-1])


def drafted(kind: str, head: BlockHead, hidden: mx.array, last: int) -> list[int]:
    """By mlx-vlm's own attention, over all states at once."""
    inner = head.inner
    ours = [type(layer.self_attn) for layer in inner.layers]
    for layer in inner.layers:
        layer.self_attn.__class__ = KINDS[kind][2]
    likeliest = partial(mx.argmax, axis=-1)
    found: list[int] = inner.draft_block(last, hidden, inner.make_cache(), 4, likeliest)[0].tolist()
    for layer, each in zip(inner.layers, ours, strict=True):
        layer.self_attn.__class__ = each
    return found


def test_seeded_sampling_is_the_same_with_and_without(folders: tuple[Path, Path]) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(bench_of(folders, drafts=drafts), {"a": (PHRASE * 2, 24)}, sampling=sampling)[0]
        for drafts in (False, True)
    ]
    assert found[0] == found[1]


def test_a_sequence_that_leaves_changes_nothing_for_the_others(folders: tuple[Path, Path]) -> None:
    judge_others_of_one_that_leaves(bench_of(folders), PROMPTS, 2)

"""Gemma 4's DFlash: what it proposes is what mlx-vlm's module drafts, and answers are the model's own."""

import json
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_vlm.speculative.drafters import load_drafter

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.drafters.blocks import BlockHead
from tests.engines.language.bench import Bench, run_all
from tests.engines.language.drafting import drafts_of, judge_own_answers, prompts_of
from tests.engines.language.step.test_heads import heads_of
from tests.engines.language.tiny_heads import (
    dflash_head,
    gemma_model,
)

PROMPTS = prompts_of(20, 3, count=3)


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
    assert isinstance(heads.head, BlockHead)
    reference, _ = load_drafter(str(dflash[1]))
    assert reference.config.mask_token_id == 4
    likeliest = partial(mx.argmax, axis=-1)
    for sequence, found in drafts_of(bench, heads, PROMPTS, 12):
        tokens, first = sequence.tokens, heads.followed[sequence].first
        bench.model(mx.array([tokens[:-1]]), cache=make_prompt_cache(bench.model))
        hidden = heads.states.take()[:, first:]
        cache = reference.reset(bench.model)
        assert found == reference.draft_block(tokens[-1], hidden, cache, 4, likeliest)[0].tolist()


@pytest.mark.even
@pytest.mark.usefixtures("always")
def test_answers_with_gemmas_dflash_are_the_models_own(dflash: tuple[Path, Path]) -> None:
    judge_own_answers(dflash_bench(dflash), PROMPTS)
    sampling = Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.1, seed=5)
    found = [
        run_all(dflash_bench(dflash, drafts=drafts), PROMPTS, sampling=sampling)[0]
        for drafts in (False, True)
    ]
    assert found[0] == found[1]

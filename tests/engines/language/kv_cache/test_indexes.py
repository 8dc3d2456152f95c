"""Sparse attention that chooses its tokens by an index beside the keys: sequences run in batches as each does alone."""

from pathlib import Path

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.core.requests import Sampling
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, computed_prompt
from pippin.engines.language.loading import drafting
from tests.engines.language.bench import MAC, Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.tiny_models import INDEXED, TinyModels

KEPT = INDEXED["index_topk"]
PHRASE = tuple(place * 17 % 240 for place in range(14))
# The first is shorter than the index keeps, and grows beyond it beside others that are.
LENGTHS = (KEPT - 4, 2 * KEPT, 40, 61)
PROMPTS = {f"r{place}": ((PHRASE * 5)[place : place + length], 20) for place, length in enumerate(LENGTHS)}


@pytest.fixture(params=["deepseek_v32", "glm_moe_dsa"])
def folder(request: pytest.FixtureRequest, tiny_models: TinyModels) -> Path:
    return tiny_models(request.param)


def bench_of(folder: Path, **changes: object) -> Bench:
    return Bench(folder, ModelOptions(**{"cache_block_tokens": 8, **changes}))  # type: ignore[arg-type]


def test_the_index_matters_to_the_tests_here(folder: Path) -> None:
    """The same weights with an index that keeps all tokens say something else."""
    model = bench_of(folder).model
    tokens = mx.array([PROMPTS["r3"][0]])
    sparse = model(tokens)
    for layer in model.layers:
        layer.self_attn.indexer.index_topk = 1000
    difference = mx.abs(model(tokens) - sparse)
    assert difference[:, :KEPT].max().item() == 0
    assert difference[:, KEPT:].max().item() > 0.1


def test_each_sequence_of_a_batch_says_what_it_does_alone(folder: Path) -> None:
    bench = bench_of(folder)
    for known in (0, 56):  # the second time, the prefix cache has them
        answers, ends = run_all(bench, PROMPTS)
        for name, (prompt, _) in PROMPTS.items():
            bench.judge(prompt, answers[name, 0])
        assert ends["r3", 0].usage.cached_tokens == known


def test_in_other_company_a_seeded_answer_is_the_same(folder: Path) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    bench = bench_of(folder, prefix_cache=False)
    alone = [run_all(bench, {name: each}, sampling=sampling)[0][name, 0] for name, each in PROMPTS.items()]
    together, _ = run_all(bench, PROMPTS, sampling=sampling)
    assert alone == [together[name, 0] for name in PROMPTS]


def test_proposals_are_taken_back_and_neighbours_that_leave_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = bench_of(folder, prompt_lookup=True, num_draft_tokens=4)
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    stats = bench.engine.stats()
    assert stats.draft_tokens > stats.accepted_tokens


def test_keys_of_an_index_are_kept_once(folder: Path) -> None:
    """mlx-lm keeps as many zeros beside them."""
    model = bench_of(folder).model
    layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
    group = BatchedGroup(model, BatchShape(layout=layout))
    slot = group.reserve(SlotRequest(length=40, growth=8, length_class=0))
    group.join(slot, computed_prompt(model, range(1, 41)), shift=0)
    group.forward(mx.array([[7]]))
    of_token = INDEXED["kv_lora_rank"] + INDEXED["qk_rope_head_dim"] + INDEXED["index_head_dim"]
    size = 4 if MAC is None else 2
    assert group.bytes == size * of_token * len(model.layers) * group.table.capacity


def test_latent_vectors_cannot_be_kept_in_few_bits(tiny_models: TinyModels) -> None:
    folder = tiny_models("deepseek_v32", qk_rope_head_dim=32, index_head_dim=32)
    with pytest.raises(ServerError, match="kv_bits cannot be used with this model") as refused:
        bench_of(folder, kv_bits=8, kv_group_size=32)
    assert refused.value.report.param == "kv_bits"

"""DeepSeek V4's pooled keys: sequences in batches, taken back, cut and gone on with say what one pass over all says."""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.requests import Sampling
from pippin.engines.language.kv_cache.groups import BatchedGroup, BatchShape
from pippin.engines.language.kv_cache.kinds.base import SlotRequest
from pippin.engines.language.kv_cache.layout import CacheLayout, arrays_of, computed_prompt, new_prompt_cache
from pippin.engines.language.loading import drafting
from pippin.engines.language.upstream.mlx_vlm import deepseek_v4
from tests.engines.language.bench import Bench, Eager, judge_others_of_one_that_leaves, run_all
from tests.engines.language.vision.any_family import Family, write

pytestmark = pytest.mark.float32

RATIOS = (0, 4, 128, 4)
V4 = Family(
    config={
        "num_hidden_layers": len(RATIOS),
        "compress_ratios": list(RATIOS),
        "num_key_value_heads": 1,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "o_groups": 2,
        "o_lora_rank": 16,
        "q_lora_rank": 16,
        "index_n_heads": 2,
        "index_head_dim": 16,
        "index_topk": 5,
        "num_hash_layers": 1,
        "sliding_window": 12,
        "hc_mult": 2,
        "hc_sinkhorn_iters": 2,
        "vision_n_layers": 0,
    }
)
IN_BLOCKS = replace(V4, config={**V4.config, "index_block": 4, "index_keep": 2})
"""mlx-vlm chooses pooled keys by blocks as soon as there are eight of them, not 1,024."""
SLACK = 4
TEXT = tuple((place * 17 + place // 9) % 240 for place in range(200))
# The third and fourth have an entry of 128 tokens, or get one while they answer.
LENGTHS = (3, 30, 121, 143)
PROMPTS = {f"r{place}": (TEXT[place : place + length], 14) for place, length in enumerate(LENGTHS)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("deepseek_v4", V4, tmp_path_factory.mktemp("v4") / "deepseek_v4")


def bench_of(folder: Path, **changes: object) -> Bench:
    return Bench(folder, ModelOptions(**{"cache_block_tokens": 8, **changes}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bench(folder: Path) -> Bench:
    return bench_of(folder, prefix_cache=False)


def test_a_restarted_server_goes_on_from_pooled_keys_on_the_disk(folder: Path, tmp_path: Path) -> None:
    first = bench_of(folder, cache_dir=str(tmp_path))
    answers, _ = run_all(first, {"a": (TEXT, 14)})
    first.engine.close()
    second = bench_of(folder, cache_dir=str(tmp_path))
    again, ends = run_all(second, {"a": (TEXT, 14)})
    assert again == answers
    assert ends["a", 0].usage.cached_tokens == (len(TEXT) - 1) // 8 * 8
    second.engine.close()


def by_mlx_vlm(bench: Bench, tokens: tuple[int, ...]) -> mx.array:
    """Its logits [tokens, vocabulary] with its own caches, in one pass: between two they forget what was before."""
    language = bench.model.inner.language_model
    logits: mx.array = language(mx.array([tokens]), cache=language.make_cache()).logits
    return logits[0]


@pytest.mark.parametrize("cuts", [(7,), (1, 2, 3), (5, 20, 20, 1, 1, 60), (1,) * 40, (128, 3)])
def test_however_a_prompt_is_cut_it_says_what_mlx_vlm_says_of_all_of_it(
    bench: Bench, cuts: tuple[int, ...]
) -> None:
    tokens, cache = TEXT[:150], new_prompt_cache(bench.model)
    expected, start = by_mlx_vlm(bench, tokens), 0
    for count in (*cuts, len(tokens) - sum(cuts)):
        found = bench.model(mx.array([tokens[start : start + count]]), cache=cache)[0]
        assert mx.abs(found - expected[start : start + count]).max() < 1e-3
        start += count


@pytest.fixture(scope="module")
def in_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("deepseek_v4", IN_BLOCKS, tmp_path_factory.mktemp("v4-in-blocks") / "deepseek_v4")


@pytest.mark.parametrize("cuts", [(7,), (1, 2, 3), (5, 20, 20, 1, 1, 60), (128, 3)])
def test_however_a_prompt_is_cut_its_index_takes_the_keys_of_highest_scores(
    bench: Bench, in_blocks: Path, cuts: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without blocks, and where the scores of a chunk are computed in parts."""
    monkeypatch.setattr(deepseek_v4, "SCORES", 2 * 30 * 8)
    blocks = bench_of(in_blocks, prefix_cache=False)
    tokens, cache = TEXT[:150], new_prompt_cache(blocks.model)
    expected, start = by_mlx_vlm(bench, tokens), 0
    for count in (*cuts, len(tokens) - sum(cuts)):
        found = blocks.model(mx.array([tokens[start : start + count]]), cache=cache)[0]
        assert mx.abs(found - expected[start : start + count]).max() < 1e-3
        start += count


@pytest.mark.long
def test_neither_neighbours_nor_proposals_change_what_an_index_takes(
    bench: Bench, in_blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    blocks = bench_of(in_blocks, prompt_lookup=True, num_draft_tokens=3)
    answers: dict[tuple[str, int], list[int]] = {}
    for _ in range(2):  # the second time, what was said is predicted
        answers, _ = run_all(blocks, PROMPTS, predicted=answers)
        for name, (prompt, _) in PROMPTS.items():
            bench.judge(prompt, answers[name, 0])
    assert blocks.engine.stats().accepted_tokens > 0


def test_each_sequence_of_a_batch_says_what_mlx_vlm_says(folder: Path) -> None:
    bench = bench_of(folder)
    for known in (0, 136):  # the second time, the prefix cache has them
        answers, ends = run_all(bench, PROMPTS)
        assert ends["r3", 0].usage.cached_tokens == known
        for name, (prompt, _) in PROMPTS.items():
            answer = answers[name, 0]
            logits = by_mlx_vlm(bench, (*prompt, *answer[:-1]))[len(prompt) - 1 :]
            said = mx.take_along_axis(logits, mx.array(answer)[:, None], axis=-1)
            assert (logits.max(axis=-1, keepdims=True) - said).max() < 1e-3


def test_sequences_of_one_length_see_all_pooled_keys_where_the_index_leaves_none_out(tmp_path: Path) -> None:
    """Behind the window, where its mask is one for all of them."""
    all_taken = replace(V4, config={**V4.config, "index_topk": 400})
    bench = bench_of(write("deepseek_v4", all_taken, tmp_path / "deepseek_v4"))
    answers, _ = run_all(bench, {"one": (TEXT[:30], 10)}, n=2)
    for choice in (0, 1):
        bench.judge(TEXT[:30], answers["one", choice])


@pytest.mark.long
def test_in_other_company_a_seeded_answer_is_the_same(bench: Bench) -> None:
    sampling = Sampling(temperature=0.8, top_p=0.9, seed=5)
    alone = [run_all(bench, {name: each}, sampling=sampling)[0][name, 0] for name, each in PROMPTS.items()]
    together, _ = run_all(bench, PROMPTS, sampling=sampling)
    assert alone == [together[name, 0] for name in PROMPTS]


@pytest.mark.long
@pytest.mark.parametrize("most", [3, 12])  # mlx-vlm gives its layers up to 8 tokens one by one
def test_proposals_are_taken_back_and_neighbours_that_leave_change_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(drafting, "Pace", Eager)
    bench = bench_of(folder, prompt_lookup=True, num_draft_tokens=most)
    likeliest, _ = run_all(bench, PROMPTS)
    # Drawn answers follow what was likeliest for a while, which is predicted.
    sampling = Sampling(temperature=0.25, seed=3)
    drawn, _ = run_all(bench, PROMPTS, sampling=sampling, predicted=likeliest)
    plain, _ = run_all(bench_of(folder), PROMPTS, sampling=sampling)
    assert drawn == plain
    judge_others_of_one_that_leaves(bench, PROMPTS, 3)
    stats = bench.engine.stats()
    assert stats.draft_tokens > stats.accepted_tokens > 0


@pytest.mark.parametrize("forgotten", [(0, 2, 3, 1), (4, 4, 4, 4), (0, 0, 0, 4)])
def test_each_sequence_forgets_as_many_tokens_as_it_is_told(bench: Bench, forgotten: tuple[int, ...]) -> None:
    model = bench.model
    group = BatchedGroup(
        model, BatchShape(layout=CacheLayout.learn(model, computed_prompt(model, (1, 2))), slack=SLACK)
    )
    texts = []
    for length in LENGTHS:
        slot = group.reserve(SlotRequest(length=length, growth=8, length_class=0, following=1))
        group.join(slot, computed_prompt(model, range(1, length + 1)), shift=0)
        texts.append([*range(1, length + 1)])
    for step in range(3):
        tokens = [[(7 * row + 3 * place + step) % 250 for place in range(4)] for row in range(len(LENGTHS))]
        group.forward(mx.array(tokens))
        group.rewind(dict(enumerate(forgotten)))
        for text, new, count in zip(texts, tokens, forgotten, strict=True):
            text += new[: 4 - count]
    together = group.forward(mx.array([[5]] * len(LENGTHS)))
    for row, text in enumerate(texts):
        assert mx.allclose(together[row, -1], by_mlx_vlm(bench, (*text, 5))[-1], atol=1e-3)


def test_kinds_tell_the_bytes_to_the_last(bench: Bench) -> None:
    model = bench.model
    layout = CacheLayout.learn(model, computed_prompt(model, (1, 2)))
    group = BatchedGroup(model, BatchShape(layout=layout, slack=SLACK))
    for length in LENGTHS:
        slot = group.reserve(SlotRequest(length=length, growth=8, length_class=0, following=1))
        group.join(slot, computed_prompt(model, range(1, length + 1)), shift=0)
    assert group.bytes == len(group.table.lengths) * layout.slot_bytes(group.table.capacity, SLACK)
    cache = layout.new_prompt_cache(140)
    model(mx.array([TEXT[:140]]), cache=cache)
    mx.eval(arrays_of(cache))
    assert sum(array.nbytes for array in arrays_of(cache)) <= layout.prompt_bytes(140, 140)


def test_a_view_of_a_slot_as_of_an_earlier_token_goes_on_as_that_does(bench: Bench) -> None:
    model = bench.model
    group = BatchedGroup(
        model, BatchShape(layout=CacheLayout.learn(model, computed_prompt(model, (1, 2))), slack=SLACK)
    )
    slot = group.reserve(SlotRequest(length=126, growth=8, length_class=0))
    group.join(slot, computed_prompt(model, range(1, 127)), shift=0)
    for token in range(127, 132):
        group.forward(mx.array([[token]]))
    for back in range(SLACK + 1):
        alone = model(mx.array([[9]]), cache=slot.view(131 - back))
        expected = by_mlx_vlm(bench, (*range(1, 132 - back), 9))
        assert mx.allclose(alone[0, -1], expected[-1], atol=1e-3)

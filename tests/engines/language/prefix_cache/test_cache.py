"""What the prefix cache saves, and that a hit gives the same answer."""

from pathlib import Path

import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.events import Finished
from tests.engines.language.bench import MAC, PLAN, Bench, run_all
from tests.engines.tiny_models import BY_CACHE, TinyModels


@pytest.fixture(scope="module")
def folders(tiny_models: TinyModels) -> dict[str, Path]:
    return tiny_models.all()


def bench_of(folders: dict[str, Path], name: str, **options: object) -> Bench:
    return Bench(folders[name], ModelOptions(**{"cache_block_tokens": 8, **options}))  # type: ignore[arg-type]


PROMPT = tuple(place * 11 % 250 for place in range(100))


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_a_growing_conversation_starts_from_where_it_ended(
    folders: dict[str, Path], architecture: str
) -> None:
    bench = bench_of(folders, architecture)
    prompt, before = PROMPT, 0
    for turn in range(3):
        answers, ends = run_all(bench, {"a": (prompt, 20)})
        bench.judge(prompt, answers["a", 0])
        known = ends["a", 0].usage.cached_tokens
        assert before - known <= 8, "less than a block was lost"
        before = len(prompt) + 20
        prompt = prompt + tuple(answers["a", 0]) + tuple(range(turn, turn + 30))


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_requests_that_arrive_together_compute_their_prefix_once(
    folders: dict[str, Path], architecture: str
) -> None:
    bench = bench_of(folders, architecture)
    prompts = {f"r{index}": ((*PROMPT, index, 1, 2, 3), 5) for index in range(16)}
    answers, ends = run_all(bench, prompts)
    for name, (prompt, _) in prompts.items():
        bench.judge(prompt, answers[name, 0])
    shared = len(PROMPT) // 8 * 8
    assert sorted(end.usage.cached_tokens for end in ends.values()) == [0] + [shared] * 15
    assert bench.engine.stats().prompt_tokens == 104 + 15 * (104 - shared)


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3_next", pytest.param("gemma3_text", marks=pytest.mark.long)]
)
def test_sixteen_requests_with_the_same_1500_tokens_compute_them_once(
    folders: dict[str, Path], architecture: str
) -> None:
    plan = msgspec.structs.replace(PLAN, prefill_chunk=256)
    bench = Bench(folders[architecture], ModelOptions(), plan)
    long = tuple((place * 11 + place // 250) % 250 for place in range(1500))
    prompts = {f"r{index}": ((*long, index, 1, 2, 3), 3) for index in range(16)}
    answers, ends = run_all(bench, prompts)
    for name in ("r0", "r1", "r15"):
        bench.judge(prompts[name][0], answers[name, 0])
    # Half of a block that begins alike is known, too.
    assert sorted(end.usage.cached_tokens for end in ends.values()) == [0] + [1496] * 15
    assert bench.engine.stats().prompt_tokens == 1504 + 15 * (1504 - 1496)


@pytest.mark.parametrize(("asked", "blocks"), [(16, 8), (64, 8), (20, 20), (8, 8), (4, 4)])
@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "qwen3_next"])
def test_states_are_found_by_the_piece_as_keys_and_values_are(
    folders: dict[str, Path], architecture: str, asked: int, blocks: int
) -> None:
    """A running sequence keeps its state as rarely as was asked for, however small the blocks are."""
    bench = bench_of(folders, architecture, cache_block_tokens=asked)
    prefixes = bench.engine.prefixes
    assert prefixes.block_tokens == (blocks if prefixes.has_snapshots else asked)
    assert prefixes.state_tokens == asked
    prompt = tuple(place * 7 % 250 for place in range(93))
    answers, _ = run_all(bench, {"a": (prompt, 41)})
    longer = (*prompt, *answers["a", 0], 5)
    later, ends = run_all(bench, {"b": (longer, 6)})
    bench.judge(longer, later["b", 0])
    ended = len(prompt) + 40  # the last token of an answer is not computed
    kept = blocks if prefixes.has_snapshots and not prefixes.has_state else asked
    assert ends["b", 0].usage.cached_tokens >= ended // kept * kept
    _, ends = run_all(bench, {"c": (prompt, 2)})
    if prefixes.has_snapshots:
        assert ends["c", 0].usage.cached_tokens == (len(prompt) - 1) // blocks * blocks


def test_no_token_counts_as_both_known_and_stored(folders: dict[str, Path]) -> None:
    bench = Bench(folders["llama"], ModelOptions())
    run_all(bench, {"a": ((*PROMPT[:28], 1, 2, 3, 4, 5, 6, 7, 8), 1)})
    _, ends = run_all(bench, {"b": ((*PROMPT[:28], 9, 8, 7, 6, 5, 4, 3, 2), 1)})
    usage = ends["b", 0].usage
    assert (usage.cached_tokens, usage.stored_tokens) == (24, 8)


def test_the_tree_holds_a_shared_prefix_once_and_its_limit_to_the_byte(folders: dict[str, Path]) -> None:
    bench = bench_of(folders, "llama")
    run_all(bench, {f"r{index}": ((*PROMPT, index, 1, 2, 3), 1) for index in range(16)})
    per_token = 2 * 2 * 2 * 16 * (4 if MAC is None else 2)  # layers, keys and values, heads, dim, bytes
    stats = bench.engine.stats().cache
    assert stats.bytes == stats.entries * 8 * per_token
    assert stats.entries <= 100 // 8 + 16

    small = bench_of(folders, "llama", cache_memory_mb=1)
    tree = small.engine.prefixes.tree  # type: ignore[union-attr]
    for seed in range(30):
        run_all(small, {"a": (tuple((seed * 13 + place * 7) % 251 for place in range(100)), 4)})
        assert tree.bytes <= tree.limit
    assert tree.evictions == 0 or tree.bytes > tree.limit - 8 * per_token


@pytest.mark.parametrize("architecture", BY_CACHE)
def test_a_retry_goes_on_from_what_was_computed_of_a_cancelled_prompt(
    folders: dict[str, Path], architecture: str
) -> None:
    bench = bench_of(folders, architecture)
    bench.engine.submit(bench.job("a", PROMPT, 5))
    for _ in range(2):
        bench.engine.step()
    [status] = bench.engine.stats().requests
    bench.engine.cancel("a")
    answers, ends = run_all(bench, {"b": (PROMPT, 5)})
    assert ends["b", 0].usage.cached_tokens == status.prefilled_tokens == 64
    bench.judge(PROMPT, answers["b", 0])


def test_salts_keep_tenants_apart(folders: dict[str, Path]) -> None:
    bench = bench_of(folders, "llama")
    run_all(bench, {"a": (PROMPT, 1)}, key=b"one")
    _, ends = run_all(bench, {"b": (PROMPT, 1)}, key=b"two")
    assert ends["b", 0].usage.cached_tokens == 0
    _, ends = run_all(bench, {"c": (PROMPT, 1)}, key=b"one")
    assert ends["c", 0].usage.cached_tokens == 96


def test_a_clear_forgets_everything(folders: dict[str, Path]) -> None:
    bench = bench_of(folders, "llama")
    run_all(bench, {"a": (PROMPT, 1)})
    bench.engine.clear_cache(prefixes_only=True, disk=False)
    _, ends = run_all(bench, {"b": (PROMPT, 1)})
    assert isinstance(ends["b", 0], Finished)
    assert ends["b", 0].usage.cached_tokens == 0
    assert ends["b", 0].usage.stored_tokens == 96

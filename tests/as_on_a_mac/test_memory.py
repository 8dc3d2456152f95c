"""What Metal bounds besides bytes: how large an array may be, and how many there may be at once."""

from pathlib import Path

import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten

from pippin.config.options.model import ModelOptions
from pippin.engines.device import decide
from pippin.engines.language.kv_cache.layout import snapshot_arrays
from pippin.engines.language.prefix_cache.cache import PrefixCache
from tests.as_on_a_mac.mac import WORKING_SETS, Mac
from tests.engines.language.bench import PLAN, Bench
from tests.engines.tiny_models import TinyModels

MACS = [Mac(gigabytes) for gigabytes in WORKING_SETS]


@pytest.mark.parametrize("mac", MACS, ids=lambda mac: f"{mac.gigabytes} GB")
def test_a_macs_bounds_are_the_plans(mac: Mac) -> None:
    plan = decide(mac.facts, ModelOptions())
    assert plan.largest_array == mac.facts.largest_array
    assert plan.most_cached_arrays == 249_500
    assert plan.memory_limit < mac.facts.working_set


def arrays_of_slots(bench: Bench) -> list[mx.array]:
    groups = bench.engine.batch.groups._groups.values()
    return [
        array
        for group in groups
        for cache in group.caches  # type: ignore[attr-defined]
        for _, array in tree_flatten(list(vars(cache).values()))
        if isinstance(array, mx.array)
    ]


def test_no_array_of_slots_outgrows_what_metal_allocates(tiny_models: TinyModels) -> None:
    largest = 1 << 16
    plan = msgspec.structs.replace(PLAN, largest_array=largest)
    bench = Bench(tiny_models("llama"), ModelOptions(prefix_cache=False), plan)
    limit = bench.engine.scheduler.limits.memory
    assert limit == 4 * largest  # keys and values of two layers
    for place in range(3):
        bench.engine.submit(bench.job(f"r{place}", tuple(range(1, 100)), 200))
    seen = 0
    while bench.engine.busy:
        bench.engine.step()
        seen = max([seen, *(array.nbytes for array in arrays_of_slots(bench))])
    assert largest // 4 < seen <= largest


def test_no_share_of_the_pool_lets_a_model_outgrow_the_gpu(tiny_models: TinyModels) -> None:
    facts = Mac().facts
    plan = msgspec.structs.replace(PLAN, most_memory=decide(facts, ModelOptions(), 4 << 30).most_memory)
    bench = Bench(tiny_models("llama"), ModelOptions(), plan)
    for memory in (4 << 30, 400 << 30):
        bench.engine.reconfigure({"memory_bytes": memory})
        stats = bench.engine.stats()
        taken = stats.weight_bytes + stats.kv_limit_bytes + stats.cache.limit_bytes
        assert taken <= min(memory, int(facts.working_set * 0.9))


@pytest.mark.parametrize("architecture", ["llama", "qwen3_next"])
def test_the_prefix_cache_keeps_no_more_arrays_than_half_of_what_metal_has(
    architecture: str, tiny_models: TinyModels
) -> None:
    most = 40
    plan = msgspec.structs.replace(PLAN, most_cached_arrays=most)
    bench = Bench(tiny_models(architecture), ModelOptions(cache_block_tokens=8), plan)
    for place in range(20):
        bench.engine.submit(bench.job(f"r{place}", tuple(range(place + 1, place + 100)), 2))
        while bench.engine.busy:
            bench.engine.step()
    assert most // 2 < kept_arrays(bench) <= most


def kept_arrays(bench: Bench) -> int:
    prefixes = bench.engine.prefixes
    assert isinstance(prefixes, PrefixCache)
    return sum(
        len(node.block or ()) + len(snapshot_arrays(node.snapshot or ())) for node in prefixes.tree.nodes
    )


def test_what_is_read_from_the_disk_counts_among_these_arrays(
    tiny_models: TinyModels, tmp_path: Path
) -> None:
    most = 40
    options = ModelOptions(cache_block_tokens=8, cache_dir=str(tmp_path))
    plan = msgspec.structs.replace(PLAN, most_cached_arrays=most)
    bench = Bench(tiny_models("llama"), options, plan)
    for _ in range(2):
        for place in range(20):
            bench.engine.submit(bench.job(f"r{place}", tuple(range(place + 1, place + 100)), 2))
            while bench.engine.busy:
                bench.engine.step()
        kept, read = kept_arrays(bench), bench.engine.stats().cache.disk_hits
        bench.engine.close()
        bench.engine = bench.new_engine(plan)
    assert read
    assert most // 2 < kept <= most


def test_a_larger_share_of_the_memory_makes_room_for_no_more_arrays_than_metal_has(
    tiny_models: TinyModels,
) -> None:
    most = 40
    plan = msgspec.structs.replace(PLAN, most_cached_arrays=most)
    bench = Bench(tiny_models("llama"), ModelOptions(cache_block_tokens=8), plan)
    for factor in (1, 10):
        bench.engine.prefixes.tree.resize(factor * 10**6)
        for place in range(20):
            bench.engine.submit(bench.job(f"r{place}", tuple(range(place + 1, place + 100)), 2))
            while bench.engine.busy:
                bench.engine.step()
    assert most // 2 < kept_arrays(bench) < 2 * most

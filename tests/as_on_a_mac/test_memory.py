"""What Metal bounds besides bytes: how large an array may be, and how many there may be at once."""

import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten

from pippin.config.options.model import ModelOptions
from pippin.engines.device import decide
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.prefix_cache.tree import snapshot_arrays
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
    for place in range(8):
        bench.engine.submit(bench.job(f"r{place}", tuple(range(1, 100)), 200))
    seen = 0
    while bench.engine.busy:
        bench.engine.step()
        seen = max([seen, *(array.nbytes for array in arrays_of_slots(bench))])
    assert largest // 4 < seen <= largest


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
    prefixes = bench.engine.prefixes
    assert isinstance(prefixes, PrefixCache)
    arrays = [
        array
        for node in prefixes.tree
        for array in (*(node.block or ()), *snapshot_arrays(node.snapshot or ()))
    ]
    assert most // 2 < len(arrays) <= most

"""What Metal bounds besides bytes: how large an array may be, and how many there may be at once."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from mlx.utils import tree_flatten

from pippin.catalog.info import read_info
from pippin.config.options.model import ModelOptions
from pippin.core.models import RankSpec, WorkerSpec
from pippin.engines import language
from pippin.engines.device import decide
from pippin.engines.language.kv_cache.layout import snapshot_arrays
from pippin.engines.language.loading import engine as loading
from pippin.engines.language.model.weights import weight_bytes
from pippin.engines.language.prefix_cache.cache import PrefixCache
from pippin.engines.language.prompt.preparer import LanguagePreparer
from pippin.engines.language.ranks import opening
from pippin.engines.language.ranks.leader import LeadingEngine
from pippin.engines.language.step.engine import LanguageEngine
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


class Alone:
    """The link of a rank that has no other."""

    def tell(self, payload: bytes) -> None:
        pass

    def hear(self) -> list[bytes]:
        return []


def opened(folder: Path, **more: Any) -> tuple[WorkerSpec, LanguagePreparer, Any]:
    spec = WorkerSpec(info=read_info(folder, kind="language"), threads=1, **more)
    return spec, language.open_preparer(spec), lambda *_: None


def test_drafts_and_each_ranks_part_are_wired_with_the_weights(
    tiny_models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, told = tiny_models("llama"), list[int]()
    for module in (loading, opening):
        monkeypatch.setattr(module, "wire_weights", lambda _facts, _options, size: told.append(size))
    engine = language.open_engine(*opened(folder, options={"draft_model_path": str(folder)}))
    assert isinstance(engine, LanguageEngine)
    engine.close()
    facts = msgspec.structs.replace(opening.find_facts(), largest_array=1 << 16)
    monkeypatch.setattr(opening, "find_facts", lambda: facts)
    monkeypatch.setattr(opening, "join_group", lambda _: None)
    monkeypatch.setattr(opening, "split_model", lambda _model, group: None)
    rank = RankSpec(rank=0, size=1, backend="ring", control="", coordinator="", hosts=("",), secret="")
    found = language.open_rank(*opened(folder, rank=rank), Alone())
    assert isinstance(found, LeadingEngine)
    assert told == [each.counters.weight_bytes for each in (engine, found.engine)]
    assert told[0] == 2 * weight_bytes(engine.model)
    assert found.engine.scheduler.limits.memory == 4 << 16, "keys and values of two layers"
    found.close()


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
    most, kept = 40, list[int]()
    plan = msgspec.structs.replace(PLAN, most_cached_arrays=most)
    bench = Bench(tiny_models("llama"), ModelOptions(cache_block_tokens=8), plan)
    for factor in (1, 10):
        bench.engine.prefixes.resize(factor * 10**6)
        for place in range(5):
            bench.engine.submit(bench.job(f"r{place}", tuple(range(place + 1, place + 100)), 2))
            while bench.engine.busy:
                bench.engine.step()
            kept.append(kept_arrays(bench))
    assert most // 2 < max(kept) <= most

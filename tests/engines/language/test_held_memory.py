"""What the device holds, byte for byte: nothing that nobody needs, and no copies beside those that must be."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest
from tests.engines.bench import PLAN, Bench, run_all
from tests.engines.tiny_models import tiny_model

from pippin.config.model_options import ModelOptions

LONG = tuple(place * 11 % 250 for place in range(1000))
CHUNK = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heavy = {"head_dim": 64, "num_key_value_heads": 4, "num_hidden_layers": 4}
    return tiny_model("llama", tmp_path_factory.mktemp("models") / "llama", **heavy)


@pytest.fixture
def bench(folder: Path) -> Iterator[Bench]:
    """Python does not look for cycles meanwhile: whatever needs that to be freed counts as held."""
    found = Bench(folder, ModelOptions(), msgspec.structs.replace(PLAN, prefill_chunk=CHUNK))
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


def active() -> int:
    mx.synchronize()
    return mx.get_active_memory()


def prefix_bytes(bench: Bench) -> int:
    return bench.engine.stats().cache.bytes


def step_peak(bench: Bench) -> int:
    """The most that one step adds to what is held."""
    before = active()
    mx.reset_peak_memory()
    bench.engine.step()
    mx.synchronize()
    return mx.get_peak_memory() - before


def test_a_request_that_ends_leaves_the_trees_copy_and_nothing_else(bench: Bench) -> None:
    before = active()
    run_all(bench, {"a": (LONG, 3)})
    assert active() - before < 1.05 * prefix_bytes(bench)
    after = active()
    for name in "bc":
        run_all(bench, {name: (LONG, 3)})
    assert active() - after < 0.02 * prefix_bytes(bench)


def test_a_clear_frees_the_tree_at_once(bench: Bench) -> None:
    before = active()
    run_all(bench, {"a": (LONG, 1)})
    size = prefix_bytes(bench)
    bench.engine.clear_cache(prefixes_only=True, disk=False)
    assert active() - before < 0.05 * size


def test_a_chunk_copies_only_itself(bench: Bench) -> None:
    """Into the row's cache, which has room for the whole prompt, and into the tree's blocks."""
    bench.engine.submit(bench.job("a", LONG, 1))
    bench.engine.step()
    per_token = prefix_bytes(bench) / CHUNK
    peaks = [step_peak(bench) for _ in range(9)]
    assert max(peaks[2:]) - min(peaks[2:]) < 2 * CHUNK * per_token, (
        "a later chunk costs more than an early one"
    )


def test_a_hit_holds_its_prefix_in_the_tree_and_in_its_row(bench: Bench) -> None:
    run_all(bench, {"a": (LONG, 1)})
    size, before = prefix_bytes(bench), active()
    bench.engine.submit(bench.job("b", (*LONG, 1, 2, 3), 20))
    assert step_peak(bench) < 2.6 * size, (
        "put together from blocks, given room: two copies, one of them short-lived"
    )
    for _ in range(4):
        bench.engine.step()
    assert active() - before < 1.35 * size, "its row, whose places are rounded up to 1,280"


def test_a_prompt_that_goes_on_from_a_hit_takes_places_for_its_own_tokens_alone(bench: Bench) -> None:
    run_all(bench, {"a": (LONG[:320], 1)})
    prompt = (*LONG[:320], *range(200))
    engine = bench.engine
    compute = engine._prompts.compute
    places: list[int] = []

    def watched(*given: Any, **named: Any) -> Any:
        found = compute(*given, **named)
        places.extend(layer.keys.shape[2] for each in found[1] for layer in each.cache or ())
        return found

    engine._prompts.compute = watched  # type: ignore[method-assign]
    engine.submit(bench.job("b", prompt, 4))
    while engine.busy:
        engine.step()
    assert set(places) == {len(prompt)}


def test_sixteen_rows_of_one_prefix_hold_it_once_in_the_tree(bench: Bench) -> None:
    run_all(bench, {"a": (LONG[:900], 1)})
    size = prefix_bytes(bench)
    per_token = size / (900 // 16 * 16)
    for row in range(16):
        bench.engine.submit(bench.job(f"r{row}", (*LONG[:900], row), 30))
    for _ in range(25):
        bench.engine.step()
    stats = bench.engine.stats()
    assert stats.batch_size == 16
    assert stats.cache.bytes - size <= 16 * 16 * per_token, "what is their own is less than a block each"
    assert stats.kv_bytes >= 16 * 900 * per_token, "each live row has a copy"
    charged = bench.engine._scheduler._charge(bench.engine._scheduler.tickets, growth=1)
    assert charged >= 16 * 900 * per_token, "and is charged for it"

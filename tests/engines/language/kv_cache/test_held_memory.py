"""What the device holds, byte for byte: nothing that nobody needs, and no copies beside those that must be."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.engines.language.kv_cache.layout import arrays_of
from pippin.engines.language.model.weights import weight_bytes
from tests.engines.language.bench import PLAN, Bench, run_all
from tests.engines.tiny_models import tiny_model

pytestmark = pytest.mark.float32

LONG = tuple(place * 11 % 250 for place in range(1000))
CHUNK = 64
RUNS = 3


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


def peak() -> int:
    mx.synchronize()
    return mx.get_peak_memory()


def prefix_bytes(bench: Bench) -> int:
    return bench.engine.stats().cache.bytes


def step_peak(bench: Bench) -> int:
    """The most that one step adds to what is held."""
    before = active()
    mx.reset_peak_memory()
    bench.engine.step()
    return peak() - before


def test_a_load_leaves_the_weights_and_nothing_of_its_trials(folder: Path) -> None:
    gc.collect()
    before = active()
    gc.disable()
    try:
        bench = Bench(folder, ModelOptions())
        held = active() - before
    finally:
        gc.enable()
    assert held < weight_bytes(bench.model) + 2**16


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


@pytest.mark.parametrize("in_place", [True, False])
def test_a_hit_is_copied_where_its_sequence_will_lie(bench: Bench, in_place: bool) -> None:
    """Every copy needs memory for what it writes, which tells how many there are."""
    engine = bench.engine = bench.new_engine(msgspec.structs.replace(bench.plan, writes_in_place=in_place))
    run_all(bench, {"a": (LONG, 1)})
    size, before = prefix_bytes(bench), active()
    whole = size * 1280 / len(LONG)  # places are rounded up
    engine.submit(bench.job("b", (*LONG, 1, 2, 3), 20))
    engine.lifecycle.admit(time.monotonic())

    mx.reset_peak_memory()
    prompt = engine.prefill.next()
    assert prompt is not None
    assert prompt.cache is not None
    mx.eval(arrays_of(prompt.cache))
    aside = 0 if in_place else size  # all layers side by side for a moment
    assert peak() - before < whole + aside + 0.1 * size
    assert active() - before < whole + 0.1 * size

    held = active()
    mx.reset_peak_memory()
    engine.prefill.compute(prompt, CHUNK, wait=True)
    assert peak() - held < 0.2 * size, (
        "what is new is written into that room, and the prefix stays where it is"
    )

    held = active()
    mx.reset_peak_memory()
    engine.lifecycle.start(prompt)
    del prompt
    for _ in range(4):
        engine.step()
    assert peak() - held < 0.2 * size, "its row begins where it is"
    assert active() - before < whole + 0.1 * size, "beside the tree it is in the batch alone"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_hit_beside_a_running_sequence_is_copied_into_its_slot(bench: Bench, in_place: bool) -> None:
    engine = bench.engine = bench.new_engine(msgspec.structs.replace(bench.plan, writes_in_place=in_place))
    run_all(bench, {"a": (LONG, 1)})
    size = prefix_bytes(bench)
    engine.submit(bench.job("first", (*LONG, 7), 200))
    engine.submit(bench.job("second", (*LONG, 8), 200))
    while len(engine.batch.running) < 2:
        engine.step()
    held = active()
    engine.cancel("second")
    engine.submit(bench.job("third", (*LONG, 1, 2, 3), 200))
    aside = 0 if in_place else size  # all layers side by side for a moment
    assert max(step_peak(bench) for _ in range(4)) < aside + 0.2 * size
    assert len(engine.batch.running) == 2
    assert active() - held < 0.1 * size, "and the slot that was there"


def test_a_sequence_that_joins_where_another_left_copies_nobody_elses_cache(bench: Bench) -> None:
    run_all(bench, {"a": (LONG[:900], 1)})
    engine, own = bench.engine, prefix_bytes(bench)
    for row in range(12):
        engine.submit(bench.job(f"r{row}", (*LONG[:900], row), 100))
    while len(engine.batch.running) < 12:
        engine.step()
    slots = engine.stats().kv_bytes
    for row in range(12, 14):
        engine.cancel(f"r{row - 8}")
        engine.submit(bench.job(f"r{row}", (*LONG[:900], row), 100))
        assert max(step_peak(bench) for _ in range(4)) < 1.5 * own < slots / 3
    assert len(engine.batch.running) == 12
    assert engine.stats().kv_bytes == slots


@pytest.mark.parametrize("overlaps", [True, False])
@pytest.mark.parametrize("known_to_end", [True, False])
def test_a_sequence_that_leaves_copies_its_new_text_alone(
    folder: Path, overlaps: bool, known_to_end: bool
) -> None:
    """Twice, for a moment: all layers' side by side, and cut into blocks. Of its neighbours nothing is copied.

    `known_to_end`: its limit says so before its last token is drawn, so the step after it is not built in vain. What a
    run allocates beside that is its threads' timing, where a machine is shared: a copy is made in every run.
    """
    bench = Bench(folder, ModelOptions(), msgspec.structs.replace(PLAN, overlaps=overlaps))
    sequence_bytes = bench.engine.scheduler.limits.sequence_bytes
    new_text = (900 % 16 + 40 + 20 + 16) * (sequence_bytes(1001) - sequence_bytes(1000))
    found = []
    for _ in range(RUNS):
        stays, leaves = _peaks_of_steps(bench, known_to_end=known_to_end)
        assert len(leaves) == 3
        found.append(max(leaves) - sorted(stays)[len(stays) // 2])
        if found[-1] < 2.5 * new_text:
            return
        bench.engine = bench.new_engine(bench.plan)
    raise AssertionError(f"{found} bytes more than other steps, for {new_text} of new text")


def _peaks_of_steps(bench: Bench, *, known_to_end: bool) -> tuple[list[int], list[int]]:
    """What each step of four sequences adds to what is held: of steps in which all stay, and of the three in which one
    that has left is copied."""
    engine = bench.engine
    for row in range(4):
        engine.submit(bench.job(f"r{row}", (*LONG[:900], row), 40 + 10 * row))
    stays: list[int] = []
    leaves: list[int] = []
    before = 0
    while engine.busy:
        if not known_to_end:
            for running in engine.scheduler.running:
                running.growth = max(running.growth, 2)
        # What left in the last step is copied in this one.
        going, decoding = len(engine.batch.running) < before, len(engine.batch.running) == 4
        before = len(engine.batch.running)
        added = step_peak(bench)
        if engine.batch.running and (decoding or going):
            (leaves if going else stays).append(added)
    return stays, leaves


@pytest.mark.parametrize(("choices", "expected"), [(1, 768), (2, 520)])
def test_a_prompt_after_a_hit_takes_the_places_of_its_sequence_unless_it_is_copied(
    bench: Bench, choices: int, expected: int
) -> None:
    """Two rows cannot both lie where it was computed."""
    run_all(bench, {"a": (LONG[:320], 1)})
    prompt = (*LONG[:320], *range(200))
    engine = bench.engine
    compute = engine.prefill.compute
    places: list[int] = []

    def watched(*given: Any, **named: Any) -> Any:
        found = compute(*given, **named)
        places.extend(layer.keys.shape[2] for each in found[1] for layer in each.cache or ())
        return found

    engine.prefill.compute = watched  # type: ignore[method-assign]
    engine.submit(bench.job("b", prompt, 4, n=choices))
    while engine.busy:
        engine.step()
    assert set(places) == {expected}


def test_sixteen_sequences_of_one_prefix_hold_it_once_in_the_tree(bench: Bench) -> None:
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
    charged = bench.engine.scheduler.charged
    assert charged >= 16 * 900 * per_token, "and is charged for it"

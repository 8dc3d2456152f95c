"""What follows from a machine, with the machine made up."""

import os
from types import SimpleNamespace
from typing import Literal

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines import device
from pippin.engines.device import (
    CPU_CHUNK,
    WITH_AVX2,
    WITH_VNNI,
    Costs,
    DeviceFacts,
    configure,
    decide,
    evaluate_in_pieces,
    hold_wired_limit,
    kernels_read_cache,
    share_memory,
    wire_weights,
)
from pippin.engines.language.loading.caching import warn_of_slow_cache
from pippin.engines.language.step.scheduler import StepLimits

TF32 = "MLX_ENABLE_TF32"
GIB = 2**30
MAC = DeviceFacts(system="Darwin", accelerator="metal", memory=64 * GIB, free=50 * GIB, working_set=48 * GIB)
LINUX = DeviceFacts(system="Linux", accelerator="cpu", memory=24 * GIB, free=20 * GIB, working_set=24 * GIB)
CUDA = DeviceFacts(system="Linux", accelerator="cuda", memory=80 * GIB, free=79 * GIB, working_set=80 * GIB)


@pytest.mark.parametrize(("at_once", "costs"), [(True, WITH_VNNI), (False, WITH_AVX2)])
def test_products_cost_what_the_processors_instructions_make_them_cost(at_once: bool, costs: Costs) -> None:
    facts = msgspec.structs.replace(LINUX, multiplies_int8_at_once=at_once)
    assert decide(facts, ModelOptions()).product_costs == costs


def test_weights_run_as_stored_on_gpus_and_as_float32_on_a_cpu() -> None:
    for facts in (MAC, CUDA):
        plan = decide(facts, ModelOptions())
        assert (plan.run_type, plan.dequantize) == (None, False)
    plan = decide(LINUX, ModelOptions())
    assert (plan.run_type, plan.dequantize) == ("float32", True)


def test_the_operator_decides_otherwise() -> None:
    assert decide(LINUX, ModelOptions(dtype="stored")).run_type is None
    assert decide(LINUX, ModelOptions(dtype="bfloat16")).dequantize is False
    assert decide(MAC, ModelOptions(dtype="float16")).run_type == "float16"


def test_a_plan_wires_what_the_operator_says() -> None:
    for facts in (MAC, CUDA, LINUX):
        assert decide(facts, ModelOptions()).wired_limit is None
    wanted = ModelOptions(wired_limit_gb=8)
    assert decide(MAC, wanted, 20 * GIB).wired_limit == 8 * 10**9
    for facts in (CUDA, LINUX):
        assert decide(facts, wanted, 20 * GIB).wired_limit is None


@pytest.mark.parametrize(
    ("memory", "weights", "wired"),
    [(16, 4, 0), (16, 7, 7), (16, 9, 0), (64, 20, 0), (64, 40, 40), (64, 46, 0), (128, 40, 0), (128, 80, 80)],
)
def test_weights_are_wired_where_they_fill_much_of_a_mac_and_leave_enough(
    memory: int, weights: int, wired: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[int] = []
    monkeypatch.setattr(device, "hold_wired_limit", told.append)
    facts = msgspec.structs.replace(MAC, memory=memory * GIB, working_set=memory * GIB * 3 // 4)
    wire_weights(facts, ModelOptions(), weights * GIB)
    assert [each // GIB for each in told] == [wired] * bool(wired)
    for each in told:
        # What Metal takes beside them: a page for each of a model's arrays, and MLX's heap.
        assert 4000 * 16384 < each - wired * GIB < GIB // 8
    fills = weights > memory * 3 / 8
    assert ("--wired-limit-gb" in caplog.text) == (fills and not wired)


def test_who_says_what_to_wire_is_obeyed_and_other_devices_wire_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "hold_wired_limit", pytest.fail)
    wire_weights(MAC, ModelOptions(wired_limit_gb=1), 40 * GIB)
    for facts in (CUDA, LINUX):
        wire_weights(facts, ModelOptions(), 40 * GIB)


@pytest.mark.parametrize(("dtype", "found"), [("float32", "0"), ("auto", None)])
def test_float32_is_multiplied_exactly_where_it_is_asked_for(
    dtype: Literal["float32", "auto"], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TF32, "1")
    monkeypatch.delenv(TF32)  # as before the test, when it ends
    for name in ("disable_compile", "set_cache_limit", "set_wired_limit", "set_memory_limit"):
        monkeypatch.setattr(mx, name, lambda *_: None)
    configure(decide(MAC, ModelOptions(dtype=dtype)))
    assert os.environ.get(TF32) == found


def test_mlx_allocates_no_more_than_a_gpus_working_set(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    for name in ("disable_compile", "set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, lambda *_: None)
    monkeypatch.setattr(mx, "set_memory_limit", told.append)
    configure(decide(MAC, ModelOptions()))
    assert told == [MAC.working_set]
    assert decide(LINUX, ModelOptions()).allocation_limit is None


def test_a_worker_wires_no_more_than_its_share() -> None:
    wanted = ModelOptions(wired_limit_gb=1000)
    assert decide(MAC, wanted, memory_bytes=5 * GIB).wired_limit == 5 * GIB
    most = decide(MAC, wanted, memory_bytes=100 * GIB).wired_limit
    assert most is not None
    assert most < MAC.working_set
    assert decide(MAC, wanted).wired_limit is None  # nobody said what this worker's share is


def test_libraries_cannot_change_how_much_is_wired(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(mx, "set_wired_limit", told.append)
    hold_wired_limit(None)
    assert mx.set_wired_limit(10**9) == 0
    assert told == []
    hold_wired_limit(5 * GIB)
    assert mx.set_wired_limit(10**9) == 5 * GIB
    assert told == [5 * GIB]


def test_the_smallest_of_all_limits_counts() -> None:
    assert decide(LINUX, ModelOptions(memory_bytes=5 * GIB)).memory_limit == 5 * GIB
    assert decide(LINUX, ModelOptions(memory_bytes=5 * GIB), 3 * GIB).memory_limit == 3 * GIB
    assert decide(LINUX, ModelOptions(), 100 * GIB).memory_limit < 20 * GIB


def test_chunks_are_short_on_a_cpu() -> None:
    assert decide(LINUX, ModelOptions()).prefill_chunk == CPU_CHUNK
    assert decide(LINUX, ModelOptions(prefill_step_size=64)).prefill_chunk == 64
    assert decide(MAC, ModelOptions()).prefill_chunk == 2048


def limits_of(chunk: int, pairs: int) -> StepLimits:
    return StepLimits(
        max_sequences=1,
        queue_size=1,
        prefill_chunk=chunk,
        target_gap=1.0,
        sequence_bytes=int,
        prompt_bytes=int,
        memory=1,
        attention_pairs=pairs,
    )


def test_chunks_on_a_mac_grow_shorter_with_the_context_so_that_the_watchdog_lets_them_be() -> None:
    plan = decide(MAC, ModelOptions())
    contexts = (0, 2048, 32_768, 65_536, 131_072, 1_000_000)
    assert plan.attention_pairs is not None
    limits = limits_of(plan.prefill_chunk, plan.attention_pairs)
    chunks = [limits.longest_chunk(context) for context in contexts]
    assert chunks[:3] == [2048, 2048, 2048]
    assert chunks[3:] == [1070, 541, 71]
    assert all(
        chunk * (context + chunk) <= plan.attention_pairs
        for chunk, context in zip(chunks, contexts, strict=True)
    )
    for facts in (LINUX, CUDA):
        assert decide(facts, ModelOptions()).attention_pairs is None


def test_a_chunk_has_a_token_however_long_the_context() -> None:
    assert limits_of(2048, 100).longest_chunk(10_000) == 1


def test_weights_are_evaluated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(device, "EVALUATED_BYTES", 1000)
    monkeypatch.setattr(mx, "eval", lambda arrays: asked.append(sum(array.nbytes for array in arrays)))
    weights = [mx.zeros(length, dtype=mx.uint8) for length in (400, 400, 400, 5000, 10)]
    assert list(evaluate_in_pieces(weights)) == [1200, 6200, 6210]
    assert asked == [1200, 5000, 10]


def test_the_host_writes_into_arrays_and_computes_in_turn_with_the_device_on_a_cpu_alone() -> None:
    for facts, on_cpu in ((LINUX, True), (MAC, False), (CUDA, False)):
        plan = decide(facts, ModelOptions())
        assert (plan.writes_in_place, plan.sorts_slowly, not plan.overlaps) == (on_cpu, on_cpu, on_cpu)


def test_kernels_are_compiled_on_the_way_only_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for name in ("disable_compile", "set_cache_limit", "set_wired_limit"):
        monkeypatch.setattr(mx, name, lambda *_, name=name: told.append(name))
    for facts in (LINUX, CUDA, MAC):
        configure(decide(facts, ModelOptions()))
    assert told == [
        "disable_compile",
        "set_cache_limit",
        "set_cache_limit",
        "set_cache_limit",
    ]


def test_weights_that_do_not_fit_are_refused_with_the_numbers() -> None:
    plan = decide(LINUX, ModelOptions())
    with pytest.raises(ServerError, match=r"30\.0 GiB for its weights, and 18\.0 GiB") as caught:
        share_memory(plan.memory_limit, ModelOptions(), 30 * GIB)
    assert caught.value.report.kind == "load_failed"


def test_rows_and_prefixes_share_what_the_weights_leave() -> None:
    plan = msgspec.structs.replace(decide(LINUX, ModelOptions()), memory_limit=10 * GIB)
    shares = share_memory(plan.memory_limit, ModelOptions(), 2 * GIB)
    assert shares.sequences + shares.prefixes == 8 * GIB
    assert share_memory(plan.memory_limit, ModelOptions(prefix_cache=False), 2 * GIB).prefixes == 0
    assert share_memory(plan.memory_limit, ModelOptions(cache_memory_mb=100), 2 * GIB).prefixes == 100 * 2**20


@pytest.mark.parametrize(
    ("options", "takes"),
    [
        (ModelOptions(), True),
        (ModelOptions(kv_bits=4), True),
        (ModelOptions(kv_bits=3), False),
        (ModelOptions(kv_key_bits=8, kv_value_bits=4), False),
    ],
)
def test_kernels_are_left_out_for_keys_and_values_that_they_cannot_read(
    options: ModelOptions, takes: bool
) -> None:
    facts = DeviceFacts(system="Linux", accelerator="cpu", memory=1 << 34, free=1 << 34, working_set=1 << 34)
    assert decide(facts, options).kernels is takes
    assert kernels_read_cache(options) is takes


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (ModelOptions(kv_bits=3), True),
        (ModelOptions(kv_key_bits=8, kv_value_bits=4), True),
        (ModelOptions(kv_bits=4), False),
        (ModelOptions(kv_bits=3, cpu_kernels="off"), False),
    ],
)
def test_bits_that_keep_the_kernels_away_are_told_to_the_operator(
    options: ModelOptions, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_slow_cache(decide(LINUX, options), options)
    assert ("without the kernels for CPUs" in caplog.text) is warned


@pytest.mark.parametrize("told", [{"resource_limit": 499_000, "max_buffer_length": 8 * GIB}, {}])
def test_what_metal_bounds_is_found_where_mlx_tells_it(
    told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimpleNamespace(type=mx.DeviceType.gpu)
    monkeypatch.setattr(mx, "default_device", lambda: gpu)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 11 * GIB, **told})
    monkeypatch.setattr(device.platform, "system", lambda: "Darwin")
    facts = device.find_facts()
    assert (facts.accelerator, facts.working_set) == ("metal", 11 * GIB)
    assert facts.most_arrays == told.get("resource_limit")
    assert facts.largest_array == told.get("max_buffer_length")

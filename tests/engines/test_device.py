"""What follows from a machine, with the machine made up."""

import mlx.core as mx
import msgspec
import pytest

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError
from pippin.engines.device import CPU_CHUNK, DeviceFacts, configure, decide, hold_wired_limit, share_memory

GIB = 2**30
MAC = DeviceFacts(
    system="Darwin", accelerator="metal", memory=64 * GIB, free=50 * GIB, working_set=48 * GIB, cores=12
)
LINUX = DeviceFacts(
    system="Linux", accelerator="cpu", memory=24 * GIB, free=20 * GIB, working_set=24 * GIB, cores=2
)
CUDA = DeviceFacts(
    system="Linux", accelerator="cuda", memory=80 * GIB, free=79 * GIB, working_set=80 * GIB, cores=16
)


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


def test_no_memory_is_wired_unless_the_operator_says_so() -> None:
    for facts in (MAC, CUDA, LINUX):
        assert decide(facts, ModelOptions()).wired_limit is None
    wanted = ModelOptions(wired_limit_gb=8)
    assert decide(MAC, wanted, 20 * GIB).wired_limit == 8 * 10**9
    for facts in (CUDA, LINUX):
        assert decide(facts, wanted, 20 * GIB).wired_limit is None


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
        share_memory(plan, ModelOptions(), 30 * GIB)
    assert caught.value.report.kind == "load_failed"


def test_rows_and_prefixes_share_what_the_weights_leave() -> None:
    plan = msgspec.structs.replace(decide(LINUX, ModelOptions()), memory_limit=10 * GIB)
    shares = share_memory(plan, ModelOptions(), 2 * GIB)
    assert shares.rows + shares.prefixes == 8 * GIB
    assert share_memory(plan, ModelOptions(prefix_cache=False), 2 * GIB).prefixes == 0
    assert share_memory(plan, ModelOptions(cache_memory_mb=100), 2 * GIB).prefixes == 100 * 2**20

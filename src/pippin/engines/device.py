"""Every decision that depends on the machine: the dtype of weights, limits of memory, sizes of work.

`DeviceFacts` holds what was found and `DevicePlan` what follows from it, so that tests can fake the facts. Numbers were
measured on Linux CPUs only, not yet on Metal or CUDA (`docs/performance.md` lists what was measured).
`python -m pippin.engines.device` prints what MLX runs on as a line of JSON, for `pippin doctor`.
"""

import functools
import json
import logging
import math
import mmap
import platform
import sys
import timeit
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from msgspec import Struct, to_builtins

from pippin.config.accelerator import Accelerator
from pippin.config.installed import version
from pippin.config.options.model import CpuActivations, ModelOptions, asked_type, cache_bits, shared_out
from pippin.config.worker_environment import multiply_exactly
from pippin.core.decoding import convert
from pippin.core.errors import MENDS, ServerError, is_of_device, way_out
from pippin.core.models import WorkerSpec

if TYPE_CHECKING:
    import mlx.core as mx

log = logging.getLogger(__name__)

RunType = Literal["float32", "float16", "bfloat16"]

WIRED_FROM = 0.5
"""Weights that take more of the working set than this are wired. macOS pages out what is not: models that fill most of
a Mac's memory were reported 30 times slower without (mlx issue 4211)."""

LEFT_UNWIRED = 0.35
LEAST_UNWIRED = 8 * 2**30
"""The part of the memory, and the bytes, that stay unwired in any case: macOS panicked where servers wired most of it
(mlx issue 3186)."""

WIRED_BESIDE = 64 * 2**20
"""Bytes that Metal takes beside those of the weights: whole pages of 16 KiB for each array, and a heap for small ones.
MLX leaves out what a limit has no room for, which may be the largest array (read in `metal/resident.cpp`)."""

HEADROOM = 0.10
"""The fraction of the working set that is left to activations and to the system."""

CPU_CHUNK = 256
"""The most tokens of a prefill chunk on a CPU, where matrix products reach their full speed at 128 rows (measured)."""

REPORT_PRODUCT = (128, 576, 1536)
"""Rows, inner size and columns of the float32 product that the report times: one of a prompt in SmolLM2-135M."""

REPORT_TRIES = 20
REPORT_PAUSE = 0.5  # seconds over which the load of other processes is measured

# macOS kills GPU work that keeps the display waiting: prompts in chunks of 2,048 tokens were killed beyond about
# 90,000 tokens of context (mlx issue 3267). Chunks stay whole up to 32,768 tokens of context; not measured by us.
WATCHDOG_PAIRS = 2048 * (2048 + 32_768)

Costs = tuple[tuple[int, float], ...]
"""Numbers of vectors, ascending, and the time of a product with so many, as a multiple of that with one."""
VECTORS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 25, 32, 36, 48, 64, 1024)


def _costs(*times: float) -> Costs:
    """These are the times of products with so many `VECTORS`; from 64 to 1,024 in proportion."""
    return tuple(zip(VECTORS, times, strict=True))


WITH_VNNI = _costs(
    1.0, 1.1, 1.22, 1.4, 1.92, 1.96, 2.36, 2.9, 3.3, 3.9, 5.4, 6.0, 7.1, 7.4, 8.5, 10.6, 13.6, 214.0
)
"""Of the kernels for CPUs that multiply int8 with one instruction. They take 1, 2, 3, 4, 6, 8, 12 or 16 vectors at a
time, so that costs grow in steps: one more vector costs next to nothing, or much. Measured by
`benchmarks.speculation_policy --measure`; on other machines the height differs, but hardly the shape."""
WITH_AVX2 = _costs(
    1.0, 1.7, 1.95, 2.4, 2.9, 3.4, 4.2, 6.0, 6.7, 7.6, 9.1, 11.6, 13.6, 16.0, 17.5, 21.5, 30.2, 480.0
)
"""The same on AVX2, where a product takes several instructions, so that one vector leaves the processor less idle. Five
vectors are taken to cost what lies between four and six."""

LAUNCH_BYTES = 4 * 2**20
"""What a GPU reads while it starts one more kernel, at 1 to 3 TB a second. Reckoned, not measured."""

EVALUATED_BYTES = 256 * 2**20  # of weights evaluated at once: one command over 300 GB is killed, too


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """Facts about the machine; sizes are in bytes."""

    system: str  # platform.system(): "Linux", "Darwin"
    accelerator: Accelerator
    memory: int  # of the device, where arrays are allocated
    free: int  # the free part of that memory, now
    working_set: int  # the most that Metal recommends to keep resident; `memory` elsewhere
    most_arrays: int | None = None  # that can be there at once (Metal)
    largest_array: int | None = None  # bytes (Metal)
    # One instruction adds up products of int8, as VNNI and NEON have.
    multiplies_int8_at_once: bool = False


class DevicePlan(Struct, frozen=True, kw_only=True):
    """How an engine runs on this machine; sizes are in bytes except `prefill_chunk`."""

    run_type: RunType | None  # the dtype of weights; None leaves them as stored
    dequantize: bool
    prefill_chunk: int  # tokens
    # The most pairs of a chunk's token and a token that it attends to; None for no bound.
    attention_pairs: int | None = None
    wired_limit: int | None  # bytes kept resident (Metal), if the operator says how many
    # Bytes from which MLX waits for memory, and then refuses it; None leaves MLX's own limit.
    allocation_limit: int | None = None
    most_cached_arrays: int | None = None  # of the prefix cache
    largest_array: int | None = None  # bytes; None for no bound
    allocator_cache: int  # bytes of freed buffers that MLX keeps
    memory_limit: int  # for weights, KV caches and prefix cache together
    most_memory: int = sys.maxsize  # that this limit may become: what a GPU keeps beside what it computes
    overlaps: bool = True  # the device computes while the host goes on
    writes_in_place: bool = False  # arrays lie in the host's memory, and numpy can write into them
    compiles: bool = True  # MLX may compile kernels while it runs
    slow_functions: bool = False  # MLX computes exp, erf and softmax one number at a time
    kernels: bool = False  # Pippin's own kernels for CPUs compute the decoders that they know
    activations: CpuActivations = "float32"  # what the kernels round vectors to
    product_costs: Costs = WITH_VNNI  # of the kernels' products
    # That take as long to read as a kernel to start, where attention reads what a mask hides; None where it does not.
    launch_bytes: int | None = None
    sorts_slowly: bool = False  # sorting a vocabulary costs more than a round trip to the device


def decide(facts: DeviceFacts, options: ModelOptions, memory_bytes: int | None = None) -> DevicePlan:
    """Decide how an engine runs. `memory_bytes` is the share of memory that the pool gives this worker, if it does."""
    on_cpu, asked = facts.accelerator == "cpu", asked_type(options)
    if options.exact:
        _require_exactness(options)
    # Quantised and 16-bit products are 10 to 100 times slower than float32 ones on a CPU.
    run_type: RunType | None = "float32" if on_cpu and asked == "auto" else None
    if asked != "auto" and asked != "stored":
        run_type = asked
    keys, values = cache_bits(options)
    skips_hidden = facts.accelerator == "metal" and (keys is None or keys != values)
    usable = facts.free if on_cpu else min(facts.working_set, facts.memory)
    limits = (int(usable * (1 - HEADROOM)), memory_bytes, options.memory_bytes)
    limit = min(size for size in limits if size is not None)
    return DevicePlan(
        run_type=run_type,
        dequantize=on_cpu and asked in ("auto", "float32"),
        prefill_chunk=min(options.prefill_step_size, CPU_CHUNK) if on_cpu else options.prefill_step_size,
        attention_pairs=WATCHDOG_PAIRS if facts.accelerator == "metal" else None,
        wired_limit=_wired_limit(facts, options, memory_bytes),
        allocation_limit=None if on_cpu else min(facts.working_set, facts.memory),
        most_cached_arrays=None if facts.most_arrays is None else facts.most_arrays // 2,
        largest_array=facts.largest_array,
        allocator_cache=min(limit // 16, 1 << 30) if on_cpu else limit // 16,
        memory_limit=limit,
        most_memory=sys.maxsize if on_cpu else limits[0],
        # On a CPU, MLX's queue takes a few operations and then blocks the caller.
        overlaps=not on_cpu,
        writes_in_place=on_cpu,
        # On a CPU, MLX compiles with g++, for seconds, and loads libraries from /tmp; measured, it gains nothing.
        compiles=not on_cpu,
        slow_functions=on_cpu and facts.system == "Linux",
        # They compute in float32.
        kernels=on_cpu
        and options.cpu_kernels == "auto"
        and asked in ("auto", "float32")
        and kernels_read_cache(options),
        activations=options.cpu_activations if on_cpu else "float32",
        product_costs=WITH_VNNI if facts.multiplies_int8_at_once else WITH_AVX2,
        launch_bytes=None if on_cpu or skips_hidden else LAUNCH_BYTES,
        sorts_slowly=on_cpu,
    )


def _require_exactness(options: ModelOptions) -> None:
    """Raise `ServerError("load_failed")` for options with which a text depends on what else is computed: on the rows
    beside it, or on whether its beginning was in the prefix cache."""
    rounding = {
        "dtype": options.dtype not in ("auto", "float32"),
        "cpu_activations": options.cpu_activations == "int8",
        "kv_bits": cache_bits(options) != (None, None),
    }
    for name, rounds in rounding.items():
        if rounds:
            message = f"exact cannot be had with this {name}, which rounds: leave one of them out."
            raise ServerError("load_failed", message, name)


def _wired_limit(facts: DeviceFacts, options: ModelOptions, share: int | None) -> int | None:
    """Bytes to wire: as many as the operator asks for, within the worker's share; None if no share is known."""
    if facts.accelerator != "metal" or options.wired_limit_gb is None or share is None:
        return None
    return min(int(options.wired_limit_gb * 1e9), share, int(facts.working_set * (1 - HEADROOM)))


def wire_weights(facts: DeviceFacts, options: ModelOptions, weight_bytes: int) -> None:
    """Wire as much memory as loaded weights take, if they take most of what the GPU may use and leave enough of the
    machine's; tell the operator if they do not. With `wired_limit_gb`, `configure` has done what it says."""
    fills = weight_bytes > facts.working_set * WIRED_FROM
    if facts.accelerator != "metal" or options.wired_limit_gb is not None or not fills:
        return
    needed = weight_bytes + WIRED_BESIDE
    most = facts.memory - max(int(facts.memory * LEFT_UNWIRED), LEAST_UNWIRED)
    if needed <= min(most, facts.working_set):
        log.info("wiring %.1f GB for the weights", needed / 1e9)
        give_arrays_back()  # what is freed and kept would be wired in the place of weights
        hold_wired_limit(needed)
        return
    log.warning(
        "The weights take %.0f %% of this machine's memory. They are not wired, since little would be left: macOS may "
        "page them out, which is many times slower. Take a smaller quantisation, or wire them: --wired-limit-gb %.0f.",
        100 * weight_bytes / facts.memory,
        math.ceil(needed / 1e9),
    )


@contextmanager
def loading(spec: WorkerSpec) -> Iterator[DevicePlan]:
    """Configure MLX as the plan says, which it gives, and wire what is loaded within this context."""
    import mlx.core as mx

    facts, options = find_facts(), convert(spec.options, ModelOptions)
    plan = decide(facts, options, spec.memory_bytes)
    configure(plan)
    yield plan
    wire_weights(facts, options, mx.get_active_memory())


def kernels_read_cache(options: ModelOptions) -> bool:
    """Whether the kernels for CPUs can read keys and values as the options keep them: scaled in groups, and quantised
    only if both have the same 4 or 8 bits."""
    keys, values = cache_bits(options)
    return keys == values and (keys is None or keys in (4, 8))


class MemoryShares(Struct, frozen=True, kw_only=True):
    """How the memory that weights leave is divided, in bytes: KV caches of sequences, and the prefix cache."""

    sequences: int
    prefixes: int


def share_memory(
    limit: int, options: ModelOptions, weight_bytes: int, most: int | None = None
) -> MemoryShares:
    """Divide the memory that the weights leave of `limit` bytes; sequences get at most `most`, if given. Raises
    `ServerError("load_failed")` when the weights leave none."""
    free = limit - weight_bytes
    if free <= 0:
        raise weights_too_large(weight_bytes, limit)
    sequences, prefixes = shared_out(free, options)
    return MemoryShares(sequences=sequences if most is None else min(sequences, most), prefixes=prefixes)


def weights_too_large(weight_bytes: int, memory_limit: int, model: str | None = None) -> ServerError:
    """The refusal of a model whose weights exceed the available memory, both in bytes."""
    subject = "The model" if model is None else f"The model {model!r}"
    return ServerError(
        "load_failed",
        f"{subject} needs {weight_bytes / 2**30:.1f} GiB for its weights, and {memory_limit / 2**30:.1f} GiB are "
        "available: unload other models, raise the memory limit, or take a smaller quantisation.",
    )


def require_sound_device(error: BaseException) -> None:
    """Raise `ServerError("load_failed")` if an error tells of the device."""
    if is_of_device(error):
        way = way_out(str(error)) or f"{MENDS.capitalize()}."
        message = f"The GPU failed while the model was tried: {str(error).rstrip('.')}. {way}"
        raise ServerError("load_failed", message) from error


def find_facts() -> DeviceFacts:
    """Ask MLX and the system what the device is. Imports mlx: an accelerated BLAS must have been loaded before."""
    import mlx.core as mx

    from pippin.engines.cpu import kernels

    memory = psutil.virtual_memory()
    system = platform.system()
    accelerator: Accelerator = "cpu"
    total, free, working_set = memory.total, memory.available, memory.total
    bounds: dict[str, int] = {}
    if mx.default_device().type == mx.DeviceType.gpu:
        info = mx.device_info()
        accelerator = "metal" if system == "Darwin" else "cuda"
        if accelerator == "metal":
            working_set = int(info.get("max_recommended_working_set_size", total))
            told = {"most_arrays": info.get("resource_limit"), "largest_array": info.get("max_buffer_length")}
            bounds = {name: int(most) for name, most in told.items() if most is not None}
        else:
            total = int(info.get("total_memory", info.get("memory_size", total)))
            free = int(info.get("free_memory", total))
            working_set = total
    return DeviceFacts(
        system=system,
        accelerator=accelerator,
        memory=total,
        free=free,
        working_set=working_set,
        **bounds,
        multiplies_int8_at_once=accelerator == "cpu" and kernels.multiplies_int8_at_once(),
    )


def configure(plan: DevicePlan) -> None:
    """Configure MLX of this process. Every engine calls this before it computes anything."""
    import mlx.core as mx

    if plan.run_type == "float32":
        multiply_exactly()
    if not plan.compiles:
        mx.disable_compile()
    if plan.slow_functions:
        from pippin.engines.cpu import functions

        functions.install()
    mx.set_cache_limit(plan.allocator_cache)
    if plan.allocation_limit is not None:
        mx.set_memory_limit(plan.allocation_limit)
    hold_wired_limit(plan.wired_limit)


def give_arrays_back() -> None:
    """Free the buffers that MLX keeps of freed arrays: for a process that becomes idle. Does nothing if nothing has
    imported mlx."""
    mx = sys.modules.get("mlx.core")
    if mx is not None:
        mx.clear_cache()


def hold_wired_limit(limit: int | None) -> None:
    """Wire at most `limit` bytes of memory for the life of this process; with None, MLX's own limit (none) stays.

    Servers that wired most of the memory made macOS panic (mlx issue 3186; mlx-lm pull request 1252), and models of
    mlx-lm, mlx-vlm and mlx-audio wire memory while they generate. From here on `mx.set_wired_limit` changes nothing.
    """
    import mlx.core as mx

    set_limit = getattr(mx.set_wired_limit, "__wrapped__", mx.set_wired_limit)
    if limit is not None:
        set_limit(limit)

    mx.set_wired_limit = functools.wraps(set_limit)(lambda _: limit or 0)  # type: ignore[assignment]


def evaluate_in_pieces(arrays: "Iterable[mx.array]") -> Iterator[int]:
    """Evaluate weights, a few at a time; yields the bytes done so far after each piece."""
    import mlx.core as mx

    done, size = 0, 0
    pending: list[mx.array] = []
    for array in arrays:
        pending.append(array)
        size += array.nbytes
        if size >= EVALUATED_BYTES:
            mx.eval(pending)
            done += size
            pending, size = [], 0
            yield done
    mx.eval(pending)
    yield done + size


def report() -> dict[str, object]:
    """MLX's version, device and kernels, its BLAS and the speed of a product, as a worker would find them here.

    `busy` is the part of the processors that others use, measured while this process waits.
    """
    from pippin.engines.cpu.blas import accelerate_blas

    # The BLAS must be loaded before mlx is imported.
    blas = accelerate_blas(ModelOptions(), None)
    import mlx.core as mx

    from pippin.engines.cpu import kernels

    rows, inner, columns = REPORT_PRODUCT
    left = mx.random.normal((rows, inner))
    right = mx.random.normal((inner, columns))
    mx.eval(left, right)
    busy = psutil.cpu_percent(interval=REPORT_PAUSE) / 100
    seconds = min(timeit.repeat(lambda: mx.eval(left @ right), number=1, repeat=REPORT_TRIES))
    missing = kernels.why_missing()
    return {
        "kernels": None if missing else kernels.best_instruction_set(),
        "kernels_missing": missing,
        "version": version("mlx"),
        "device": str(mx.default_device()),
        "blas": blas,
        "gigaflops": 2 * rows * inner * columns / seconds / 1e9,
        "system": platform.system(),
        "busy": busy,
        "architecture": mx.device_info().get("architecture"),
        "nax_kernels": has_nax_kernels(Path(mx.__file__).parent),
        "facts": to_builtins(find_facts()),
    }


def has_nax_kernels(folder: Path) -> bool | None:
    """Whether the Metal library in MLX's folder has kernels for neural accelerators; None if there is no library."""
    for path in folder.rglob("*.metallib"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as kernels:
            return kernels.find(b"_nax") >= 0
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")

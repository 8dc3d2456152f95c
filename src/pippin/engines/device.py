"""Every decision that depends on the machine: how weights run, limits of memory, sizes of work.

`DeviceFacts` is what was found, `DevicePlan` what follows from it; tests fake the first. Nothing here is
measured on Metal or CUDA yet but the CPU of Linux (`docs/performance.md` says what was).
"""

import functools
import os
import platform
from typing import Literal

import psutil
from msgspec import Struct

from pippin.config.options.model import ModelOptions
from pippin.core.errors import ServerError

Accelerator = Literal["metal", "cuda", "cpu"]
RunType = Literal["float32", "float16", "bfloat16"]

HEADROOM = 0.10  # of the working set, left to activations and to the system
CPU_CHUNK = 256  # products of more rows than this gain nothing on a CPU (measured: full speed from 128)


class DeviceFacts(Struct, frozen=True, kw_only=True):
    """What the machine is. Sizes in bytes."""

    system: str  # platform.system(): "Linux", "Darwin"
    accelerator: Accelerator
    memory: int  # of the device: what arrays live in
    free: int  # of it, now
    working_set: int  # the most that Metal wants to keep resident; `memory` elsewhere
    cores: int = 1


class DevicePlan(Struct, frozen=True, kw_only=True):
    """What follows. `run_type` None: weights run as stored."""

    run_type: RunType | None
    dequantize: bool
    prefill_chunk: int  # tokens
    wired_limit: int | None  # bytes kept resident (Metal), where the operator wants it
    allocator_cache: int  # bytes that MLX keeps of freed buffers
    memory_limit: int  # bytes for weights, rows and prefix cache together
    overlaps: bool = True  # what is handed to the device is computed while the host goes on
    writes_in_place: bool = False  # arrays lie in the host's memory, where it can write into them
    compiles: bool = True  # let MLX compile kernels as it goes
    slow_functions: bool = False  # exp and its kin are computed one number at a time
    sorts_slowly: bool = False  # sorting a vocabulary costs more than waiting for the device to look at it


def decide(facts: DeviceFacts, options: ModelOptions, memory_bytes: int | None = None) -> DevicePlan:
    """`memory_bytes` is the worker's share, when its parent set one."""
    on_cpu = facts.accelerator == "cpu"
    run_type: RunType | None
    match options.dtype:
        case "auto":
            # Quantised and 16-bit products are 10 to 100 times slower than float32 ones on a CPU.
            run_type = "float32" if on_cpu else None
        case "stored":
            run_type = None
        case named:
            run_type = named
    limit = int(min(facts.working_set, facts.memory) * (1 - HEADROOM))
    if on_cpu:
        limit = int(facts.free * (1 - HEADROOM))
    limit = min(limit, *(size for size in (memory_bytes, options.memory_bytes) if size is not None), limit)
    return DevicePlan(
        run_type=run_type,
        dequantize=on_cpu and options.dtype in ("auto", "float32"),
        prefill_chunk=min(options.prefill_step_size, CPU_CHUNK) if on_cpu else options.prefill_step_size,
        wired_limit=_wired_limit(facts, options, memory_bytes),
        allocator_cache=min(limit // 16, 1 << 30) if on_cpu else limit // 16,
        memory_limit=limit,
        overlaps=not on_cpu,  # on a CPU, MLX takes a few operations at a time and lets the caller wait
        writes_in_place=on_cpu,
        # On a CPU that means calling g++, for seconds, and loading what lies under /tmp; measured, it gains nothing.
        compiles=not on_cpu,
        slow_functions=on_cpu and facts.system == "Linux",
        sorts_slowly=on_cpu,
    )


def _wired_limit(facts: DeviceFacts, options: ModelOptions, share: int | None) -> int | None:
    """Bytes to wire: what the operator asks for within the worker's share, and none where no share is known."""
    if facts.accelerator != "metal" or options.wired_limit_gb is None or share is None:
        return None
    return min(int(options.wired_limit_gb * 1e9), share, int(facts.working_set * (1 - HEADROOM)))


class MemoryShares(Struct, frozen=True, kw_only=True):
    """How the memory beside the weights is shared out, in bytes."""

    rows: int
    prefixes: int


def share_memory(plan: DevicePlan, options: ModelOptions, weight_bytes: int) -> MemoryShares:
    """Raises `ServerError` when the weights leave no room to work."""
    room = plan.memory_limit - weight_bytes
    if room <= 0:
        raise weights_too_large(weight_bytes, plan.memory_limit)
    prefixes = 0
    if options.prefix_cache:
        wanted = options.cache_memory_mb
        prefixes = int(room * options.cache_memory_percent) if wanted is None else wanted * 2**20
        prefixes = min(prefixes, room // 2) if wanted is None else min(prefixes, room)
    return MemoryShares(rows=max(room - prefixes, room // 8), prefixes=prefixes)


def weights_too_large(weight_bytes: int, memory_limit: int, model: str | None = None) -> ServerError:
    """The refusal of a model whose weights take more than the memory that is there, both in bytes."""
    subject = "The model" if model is None else f"The model {model!r}"
    return ServerError(
        "load_failed",
        f"{subject} needs {weight_bytes / 2**30:.1f} GiB for its weights, and {memory_limit / 2**30:.1f} GiB are "
        "available: unload other models, raise the memory limit, or take a smaller quantisation.",
    )


def find_facts() -> DeviceFacts:
    """Ask MLX and the system. Imports mlx, so a BLAS must have been put in front before."""
    import mlx.core as mx

    memory = psutil.virtual_memory()
    system = platform.system()
    accelerator: Accelerator = "cpu"
    total, free, working_set = memory.total, memory.available, memory.total
    if mx.default_device().type == mx.DeviceType.gpu:
        info = mx.device_info()
        accelerator = "metal" if system == "Darwin" else "cuda"
        if accelerator == "metal":
            working_set = int(info.get("max_recommended_working_set_size", total))
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
        cores=os.cpu_count() or 1,
    )


def configure(plan: DevicePlan) -> None:
    """Tell MLX. Every engine does so before it computes anything."""
    import mlx.core as mx

    if not plan.compiles:
        mx.disable_compile()
    if plan.slow_functions:
        from pippin.engines.cpu import functions

        functions.install()
    mx.set_cache_limit(plan.allocator_cache)
    hold_wired_limit(plan.wired_limit)


def hold_wired_limit(limit: int | None) -> None:
    """Wire at most `limit` bytes of memory, or leave MLX's own limit (none) as it is, for the life of this process.

    Servers that wired most of the memory made macOS panic (mlx issue 3186; mlx-lm pull request 1252), and models of
    mlx-lm, mlx-vlm and mlx-audio do so while they generate. From here on `mx.set_wired_limit` changes nothing.
    """
    import mlx.core as mx

    set_limit = getattr(mx.set_wired_limit, "__wrapped__", mx.set_wired_limit)
    if limit is not None:
        set_limit(limit)

    @functools.wraps(set_limit)
    def keep_limit(_: int) -> int:
        return limit or 0

    mx.set_wired_limit = keep_limit  # type: ignore[assignment]

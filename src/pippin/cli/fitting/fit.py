"""Adds up the memory of a model and its clients, and compares it with the memory that models may use."""

import subprocess
import sys
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pippin.catalog.footprint import context_bytes
from pippin.cli.fitting.source import Source
from pippin.config.accelerator import accelerator, model_memory
from pippin.config.options.model import ModelOptions, cache_bits
from pippin.config.options.server import ServerOptions
from pippin.core.decoding import from_json

ESTIMATE: Final = "pippin.engines.language.kv_cache.estimate"
SECONDS: Final = 120.0
USUAL_WINDOW: Final = 8192  # tokens, for models that do not state a window
CAPACITY_STEP: Final = 256  # tokens by which the memory of a sequence grows
RunDtype = Literal["float32", "float16", "bfloat16"]
VALUE_BYTES: Final[dict[RunDtype, int]] = {"float32": 4, "float16": 2, "bfloat16": 2}


class Contexts(Struct, frozen=True):
    """The answer of the estimating process, which documents the fields."""

    context_bytes: int
    longest: int


@dataclass(frozen=True)
class Fit:
    """The memory that a model needs, in bytes, and whether it is available. `contexts` is None if unknown."""

    source: Source
    context: int
    clients: int
    budget: int
    contexts: Contexts | None

    @property
    def needed(self) -> int:
        return self.source.loaded + self.clients * (self.contexts.context_bytes if self.contexts else 0)

    @property
    def fits(self) -> bool:
        return self.needed <= self.budget


def budget_of(options: ServerOptions) -> int:
    """Bytes that all models together may use, as the server computes it."""
    if options.memory_budget_gb is not None:
        return int(options.memory_budget_gb * 1e9)
    return model_memory(options.memory_percent)


def measure(source: Source, context: int | None, clients: int, budget: int) -> Fit:
    """Measure a model. The memory of contexts follows from the configuration of most; for the others a child process,
    which may import MLX, estimates it."""
    window = source.window or USUAL_WINDOW
    context = min(context or min(window, USUAL_WINDOW), window)
    contexts = None
    if source.kind == "language" and source.config:
        key_bits, value_bits = cache_bits(source.options)
        left = max(0, sequence_memory(budget - source.loaded, source.options))
        dtype = run_dtype(source.options, source.config)
        if key_bits is None and value_bits is None:
            contexts = _told(source.config, VALUE_BYTES[dtype], context, clients, left, window)
        contexts = contexts or _ask(
            {
                "config": source.config,
                "dtype": dtype,
                "context": context,
                "clients": clients,
                "memory": left,
                "window": window,
                "key_bits": key_bits,
                "value_bits": value_bits,
                "kv_group_size": source.options.kv_group_size,
            }
        )
    return Fit(source, context, clients, budget, contexts)


def _told(
    config: dict[str, Any], value_bytes: int, context: int, clients: int, memory: int, window: int
) -> Contexts | None:
    """The answer as the configuration tells it; None where it does not."""
    one = context_bytes(config, -(-context // CAPACITY_STEP) * CAPACITY_STEP, value_bytes)
    if one is None:
        return None

    def of_all(steps: int) -> int:
        return clients * (context_bytes(config, steps * CAPACITY_STEP, value_bytes) or 0)

    steps = window // CAPACITY_STEP
    fitting = bisect_right(range(1, steps + 1), memory, key=of_all)
    return Contexts(one, window if fitting == steps else fitting * CAPACITY_STEP)


def sequence_memory(free: int, options: ModelOptions) -> int:
    """Bytes that the weights leave for running sequences, less the prefix cache's share, which is reclaimed first."""
    if not options.prefix_cache:
        return free
    wanted = options.cache_memory_mb
    prefixes = min(int(free * options.cache_memory_percent), free // 2) if wanted is None else wanted * 2**20
    return max(free - prefixes, free // 8)


def run_dtype(options: ModelOptions, config: dict[str, Any]) -> RunDtype:
    """The dtype of keys and values."""
    match options.dtype:
        case "float32" | "float16" | "bfloat16":
            return options.dtype
        case "auto" if accelerator() == "cpu":
            return "float32"
        case _:
            named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
            return "float32" if named == "float32" else "float16" if named == "float16" else "bfloat16"


def _ask(question: dict[str, Any]) -> Contexts | None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", ESTIMATE],
            input=msgspec.msgpack.encode(question),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 0:
        return None
    return from_json(done.stdout, Contexts)

"""Adds up the memory of a model and its clients, and compares it with the memory that models may use."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Final

from pippin.catalog.footprint import context_bytes
from pippin.cli.fitting.source import Source
from pippin.config.accelerator import accelerator, model_memory
from pippin.config.options.model import ModelOptions
from pippin.config.options.server import ServerOptions

USUAL_WINDOW: Final = 8192  # tokens, for models that do not state a window
CAPACITY_STEP: Final = 256  # tokens by which the memory of a sequence grows


@dataclass(frozen=True)
class Contexts:
    context_bytes: int  # of one client
    longest: int  # tokens that all clients can have at once; 0 if not even the shortest fits


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
    """Measure a model by what its configuration says."""
    window = source.window or USUAL_WINDOW
    context = min(context or min(window, USUAL_WINDOW), window)
    if source.kind != "language":
        return Fit(source, context, clients, budget, None)
    width = value_bytes(source.options, source.config)

    def needed(steps: int) -> int | None:
        return context_bytes(source.config, steps * CAPACITY_STEP, width, source.options)

    one, steps = needed(-(-context // CAPACITY_STEP)), window // CAPACITY_STEP
    if one is None:
        return Fit(source, context, clients, budget, None)
    left = max(0, sequence_memory(budget - source.loaded, source.options))
    fitting = bisect_right(range(1, steps + 1), left, key=lambda step: clients * (needed(step) or 0))
    longest = window if fitting == steps else fitting * CAPACITY_STEP
    return Fit(source, context, clients, budget, Contexts(one, longest))


def sequence_memory(free: int, options: ModelOptions) -> int:
    """Bytes that the weights leave for running sequences, less the prefix cache's share, which is reclaimed first."""
    if not options.prefix_cache:
        return free
    wanted = options.cache_memory_mb
    prefixes = min(int(free * options.cache_memory_percent), free // 2) if wanted is None else wanted * 2**20
    return max(free - prefixes, free // 8)


def value_bytes(options: ModelOptions, config: dict[str, Any]) -> int:
    """Bytes of a number of a key or value."""
    if options.dtype == "auto" and accelerator() == "cpu":
        return 4
    stored = options.dtype in ("auto", "stored")
    named = (config.get("dtype") or config.get("torch_dtype")) if stored else options.dtype
    return 4 if str(named).endswith("float32") else 2

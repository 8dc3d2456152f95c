"""Draws the state of models and engines as Prometheus gauges, read at each scrape."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pippin.core.models import CacheStats, EngineStats, ModelState
from pippin.mcp import ToolServers


def total_stats(engines: Iterable[EngineStats]) -> EngineStats:
    """Sums; the requests of all."""
    listed = list(engines)
    names = [each.name for each in msgspec.structs.fields(EngineStats) if each.type in (int, float)]
    sums = {name: sum(msgspec.structs.asdict(each)[name] for each in listed) for name in names}
    return EngineStats(
        **sums,
        cache=total_cache(each.cache for each in listed),
        requests=tuple(request for each in listed for request in each.requests),
    )


def total_cache(caches: Iterable[CacheStats]) -> CacheStats:
    listed = [msgspec.structs.asdict(each) for each in caches]
    return CacheStats(**{name: sum(each[name] for each in listed) for name in CacheStats.__struct_fields__})


def hit_ratio(cache: CacheStats) -> float:
    """Share of the prompt tokens looked up that were cached."""
    return cache.hit_tokens / cache.lookup_tokens if cache.lookup_tokens else 0.0


def utilization(cache: CacheStats) -> float:
    return cache.bytes / cache.limit_bytes if cache.limit_bytes else 0.0


Stats = TypeVar("Stats")
Figures = tuple[tuple[str, str, Callable[[Stats], float]], ...]
"""Names of gauges, what they tell, and where it is read."""

STATES: Final = ("unloaded", "loading", "loaded", "unloading", "failed")


def gauges(states: Sequence[ModelState], stats: Mapping[str, EngineStats], uptime: float) -> list[Metric]:
    return [
        GaugeMetricFamily("pippin_uptime_seconds", "Seconds since the start.", value=uptime),
        GaugeMetricFamily("pippin_models_known", "Models that were in use.", value=len(states)),
        *_of_models(states),
        *_of_engines(stats),
        *_of_caches({model: each.cache for model, each in stats.items()}),
        GaugeMetricFamily("vllm_mlx_engine_is_mllm", "Always 0: one engine runs all.", value=0),
    ]


def _of_models(states: Sequence[ModelState]) -> Iterable[Metric]:
    loaded = GaugeMetricFamily("pippin_model_loaded", "1 for a model in memory.", labels=["model"])
    active = GaugeMetricFamily("pippin_model_active_requests", "Requests that hold it.", labels=["model"])
    memory = GaugeMetricFamily("pippin_model_footprint_bytes", "Memory it takes.", labels=["model"])
    load = GaugeMetricFamily("pippin_model_load_seconds", "Seconds its last load took.", labels=["model"])
    restarts = CounterMetricFamily("pippin_worker_restarts", "Starts after a death.", labels=["model"])
    loads = CounterMetricFamily("pippin_model_loads", "Loads that succeeded.", labels=["model"])
    evictions = CounterMetricFamily("pippin_model_evictions", "Unloads to make room.", labels=["model"])
    where = GaugeMetricFamily("pippin_model_state", "1 for the state it is in.", labels=["model", "state"])
    for state in states:
        loaded.add_metric([state.id], float(state.state == "loaded"))
        active.add_metric([state.id], state.active)
        memory.add_metric([state.id], state.footprint)
        load.add_metric([state.id], state.load_seconds or 0.0)
        restarts.add_metric([state.id], state.restarts)
        loads.add_metric([state.id], state.loads)
        evictions.add_metric([state.id], state.evictions)
        for name in STATES:
            where.add_metric([state.id, name], float(state.state == name))
    return loaded, active, memory, load, restarts, loads, evictions, where


def _of_engines(stats: Mapping[str, EngineStats]) -> Iterable[Metric]:
    named: Figures[EngineStats] = (
        ("running_requests", "Requests in the batch or its prefill.", lambda each: each.running),
        ("waiting_requests", "Requests in the queue.", lambda each: each.waiting),
        ("batch_size", "Rows that decode together.", lambda each: each.batch_size),
        ("engine_steps", "Steps of the engine.", lambda each: each.steps),
        ("kv_bytes", "KV cache of live rows.", lambda each: each.kv_bytes),
        ("kv_limit_bytes", "The most it may take.", lambda each: each.kv_limit_bytes),
        ("weight_bytes", "Weights.", lambda each: each.weight_bytes),
        ("media_encoded", "Pictures, clips and recordings encoded.", lambda each: each.media_encoded),
        ("media_reused", "Those whose features were kept.", lambda each: each.media_reused),
        ("generation_tokens_per_second", "New tokens a second.", lambda each: each.generation_tps),
        ("prompt_tokens_per_second", "Prompt tokens a second.", lambda each: each.prompt_tps),
    )
    memory = GaugeMetricFamily("pippin_memory_bytes", "Memory of arrays.", labels=["model", "kind"])
    speculation = CounterMetricFamily("pippin_draft_tokens", "Proposed tokens.", labels=["model", "fate"])
    for model, each in stats.items():
        memory.add_metric([model, "active"], each.active_bytes)
        memory.add_metric([model, "peak"], each.peak_bytes)
        memory.add_metric([model, "cache"], each.cached_bytes)
        speculation.add_metric([model, "accepted"], each.accepted_tokens)
        speculation.add_metric([model, "rejected"], each.draft_tokens - each.accepted_tokens)
    return [*_for_each_model(named, stats), memory, speculation]


def _of_caches(caches: Mapping[str, CacheStats]) -> Iterable[Metric]:
    named: Figures[CacheStats] = (
        ("cache_hits", "Prompts with a cached beginning.", lambda each: each.hits),
        ("cache_misses", "Prompts without.", lambda each: each.misses),
        ("cache_evictions", "Blocks dropped.", lambda each: each.evictions),
        ("cache_hit_tokens", "Prompt tokens not computed.", lambda each: each.hit_tokens),
        ("cache_entries", "Blocks held.", lambda each: each.entries),
        ("cache_bytes", "Memory held.", lambda each: each.bytes),
        ("cache_limit_bytes", "The most it may hold.", lambda each: each.limit_bytes),
        ("cache_hit_ratio", "Cached share of prompt tokens.", hit_ratio),
        ("cache_utilization_ratio", "Share of its memory in use.", utilization),
        ("cache_disk_hits", "Reads from the disk tier.", lambda each: each.disk_hits),
        ("cache_disk_bytes", "Disk held.", lambda each: each.disk_bytes),
    )
    tiers = CounterMetricFamily("pippin_cache_hits_by_tier", "Hits by tier.", labels=["model", "tier"])
    for model, each in caches.items():
        tiers.add_metric([model, "memory"], each.hits - each.disk_hits)
        tiers.add_metric([model, "disk"], each.disk_hits)
    return [*_for_each_model(named, caches), tiers]


def _for_each_model(figures: Figures[Stats], stats: Mapping[str, Stats]) -> list[Metric]:
    families: list[Metric] = []
    for name, text, read in figures:
        family = GaugeMetricFamily(f"pippin_{name}", text, labels=["model"])
        for model, each in stats.items():
            family.add_metric([model], read(each))
        families.append(family)
    return families


def mcp_gauges(servers: ToolServers) -> list[Metric]:
    """Under their own names and those of vllm-mlx."""
    connected = sum(connection.state == "connected" for connection in servers.connections)
    named = (
        ("mcp_connected_servers", "MCP servers that are connected.", connected),
        ("mcp_total_servers", "MCP servers that are set up.", len(servers.connections)),
        ("mcp_tools_available", "Their tools that may be used.", len(servers.tools())),
    )
    return [
        GaugeMetricFamily(f"{prefix}_{name}", text, value=value)
        for name, text, value in named
        for prefix in ("pippin", "vllm_mlx")
    ]

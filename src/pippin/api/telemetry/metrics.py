"""Metrics for Prometheus: counts and times of requests, and the state of models at each scrape.

Only imported if the operator enables metrics: the library takes a fifth of a second to import.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Final, TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from pippin.api.answers.answer import FIGURES, Observer, RequestObserver, Row, Used
from pippin.core.decoding import from_json
from pippin.core.errors import ErrorKind
from pippin.core.events import Accepted, Ending, Event, Failed, Finished, PartDelta
from pippin.core.models import CacheStats, EngineStats, LoadState, ModelState
from pippin.mcp.tools import ToolServers

LABELS: Final = 200
"""The most values of a label; later ones count as `other`."""

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods of HTTP; any other word counts as `other`."""

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAPS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

VLLM_MLX_NAMES: Final = from_json(
    resources.files(__package__).joinpath("vllm_mlx_names.json").read_bytes(), dict[str, str]
)
"""The names that vllm-mlx documents for the same metrics."""


class Metrics(Observer):
    """Counts and times every request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        kinds, model = ("kind", "model"), ("model",)
        self.requests = self._counter("requests", "Requests by how they ended.", (*kinds, "outcome"))
        self.errors = self._counter("errors", "Failed requests by kind of error.", ("kind",))
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens.", model)
        self.cached_tokens = self._counter("cached_prompt_tokens", "Of them, from the prefix cache.", model)
        self.completion_tokens = self._counter("completion_tokens", "New tokens.", model)
        self.reasoning_tokens = self._counter("reasoning_tokens", "Of them, reasoning.", model)
        self.http_requests = self._counter("http_requests", "HTTP exchanges.", ("method", "path", "status"))
        self.http_seconds = self._histogram(
            "http_request_duration_seconds", "Seconds of HTTP exchanges.", ("method", "path"), SECONDS
        )
        self.in_flight = Gauge(
            "pippin_requests_in_flight", "Requests to models that run now.", registry=self.registry
        )
        self.seconds = self._histogram("request_seconds", "Seconds from start to end.", kinds, SECONDS)
        self.queue = self._histogram("queue_seconds", "Seconds in the model's queue.", model, SECONDS)
        self.first = self._histogram(
            "time_to_first_token_seconds", "Seconds to the first piece of an answer.", model, SECONDS
        )
        self.gap = self._histogram("inter_token_seconds", "Seconds between tokens.", model, GAPS)
        self._labels: set[str] = set()

    def request(self, operation: str, model: str, *, stream: bool) -> "MeteredRequest":
        return MeteredRequest(self, operation, self._bounded(model))

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        self.http_requests.labels(method, path, str(status)).inc()
        self.http_seconds.labels(method, path).observe(seconds)

    def render(self, gauges: Iterable[Metric] = ()) -> bytes:
        """Prometheus text of all counts, and of `gauges` that were read just now."""
        return generate_latest(_Families([*self.registry.collect(), *gauges]))

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"pippin_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"pippin_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _bounded(self, model: str) -> str:
        """The model as a label. Clients name models as they like; a label for each name would leak memory."""
        if model not in self._labels and len(self._labels) >= LABELS:
            return "other"
        self._labels.add(model)
        return model


class MeteredRequest(RequestObserver):
    def __init__(self, metrics: Metrics, operation: str, model: str) -> None:
        self._metrics = metrics
        self._operation, self._model = operation, model
        self._started = time.perf_counter()
        self._last: float | None = None
        self._completed: dict[int, int] = {}
        self._outcome = "cancelled"
        metrics.in_flight.inc()

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        self._metrics.prompt_tokens.labels(self._model).inc(sum(each.prompt_tokens for each in accepted))

    def events(self, events: Sequence[Event]) -> None:
        now = time.perf_counter()
        tokens = 0
        for event in events:
            if isinstance(event, PartDelta):
                before = self._completed.get(event.choice, 0)
                tokens += max(event.completed - before, 0 if event.completed else 1)
                self._completed[event.choice] = max(event.completed, before)
            elif isinstance(event, Finished):
                self._finish(event)
            elif isinstance(event, Ending) and not isinstance(event, Failed):
                self._outcome = "stop"
        if tokens:
            self._time(now, tokens)

    def failed(self, kind: ErrorKind) -> None:
        self._outcome = "cancelled" if kind == "cancelled" else "failed"
        self._metrics.errors.labels(kind).inc()

    def closed(self) -> None:
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(self._operation, self._model, self._outcome).inc()
        seconds = time.perf_counter() - self._started
        self._metrics.seconds.labels(self._operation, self._model).observe(seconds)

    def _time(self, now: float, tokens: int) -> None:
        if self._last is None:
            self._metrics.first.labels(self._model).observe(now - self._started)
        else:
            gap = (now - self._last) / tokens
            histogram = self._metrics.gap.labels(self._model)
            for _ in range(min(tokens, 64)):
                histogram.observe(gap)
        self._last = now

    def _finish(self, finished: Finished) -> None:
        self._outcome = finished.reason
        usage = finished.usage
        self._metrics.completion_tokens.labels(self._model).inc(usage.completion_tokens)
        self._metrics.reasoning_tokens.labels(self._model).inc(usage.reasoning_tokens)
        if finished.choice == 0:
            self._metrics.cached_tokens.labels(self._model).inc(usage.cached_tokens)
            self._metrics.queue.labels(self._model).observe(finished.timings.queue / 1000)


class _Families:
    """What `generate_latest` reads: each family, and a copy under vllm-mlx's name."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield family
            if (name := VLLM_MLX_NAMES.get(family.name)) is not None:
                twin = Metric(name, family.documentation, family.type)
                for sample in family.samples:
                    twin.samples.append(sample._replace(name=sample.name.replace(family.name, name, 1)))
                yield twin


Stats = TypeVar("Stats")
Figures = tuple[tuple[str, str, Callable[[Stats], float]], ...]
"""Names of gauges, their help texts, and the functions that read them."""


def gauges(states: Sequence[ModelState], stats: Mapping[str, EngineStats], uptime: float) -> list[Metric]:
    return [
        GaugeMetricFamily("pippin_uptime_seconds", "Seconds since the start.", value=uptime),
        GaugeMetricFamily("pippin_models_known", "Models that were in use.", value=len(states)),
        *_of_models(states),
        *_of_engines(stats),
        *_of_caches({model: each.cache for model, each in stats.items()}),
        GaugeMetricFamily("vllm_mlx_engine_is_mllm", "Always 0: one engine runs all.", value=0),
        _only("vllm_mlx_engine_type", "Always batched.", "batched"),
        _only("vllm_mlx_cache_type", "Always one that is sized in bytes.", "memory_aware_cache"),
    ]


def _only(name: str, text: str, value: str) -> Metric:
    """A gauge of vllm-mlx that tells which of several values holds, as `label="value"` with 1; constant here."""
    label = name.removeprefix("vllm_mlx_")
    family = GaugeMetricFamily(name, text, labels=[label])
    family.add_metric([value], 1)
    return family


def _of_models(states: Sequence[ModelState]) -> Iterable[Metric]:
    figures: Figures[ModelState] = (
        ("model_loaded", "1 for a model in memory.", lambda each: float(each.state == "loaded")),
        ("model_active_requests", "Requests that hold it.", lambda each: each.active),
        ("model_footprint_bytes", "Memory it takes.", lambda each: each.footprint),
        ("model_load_seconds", "Seconds its last load took.", lambda each: each.load_seconds or 0.0),
    )
    counts: Figures[ModelState] = (
        ("worker_restarts", "Starts after a death.", lambda each: each.restarts),
        ("model_loads", "Loads that succeeded.", lambda each: each.loads),
        ("model_evictions", "Unloads to make room.", lambda each: each.evictions),
    )
    where = GaugeMetricFamily("pippin_model_state", "1 for the state it is in.", labels=["model", "state"])
    for state in states:
        for name in get_args(LoadState):
            where.add_metric([state.id, name], float(state.state == name))
    by_id = {state.id: state for state in states}
    return [*_for_each_model(figures, by_id), *_for_each_model(counts, by_id, CounterMetricFamily), where]


def _of_engines(stats: Mapping[str, EngineStats]) -> Iterable[Metric]:
    named: Figures[EngineStats] = (
        ("running_requests", "Requests in the batch or its prefill.", lambda each: each.running),
        ("waiting_requests", "Requests in the queue.", lambda each: each.waiting),
        ("batch_size", "Rows that decode together.", lambda each: each.batch_size),
        ("engine_steps", "Steps of the engine.", lambda each: each.steps),
        ("kv_bytes", "KV cache of live rows.", lambda each: each.kv_bytes),
        ("kv_limit_bytes", "The most it may take.", lambda each: each.kv_limit_bytes),
        ("weight_bytes", "Weights.", lambda each: each.weight_bytes),
        ("forced_tokens", "Tokens that a grammar left no choice about.", lambda each: each.forced_tokens),
        ("media_encoded", "Pictures, clips and recordings encoded.", lambda each: each.media_encoded),
        ("media_reused", "Those whose features were kept.", lambda each: each.media_reused),
        ("generation_tokens_per_second", "New tokens a second.", lambda each: each.generation_tps),
        ("prompt_tokens_per_second", "Prompt tokens a second.", lambda each: each.prompt_tps),
    )
    memory = GaugeMetricFamily("pippin_memory_bytes", "Memory of arrays.", labels=["model", "kind"])
    speculation = CounterMetricFamily("pippin_draft_tokens", "Proposed tokens.", labels=["model", "fate"])
    said = "Time in which tokens were proposed, without the steps that judge them."
    drafting = CounterMetricFamily("pippin_draft_seconds", said, labels=["model"])
    for model, each in stats.items():
        memory.add_metric([model, "active"], each.active_bytes)
        memory.add_metric([model, "peak"], each.peak_bytes)
        memory.add_metric([model, "cache"], each.cached_bytes)
        drafting.add_metric([model], each.draft_seconds)
        speculation.add_metric([model, "accepted"], each.accepted_tokens)
        speculation.add_metric([model, "rejected"], each.draft_tokens - each.accepted_tokens)
    return [*_for_each_model(named, stats), memory, speculation, drafting]


def _of_caches(caches: Mapping[str, CacheStats]) -> Iterable[Metric]:
    named: Figures[CacheStats] = (
        ("cache_hits", "Prompts with a cached beginning.", lambda each: each.hits),
        ("cache_misses", "Prompts without.", lambda each: each.misses),
        ("cache_evictions", "Blocks dropped.", lambda each: each.evictions),
        ("cache_hit_tokens", "Prompt tokens not computed.", lambda each: each.hit_tokens),
        ("cache_entries", "Blocks held.", lambda each: each.entries),
        ("cache_bytes", "Memory held.", lambda each: each.bytes),
        ("cache_limit_bytes", "The most it may hold.", lambda each: each.limit_bytes),
        ("cache_hit_ratio", "Cached share of prompt tokens.", lambda each: each.hit_ratio),
        ("cache_utilization_ratio", "Share of its memory in use.", lambda each: each.utilization),
        ("cache_disk_hits", "Reads from the disk tier.", lambda each: each.disk_hits),
        ("cache_disk_bytes", "Disk held.", lambda each: each.disk_bytes),
    )
    tiers = CounterMetricFamily("pippin_cache_hits_by_tier", "Hits by tier.", labels=["model", "tier"])
    for model, each in caches.items():
        tiers.add_metric([model, "memory"], each.hits - each.disk_hits)
        tiers.add_metric([model, "disk"], each.disk_hits)
    return [*_for_each_model(named, caches), tiers]


def _for_each_model(
    figures: Figures[Stats],
    stats: Mapping[str, Stats],
    kind: type[GaugeMetricFamily | CounterMetricFamily] = GaugeMetricFamily,
) -> list[Metric]:
    families: list[Metric] = []
    for name, text, read in figures:
        family = kind(f"pippin_{name}", text, labels=["model"])
        for model, each in stats.items():
            family.add_metric([model], read(each))
        families.append(family)
    return families


def usage_counters(used: Mapping[Row, Used]) -> Iterator[Metric]:
    """What each key has used of each model over the server's life."""
    for name in FIGURES:
        family = CounterMetricFamily(
            f"pippin_usage_{name}", "Over the server's life.", labels=["key", "model"]
        )
        for row, figures in used.items():
            family.add_metric(row, getattr(figures, name))
        yield family


def mcp_gauges(servers: ToolServers) -> list[Metric]:
    """Gauges of MCP servers, under Pippin's names and those of vllm-mlx."""
    named = (
        ("mcp_connected_servers", "MCP servers that are connected.", servers.connected),
        ("mcp_total_servers", "MCP servers that are set up.", len(servers.connections)),
        ("mcp_tools_available", "Their tools that may be used.", len(servers.tools())),
    )
    return [
        GaugeMetricFamily(f"{prefix}_{name}", text, value=value)
        for name, text, value in named
        for prefix in ("pippin", "vllm_mlx")
    ]

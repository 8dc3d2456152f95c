"""Counts and times every request, for Prometheus."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from pippin.core.errors import ErrorKind
from pippin.core.events import TERMINAL, Accepted, Event, Failed, Finished, PartDelta

LABELS: Final = 200
"""Values that a label may take; what comes later counts as `other`."""

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
GAPS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)

VLLM_MLX_NAMES: Final = {
    "pippin_http_requests": "vllm_mlx_http_requests",
    "pippin_http_request_duration_seconds": "vllm_mlx_http_request_duration_seconds",
    "pippin_requests_in_flight": "vllm_mlx_http_requests_in_flight",
    "pippin_requests": "vllm_mlx_inference_requests",
    "pippin_request_seconds": "vllm_mlx_inference_request_duration_seconds",
    "pippin_time_to_first_token_seconds": "vllm_mlx_inference_ttft_seconds",
    "pippin_prompt_tokens": "vllm_mlx_prompt_tokens",
    "pippin_completion_tokens": "vllm_mlx_completion_tokens",
    "pippin_model_loaded": "vllm_mlx_model_loaded",
    "pippin_waiting_requests": "vllm_mlx_scheduler_waiting_requests",
    "pippin_running_requests": "vllm_mlx_scheduler_running_requests",
    "pippin_engine_steps": "vllm_mlx_engine_steps_executed",
    "pippin_uptime_seconds": "vllm_mlx_engine_uptime_seconds",
    "pippin_memory_bytes": "vllm_mlx_metal_memory_bytes",
    "pippin_cache_entries": "vllm_mlx_cache_entry_count",
    "pippin_cache_hits": "vllm_mlx_cache_hits",
    "pippin_cache_misses": "vllm_mlx_cache_misses",
    "pippin_cache_evictions": "vllm_mlx_cache_evictions",
    "pippin_cache_hit_ratio": "vllm_mlx_cache_hit_rate",
    "pippin_cache_utilization_ratio": "vllm_mlx_cache_utilization_ratio",
    "pippin_cache_bytes": "vllm_mlx_cache_memory_bytes",
    "pippin_cache_limit_bytes": "vllm_mlx_cache_memory_limit_bytes",
    "pippin_cache_hit_tokens": "vllm_mlx_cache_tokens_saved",
    "pippin_models_known": "vllm_mlx_model_registry_entries",
    "pippin_model_active_requests": "vllm_mlx_model_registry_active_owners",
}
"""The same figures under the names that vllm-mlx documents."""


class Metrics:
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

    def request(self, kind: str, model: str, *, stream: bool) -> "MeteredRequest":
        return MeteredRequest(self, kind, self._bounded(model))

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        self.http_requests.labels(method, path, str(status)).inc()
        self.http_seconds.labels(method, path).observe(seconds)

    def render(self, gauges: Iterable[Metric] = ()) -> bytes:
        """Prometheus text of everything counted, and of `gauges` that were read just now."""
        return generate_latest(_Families([*self.registry.collect(), *gauges]))

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        return Counter(f"pippin_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        return Histogram(f"pippin_{name}", text, labels, buckets=buckets, registry=self.registry)

    def _bounded(self, model: str) -> str:
        """Clients name models as they like; a label for each would be a leak."""
        if model not in self._labels and len(self._labels) >= LABELS:
            return "other"
        self._labels.add(model)
        return model


class MeteredRequest:
    def __init__(self, metrics: Metrics, kind: str, model: str) -> None:
        self._metrics = metrics
        self._kind, self._model = kind, model
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
            elif isinstance(event, TERMINAL) and not isinstance(event, Failed):
                self._outcome = "stop"
        if tokens:
            self._time(now, tokens)

    def failed(self, kind: ErrorKind) -> None:
        self._outcome = "cancelled" if kind == "cancelled" else "failed"
        self._metrics.errors.labels(kind).inc()

    def closed(self) -> None:
        self._metrics.in_flight.dec()
        self._metrics.requests.labels(self._kind, self._model, self._outcome).inc()
        seconds = time.perf_counter() - self._started
        self._metrics.seconds.labels(self._kind, self._model).observe(seconds)

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
    """What `generate_latest` reads: each family, and again under its other name."""

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

"""OpenTelemetry traces of requests, where the library is installed and its SDK set up by the operator.

Spans carry names and figures, never what was asked or answered. Attribute names are those of the semantic
conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

from pippin.api.watching.observer import Observer, RequestObserver
from pippin.core.errors import ErrorKind
from pippin.core.events import Accepted, Event, Finished, PartDelta


def traced(observer: Observer) -> Observer:
    """The observer, and traces beside it where they can be made."""
    try:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            return observer
    except ModuleNotFoundError:  # not even the package around it
        return observer
    from opentelemetry import trace

    return TracingObserver(observer, trace.get_tracer("pippin"))


class TracingObserver:
    def __init__(self, inner: Observer, tracer: Any) -> None:
        self.inner = inner
        self._tracer = tracer

    def request(self, kind: str, model: str, *, stream: bool) -> RequestObserver:
        span = self._tracer.start_span(
            f"{kind} {model}",
            attributes={
                "gen_ai.operation.name": kind,
                "gen_ai.provider.name": "pippin",
                "gen_ai.request.model": model,
                "pippin.stream": stream,
            },
        )
        return TracedRequest(self.inner.request(kind, model, stream=stream), span)

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        self.inner.http(method, path, status, seconds)


class TracedRequest:
    def __init__(self, inner: RequestObserver, span: Any) -> None:
        self._inner = inner
        self._span = span
        self._begun = False

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        self._inner.accepted(accepted)
        self._span.add_event("accepted")
        self._span.set_attribute("gen_ai.usage.input_tokens", sum(each.prompt_tokens for each in accepted))

    def events(self, events: Sequence[Event]) -> None:
        self._inner.events(events)
        for event in events:
            match event:
                case PartDelta() if not self._begun:
                    self._begun = True
                    self._span.add_event("first token")
                case Finished(reason=reason, usage=usage, timings=times):
                    self._span.set_attributes(
                        {
                            "gen_ai.response.finish_reasons": [reason],
                            "gen_ai.usage.output_tokens": usage.completion_tokens,
                            "pippin.cached_tokens": usage.cached_tokens,
                            "pippin.queue_ms": times.queue,
                            "pippin.prefill_ms": times.prefill,
                            "pippin.decode_ms": times.decode,
                        }
                    )
                case _:
                    pass

    def failed(self, kind: ErrorKind) -> None:
        self._inner.failed(kind)
        self._span.set_attribute("error.type", kind)

    def closed(self) -> None:
        self._inner.closed()
        self._span.end()

"""The one interface through which requests of every dialect and kind are observed, and tracing with OpenTelemetry.

Traces are made if the library is installed and the operator has set up its SDK. Spans carry names and figures, never
prompts or answers. Attribute names are those of the semantic conventions for generative AI
(https://opentelemetry.io/docs/specs/semconv/gen-ai/).
"""

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

from pippin.core.errors import ErrorKind
from pippin.core.events import Accepted, Event, Finished, PartDelta


class RequestObserver(Protocol):
    """Is told of one request's life, in order; `closed` is always the last call."""

    def accepted(self, accepted: Sequence[Accepted]) -> None: ...

    def events(self, events: Sequence[Event]) -> None:
        """Events have come: all those of one wake-up of the event loop."""
        ...

    def failed(self, kind: ErrorKind) -> None: ...

    def closed(self) -> None: ...


class Observer(Protocol):
    def request(self, operation: str, model: str, *, stream: bool) -> RequestObserver:
        """A request begins; `operation` names the dialect or the endpoint: `chat_completions`, `rerank`."""
        ...

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        """An HTTP exchange ended."""
        ...


class Unobserved:
    """The observer of the server and of each request if nothing is counted."""

    def request(self, operation: str, model: str, *, stream: bool) -> "Unobserved":
        return self

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        pass

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        pass

    def events(self, events: Sequence[Event]) -> None:
        pass

    def failed(self, kind: ErrorKind) -> None:
        pass

    def closed(self) -> None:
        pass


def traced(observer: Observer) -> Observer:
    """An observer that adds traces to `observer` if OpenTelemetry's SDK is installed; else `observer` itself."""
    try:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            return observer
    except ModuleNotFoundError:  # not even the parent package is there
        return observer
    from opentelemetry import trace

    return TracingObserver(observer, trace.get_tracer("pippin"))


class TracingObserver:
    """Makes a span for each request, and forwards each call to another observer."""

    def __init__(self, inner: Observer, tracer: Any) -> None:
        self.inner = inner
        self._tracer = tracer

    def request(self, operation: str, model: str, *, stream: bool) -> RequestObserver:
        span = self._tracer.start_span(
            f"{operation} {model}",
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "pippin",
                "gen_ai.request.model": model,
                "pippin.stream": stream,
            },
        )
        return TracedRequest(self.inner.request(operation, model, stream=stream), span)

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

"""The one seam through which every request of every kind is observed."""

from typing import Protocol

from pippin.core.errors import ErrorKind
from pippin.core.events import Timings, Usage


class RequestObserver(Protocol):
    """Told of one request's life, in order. `None` of these may raise."""

    def accepted(self, prompt_tokens: int) -> None: ...

    def delta(self, completed: int) -> None:
        """Tokens reached the API server; `completed` counts those of the choice so far."""
        ...

    def finished(self, usage: Usage, timings: Timings, reason: str) -> None:
        """The end of one choice."""
        ...

    def failed(self, kind: ErrorKind) -> None: ...

    def closed(self) -> None:
        """Always the last call."""
        ...


class Observer(Protocol):
    def request(self, dialect: str, model: str, *, stream: bool) -> RequestObserver: ...

    def http(self, method: str, path: str, status: int, seconds: float) -> None: ...

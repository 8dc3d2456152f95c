"""The one interface through which requests of every dialect and kind are observed."""

from collections.abc import Sequence
from typing import Protocol

from pippin.core.errors import ErrorKind
from pippin.core.events import Accepted, Event


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

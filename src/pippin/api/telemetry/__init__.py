"""How requests and engines are counted and timed."""

from collections.abc import Sequence

from pippin.core.errors import ErrorKind
from pippin.core.events import Accepted, Event


class RequestObserver:
    """Is told of one request's life, in order; `closed` is always the last call. This one counts nothing."""

    def accepted(self, accepted: Sequence[Accepted]) -> None:
        pass

    def events(self, events: Sequence[Event]) -> None:
        """Events have come: all those of one wake-up of the event loop."""

    def failed(self, kind: ErrorKind) -> None:
        pass

    def closed(self) -> None:
        pass


class Observer:
    """Is told of all requests; this one counts nothing."""

    def request(self, operation: str, model: str, *, stream: bool) -> RequestObserver:
        """A request begins; `operation` names the dialect or the endpoint: `chat_completions`, `rerank`."""
        return RequestObserver()

    def http(self, method: str, path: str, status: int, seconds: float) -> None:
        """An HTTP exchange ended."""

"""Whether anybody still waits for the work of a thread, so that long work can end when its client has left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_still_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("still_wanted", default=None)


class NobodyWaitsError(Exception):
    """The request was cancelled while it was prepared."""


@contextmanager
def wanted_while(still_wanted: Callable[[], bool]) -> Iterator[None]:
    """Let `check_wanted` on this thread ask `still_wanted` within this context."""
    token = _still_wanted.set(still_wanted)
    try:
        yield
    finally:
        _still_wanted.reset(token)


def check_wanted() -> None:
    """Raises `NobodyWaitsError` if nobody waits any more. Long work calls this now and then."""
    still_wanted = _still_wanted.get()
    if still_wanted is not None and not still_wanted():
        raise NobodyWaitsError

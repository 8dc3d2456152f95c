"""Whether anybody still waits for what a thread prepares, so that long work can end when its client has left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_still_wanted: ContextVar[Callable[[], bool] | None] = ContextVar("still_wanted", default=None)


class NobodyWaitsError(Exception):
    """The request was cancelled while it was prepared."""


@contextmanager
def wanted_while(still_wanted: Callable[[], bool]) -> Iterator[None]:
    """What this thread does within is wanted as long as `still_wanted` says so."""
    token = _still_wanted.set(still_wanted)
    try:
        yield
    finally:
        _still_wanted.reset(token)


def check_wanted() -> None:
    """To be called now and then by long work. Raises `NobodyWaitsError`."""
    still_wanted = _still_wanted.get()
    if still_wanted is not None and not still_wanted():
        raise NobodyWaitsError

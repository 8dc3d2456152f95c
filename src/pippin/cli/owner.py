"""A server that ends with the process that started it, however that process ends.

The two share a pipe, of which the owner holds the writing end and never writes: the kernel closes that end even for a
process that is killed, and the server reads the end of the pipe.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from pippin.config import environment


@dataclass(frozen=True)
class Ownership:
    """What a child is given, so that it ends with this process."""

    descriptors: tuple[int, ...]  # that it inherits
    environment: dict[str, str]


@contextlib.contextmanager
def ownership() -> Iterator[Ownership]:
    """Own children that are started within this context; they end at its end, or with this process."""
    reading, writing = os.pipe()
    try:
        yield Ownership((reading,), environment.owned_by(reading))
    finally:
        os.close(reading)
        os.close(writing)


def end_with_owner() -> None:
    """End this process, as SIGTERM does, when the one that owns it is gone; do nothing where none does."""
    descriptor = environment.owner()
    if descriptor is None:
        return
    os.set_inheritable(descriptor, False)  # children of this process must not be taken for it
    threading.Thread(target=_watch, args=(descriptor,), name="owner", daemon=True).start()


def _watch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

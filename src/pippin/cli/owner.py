"""Ends a server together with the process that started it, however that process ends.

The two share a pipe. The owner holds the write end and never writes; the kernel closes it even if the owner is killed,
and the server then reads end of file.
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
    """The descriptors and variables with which a child ends together with this process."""

    descriptors: tuple[int, ...]  # inherited by the child
    environment: dict[str, str]


@contextlib.contextmanager
def ownership() -> Iterator[Ownership]:
    """Own the children started in this context; they end with the context or with this process."""
    reading, writing = os.pipe()
    try:
        yield Ownership((reading,), environment.owned_by(reading))
    finally:
        os.close(reading)
        os.close(writing)


def end_with_owner() -> None:
    """Send this process SIGTERM when its owner is gone. Does nothing if it has no owner."""
    descriptor = environment.owner()
    if descriptor is None:
        return
    os.set_inheritable(descriptor, False)  # children of this process must not watch the owner too
    threading.Thread(target=_watch, args=(descriptor,), name="owner", daemon=True).start()


def _watch(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.read(descriptor, 1)
        os.kill(os.getpid(), signal.SIGTERM)

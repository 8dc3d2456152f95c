"""A worker whose API server is on another machine: its link runs over the input and output of a program (ssh)."""

import os
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

READ_SIZE: Final = 1 << 16


@dataclass(frozen=True)
class Pipes:
    """This process's standard input and output, bridged to the far end of `link`."""

    link: socket.socket
    writing: threading.Thread

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything sent has been written. Nothing can be sent afterwards."""
        with suppress(OSError):  # already closed
            self.link.shutdown(socket.SHUT_WR)
        self.writing.join(seconds)


def over_pipes() -> Pipes:
    """The link of a worker that a program runs here. From now on, prints go to standard error."""
    ours, theirs = socket.socketpair()
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(
        target=_read, args=(os.dup(sys.stdin.fileno()), theirs), name="far in", daemon=True
    ).start()
    writing = threading.Thread(target=_write, args=(theirs, output), name="far out", daemon=True)
    writing.start()
    return Pipes(ours, writing)


def _read(source: int, target: socket.socket) -> None:
    """Forward the input to its end; the worker then reads the end of its orders, and exits."""
    with suppress(OSError):
        while data := os.read(source, READ_SIZE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _write(source: socket.socket, target: int) -> None:
    """Forward what the worker sends, until it ends the link."""
    with suppress(OSError):
        while data := source.recv(READ_SIZE):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    with suppress(OSError):
        os.close(target)

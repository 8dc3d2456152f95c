"""A worker whose API server is on another machine: its socket goes through the input and output of a program (ssh)."""

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
    """This process's standard input and output, which are the other end of `socket`."""

    socket: socket.socket
    out: threading.Thread

    def finish(self, seconds: float) -> None:
        """Wait until all that was sent has been written, at most so long. Nothing can be sent after it."""
        with suppress(OSError):  # it was closed
            self.socket.shutdown(socket.SHUT_WR)
        self.out.join(seconds)


def over_pipes() -> Pipes:
    """The link of a worker that a program brings here. What is printed goes to the errors from now on."""
    ours, theirs = socket.socketpair()
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    heard = os.dup(sys.stdin.fileno())
    threading.Thread(target=_bring, args=(heard, theirs), name="far in", daemon=True).start()
    out = threading.Thread(target=_take, args=(theirs, said), name="far out", daemon=True)
    out.start()
    return Pipes(ours, out)


def _bring(source: int, target: socket.socket) -> None:
    with suppress(OSError):
        while data := os.read(source, READ_SIZE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)  # the worker reads the end of its orders, and leaves


def _take(source: socket.socket, target: int) -> None:
    with suppress(OSError):
        while data := source.recv(READ_SIZE):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    with suppress(OSError):
        os.close(target)

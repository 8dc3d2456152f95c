"""A worker whose API server is on another machine: its socket goes through the input and output of a program (ssh)."""

import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Final

READ_SIZE: Final = 1 << 16


def over_pipes() -> socket.socket:
    """A socket whose other end is this process's standard input and output. What is printed goes to the errors."""
    ours, theirs = socket.socketpair()
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    heard = os.dup(sys.stdin.fileno())
    threading.Thread(target=_bring, args=(heard, theirs), name="far in", daemon=True).start()
    threading.Thread(target=_take, args=(theirs, said), name="far out", daemon=True).start()
    return ours


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

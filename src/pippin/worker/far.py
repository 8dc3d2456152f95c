"""A worker whose API server is on another machine: its links go through the input and output of a program (ssh).

One API process sends the frames of its link; several have their links carried in parcels (`core/link.py`), which
become sockets here, so that the worker is shared as on the server's own machine.
"""

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pippin.core.link import GUEST_BYTES, OWNER, PARCELS, FrameError, ParcelBuffer, parcel

READ_SIZE: Final = 1 << 16


@dataclass(frozen=True)
class Pipes:
    """This process's standard input and output, which are the other ends of `link` and `door`."""

    link: socket.socket
    door: socket.socket  # through which guests come in
    carrying: "Carrying"

    def finish(self, seconds: float) -> None:
        """Wait until all that was sent has been written, at most so long. Nothing can be sent after it."""
        with suppress(OSError):  # it was closed
            self.link.shutdown(socket.SHUT_WR)
        self.carrying.finish(seconds)


class Carrying:
    """The threads that move bytes between this process's input and output and the worker's sockets."""

    def __init__(self, heard: int, said: int, owner: socket.socket, door: socket.socket) -> None:
        """`heard`, `said`: descriptors of the input and output. `owner` and `door` are the worker's other ends."""
        self._heard = heard
        self._said = said
        self._door = door
        self._links: dict[int, socket.socket] = {OWNER: owner}
        self._begun = threading.Event()  # it is known whether parcels come
        self._parcels = False
        self._writing = threading.Lock()
        self._gone: set[int] = set()
        self._takers: dict[int, threading.Thread] = {}
        threading.Thread(target=self._bring, name="far in", daemon=True).start()
        self._start_to_take(OWNER, owner)

    def finish(self, seconds: float) -> None:
        """Wait until all is written of links whose other ends have said their last, at most so long."""
        deadline = time.monotonic() + seconds
        for taker in list(self._takers.values()):
            taker.join(max(0.0, deadline - time.monotonic()))

    def _bring(self) -> None:
        """Read the input to its end."""
        first = b""
        with suppress(OSError, FrameError):
            while len(first) < len(PARCELS) and (data := os.read(self._heard, READ_SIZE)):
                first += data
            self._parcels = first.startswith(PARCELS)
            self._begun.set()
            if self._parcels:
                self._open(first[len(PARCELS) :])
            else:
                self._pass_on(first)
        self._begun.set()
        for link in list(self._links.values()):
            with suppress(OSError):
                link.shutdown(socket.SHUT_WR)  # the worker reads the end of its orders, and leaves

    def _pass_on(self, data: bytes) -> None:
        while data:
            self._links[OWNER].sendall(data)
            data = os.read(self._heard, READ_SIZE)

    def _open(self, data: bytes) -> None:
        buffer = ParcelBuffer()
        while True:
            for whose, content in buffer.feed(data):
                self._give(whose, content)
            data = os.read(self._heard, READ_SIZE)
            if not data:
                return

    def _give(self, whose: int, content: bytes) -> None:
        link = self._links.get(whose)
        if link is None and content and whose not in self._gone:
            link = self._welcome(whose)
        if link is not None:
            with suppress(OSError):  # the worker has given this one up
                link.sendall(content) if content else link.shutdown(socket.SHUT_WR)

    def _welcome(self, whose: int) -> socket.socket:
        """A new guest's link, which goes to the worker through its door."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._door, [whose.to_bytes(GUEST_BYTES, "big")], [theirs.fileno()])
        self._links[whose] = ours
        self._start_to_take(whose, ours)
        return ours

    def _start_to_take(self, whose: int, source: socket.socket) -> None:
        taker = threading.Thread(target=self._take, args=(whose, source), name="far out", daemon=True)
        self._takers[whose] = taker
        taker.start()

    def _take(self, whose: int, source: socket.socket) -> None:
        """Write what the worker says over one of its links, until it ends it."""
        self._begun.wait()
        with suppress(OSError):
            while data := source.recv(READ_SIZE):
                self._write(parcel(whose, data) if self._parcels else data)
            if whose != OWNER:
                self._write(parcel(whose, b""))
        if whose != OWNER:
            self._gone.add(whose)
            del self._links[whose], self._takers[whose]
            source.close()
        elif not self._parcels:
            with suppress(OSError):
                os.close(self._said)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        with self._writing:
            while view:
                view = view[os.write(self._said, view) :]


def over_pipes() -> Pipes:
    """The links of a worker that a program brings here. What is printed goes to the errors from now on."""
    ours, theirs = socket.socketpair()
    door, entrance = socket.socketpair()
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    heard = os.dup(sys.stdin.fileno())
    return Pipes(ours, entrance, Carrying(heard, said, theirs, door))

"""A worker whose API server is on another machine: its links run over the input and output of a program (ssh).

A single API process sends the frames of its link as they are. Several have their links multiplexed in parcels
(`core/link.py`), which are unpacked into sockets here, so that the worker is shared as it would be locally.
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
    """This process's standard input and output, bridged to the far ends of `link` and `door`."""

    link: socket.socket
    door: socket.socket  # guests come in through it
    carrying: "Carrying"

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything sent has been written. Nothing can be sent afterwards."""
        with suppress(OSError):  # already closed
            self.link.shutdown(socket.SHUT_WR)
        self.carrying.finish(seconds)


class Carrying:
    """The threads that move bytes between this process's input and output and the worker's sockets."""

    def __init__(self, heard: int, said: int, owner: socket.socket, door: socket.socket) -> None:
        """`heard` and `said` are the descriptors of input and output; `owner` and `door` the far ends of the worker's
        sockets."""
        self._heard = heard
        self._said = said
        self._door = door
        self._links: dict[int, socket.socket] = {OWNER: owner}
        self._begun = threading.Event()  # set once it is known whether parcels come
        self._parcels = False
        self._writing = threading.Lock()
        self._gone: set[int] = set()
        self._takers: dict[int, threading.Thread] = {}
        threading.Thread(target=self._bring, name="far in", daemon=True).start()
        self._start_to_take(OWNER, owner)

    def finish(self, seconds: float) -> None:
        """Wait at most `seconds` until everything that ended links had sent is written."""
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
                link.shutdown(socket.SHUT_WR)  # the worker reads the end of its orders and exits

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
            with suppress(OSError):  # the worker has dropped this guest
                link.sendall(content) if content else link.shutdown(socket.SHUT_WR)

    def _welcome(self, whose: int) -> socket.socket:
        """Open a new guest's link, and pass its other end to the worker through the door."""
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
        """Write what the worker sends over one link, until the worker ends the link."""
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
    """The links of a worker that a program runs here. From now on, prints go to standard error."""
    ours, theirs = socket.socketpair()
    door, entrance = socket.socketpair()
    said = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    heard = os.dup(sys.stdin.fileno())
    return Pipes(ours, entrance, Carrying(heard, said, theirs, door))

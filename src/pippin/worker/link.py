"""The worker's end of the socket to the API server.

Sending never waits while the socket has room: the frame goes out on the thread that made it. When the API
server is slow, events gather here, joined, and a thread of its own sends them as one frame once there is room
again; beyond a bound the sender waits, so that a server that reads nothing stops the engine and not the memory.
"""

import logging
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from pippin.core.decoding import from_message, message_decoder
from pippin.core.events import Event, merged
from pippin.core.frames import FrameBuffer, FrameError, frame
from pippin.core.link import Order, Output, Report
from pippin.core.models import WorkerSpec
from pippin.engines.base import Emission

log = logging.getLogger(__name__)

READ_SIZE: Final = 1 << 18  # bytes
WAITING_EVENTS: Final = 50_000  # events held for a slow server before senders wait
RECHECK: Final = 1.0  # seconds between looks at a socket that has no room


class LinkLost(Exception):
    """The API server is gone."""


class WorkerLink:
    """The socket to the API server: orders are read from it, frames of events and reports are sent on it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection
        self._encode = msgspec.msgpack.Encoder().encode
        self._room = threading.Condition()
        self._unsent = memoryview(b"")  # the rest of a frame that the socket did not take whole
        self._waiting: dict[str, list[Event]] = {}
        self._waiting_events = 0
        self._closed = False
        self._flusher: threading.Thread | None = None

    def receive_spec(self) -> WorkerSpec:
        """The spec, which is the first frame. Raises `LinkLost`.

        Exactly that frame is read, so that orders behind it stay for `orders`.
        """
        length = int.from_bytes(self._receive_exactly(4), "big")
        return from_message(self._receive_exactly(length), WorkerSpec)

    def orders(self) -> Iterator[Order]:
        """Orders until the API server closes its end. Raises `FrameError` for what is no order."""
        decoder = message_decoder(Order)
        buffer = FrameBuffer()
        while True:
            try:
                data = self._socket.recv(READ_SIZE)
            except OSError:
                return
            if not data:
                return
            for payload in buffer.feed(data):
                try:
                    yield decoder.decode(payload)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise FrameError(f"The API server sent what is no order: {error}") from error

    def send_events(self, emissions: list[Emission]) -> None:
        """Send one step's events, or join them to those that wait. Raises `LinkLost`."""
        if not emissions:
            return
        with self._room:
            self._wait_for_room()
            if self._congested:
                self._hold(emissions)
            else:
                self._send_now(frame(self._encode(Output(emissions))))

    def send(self, report: Report) -> None:
        """Send one report, behind everything sent before. Raises `LinkLost`."""
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._congested)
            self._check()
            self._send_now(frame(self._encode(report)))

    def drain(self, seconds: float) -> None:
        """Wait until everything is sent, at most so long."""
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._congested, timeout=seconds)

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify_all()
        self._socket.close()

    @property
    def _congested(self) -> bool:
        return bool(self._unsent) or bool(self._waiting)

    def _check(self) -> None:
        if self._closed:
            raise LinkLost

    def _wait_for_room(self) -> None:
        self._room.wait_for(lambda: self._closed or self._waiting_events < WAITING_EVENTS)
        self._check()

    def _hold(self, emissions: list[Emission]) -> None:
        for request, event in emissions:
            self._waiting.setdefault(request, []).append(event)
        self._waiting_events += len(emissions)

    def _send_now(self, data: bytes) -> None:
        """Give the socket what it takes; the flusher sends the rest. Holds the lock."""
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._closed = True
            self._room.notify_all()
            raise LinkLost from error
        if sent < len(data):
            self._unsent = memoryview(data)[sent:]
            self._start_flusher()

    def _start_flusher(self) -> None:
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._flush_loop, name="flush", daemon=True)
            self._flusher.start()
        else:
            self._room.notify_all()

    def _flush_loop(self) -> None:
        while not self._closed:
            with self._room:
                self._room.wait_for(lambda: self._closed or self._congested)
            if self._closed:
                return
            try:
                select.select([], [self._socket], [], RECHECK)
                with self._room:
                    self._flush_some()
            except (OSError, ValueError, LinkLost):  # closed under us
                return

    def _flush_some(self) -> None:
        if not self._unsent and self._waiting:
            held = [(request, event) for request, events in self._waiting.items() for event in merged(events)]
            self._waiting = {}
            self._waiting_events = 0
            self._send_now(frame(self._encode(Output(held))))
        elif self._unsent:
            rest = self._unsent
            self._unsent = memoryview(b"")
            self._send_now(bytes(rest))
        if not self._congested:
            self._room.notify_all()

    def _receive_exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                raise LinkLost
            data += piece
        return bytes(data)


def read_orders(link: WorkerLink, handle: Callable[[Order], None], lost: Callable[[], None]) -> None:
    """Hand every order over; the body of the reader thread. Ends by calling `lost`."""
    try:
        for order in link.orders():
            handle(order)
    except FrameError as error:
        log.error("%s The worker ends.", error)
    finally:
        lost()

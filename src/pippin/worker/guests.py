"""Links to further API processes that share the worker, each with requests of its own.

The worker's first link belongs to its owner, which loads, reconfigures and ends the worker. A guest may only submit and
cancel requests over its own link, and receives their events directly, so sharing adds no hop to a token. The owner
sends the sockets of guests over another socket, the door.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from pippin.core.link import GUEST_BYTES, Cancel, FrameError, Order, Submit, guest_of
from pippin.engines.base import Emission
from pippin.worker.loop import GuestLeft, LinkLost, WorkerLink

log = logging.getLogger(__name__)

MOST_WAITING: Final = 50_000
"""Events held for a guest that does not read. Beyond that the guest is dropped: the engine must not wait for one
guest."""
AT_ONCE: Final = 4  # sockets in one message


class Guest(WorkerLink):
    """The link to one guest. It is lost when the guest does not read for too long."""

    def _wait_for_room(self) -> None:
        if self._waiting_events >= MOST_WAITING:
            log.warning("An API process reads nothing of its answers: its requests are ended.")
            self._closed = True
            self._room.notify_all()
            self.shut()
        self._check()

    def say_no_more(self) -> None:
        """Send nothing more. A guest on another machine still receives what is under way."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def shut(self) -> None:
        """Make the reader end, which reports that the guest has left."""
        with contextlib.suppress(OSError):  # it has left already
            self._socket.shutdown(socket.SHUT_RDWR)


class SharedLink(WorkerLink):
    """The owner's link and those of the guests. Events go to whoever submitted their request."""

    def __init__(self, connection: socket.socket, door: socket.socket) -> None:
        super().__init__(connection)
        self._door = door
        self._guests: dict[str, Guest] = {}
        self._had_guests = False

    def open_door(self, receive: Callable[[Order | GuestLeft], None]) -> None:
        """Admit guests from now on. Their orders go to `receive`, each guest's on a thread of its own."""
        threading.Thread(target=self._let_in, args=(receive,), name="door", daemon=True).start()

    def send_events(self, emissions: list[Emission]) -> None:
        if not self._had_guests:
            super().send_events(emissions)
            return
        parts: dict[str, list[Emission]] = {}
        for emission in emissions:
            parts.setdefault(guest_of(emission[0]), []).append(emission)
        for name, part in parts.items():
            if not name:
                super().send_events(part)
            elif (guest := self._guests.get(name)) is not None:
                try:
                    guest.send_events(part)
                except LinkLost:
                    continue  # the guest's reader reports that it has left

    def drain(self, seconds: float) -> None:
        """Wait at most `seconds` until everything is sent, to guests too, then tell the guests that nothing more
        comes."""
        deadline = time.monotonic() + seconds
        super().drain(seconds)
        for guest in list(self._guests.values()):
            guest.drain(max(0.0, deadline - time.monotonic()))
            guest.say_no_more()

    def close(self) -> None:
        super().close()
        self._door.close()
        for guest in list(self._guests.values()):
            guest.shut()

    def _let_in(self, receive: Callable[[Order | GuestLeft], None]) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._door, GUEST_BYTES, AT_ONCE)
            except OSError:
                return
            if not data or not descriptors:
                return
            os.set_inheritable(descriptors[0], False)
            name, guest = str(int.from_bytes(data, "big")), Guest(socket.socket(fileno=descriptors[0]))
            self._guests[name] = guest
            self._had_guests = True
            serving = threading.Thread(target=self._serve, args=(name, guest, receive), daemon=True)
            serving.start()

    def _serve(self, name: str, guest: Guest, receive: Callable[[Order | GuestLeft], None]) -> None:
        try:
            for order in guest.orders():
                if isinstance(order, Submit | Cancel) and guest_of(order.id) == name:
                    receive(order)
        except FrameError as error:
            log.error("%s Its requests are ended.", error)
        finally:
            del self._guests[name]
            guest.close()
            receive(GuestLeft(name))

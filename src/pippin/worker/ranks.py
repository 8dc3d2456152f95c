"""The sockets between rank 0 of a group and each other rank, with a heartbeat.

MLX's own connections notice late, or never, that a rank has gone (JACCL waits for ever). So each end of these sockets
sends something every second, and a rank that hears nothing for some seconds ends, which ends the group. A rank that
connects must prove that it knows the group's secret, and so must rank 0 (HMAC-SHA-256 over random numbers of both).
"""

import hmac
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pippin.core.link import FrameBuffer, FrameError, frame
from pippin.core.models import RankSpec

log = logging.getLogger(__name__)

BEAT: Final = 1.0  # seconds between heartbeats
SILENT: Final = 6.0  # seconds without one after which a rank counts as lost
MEET_WITHIN: Final = 120.0  # seconds for all ranks to connect
GREET_WITHIN: Final = 10.0  # seconds for one connection to authenticate
LOOK_EVERY: Final = 0.05  # seconds between checks for authenticated connections
NONCE: Final = 32  # bytes
DIGEST: Final = 32
READ_SIZE: Final = 1 << 18

Lost = Callable[[str], None]
"""Called with a sentence when a rank is lost, on a thread of the link."""


class NotMet(Exception):
    """The ranks did not find each other; the message says who is missing."""


class _End:
    """The connection to one other rank."""

    def __init__(self, connection: socket.socket, name: str, lost: Lost) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._name = name
        self._lost = lost
        self._sending = threading.Lock()
        self._heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._last = time.monotonic()
        for work in (self._read, self._beat):
            threading.Thread(target=work, name=f"{name} {work.__name__}", daemon=True).start()

    def tell(self, payload: bytes) -> None:
        with self._sending:
            try:
                self._socket.sendall(frame(payload))
            except OSError as error:
                self._lost(f"{self._name} is gone ({error.strerror}).")

    def hear(self) -> bytes:
        return self._heard.get()

    def close(self) -> None:
        with suppress(OSError):  # the other end may have gone
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        buffer = FrameBuffer()
        with suppress(OSError, FrameError):
            while data := self._socket.recv(READ_SIZE):
                self._last = time.monotonic()
                for payload in buffer.feed(data):
                    if payload:  # an empty frame is a heartbeat
                        self._heard.put(payload)
        self._socket.close()
        self._lost(f"{self._name} is gone.")

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT)
            if time.monotonic() - self._last > SILENT:
                self._lost(f"{self._name} has been silent for {SILENT:g} seconds.")
                return
            # Otherwise a send is under way, which is a sign of life too.
            if self._sending.acquire(blocking=False):
                try:
                    self._socket.sendall(frame(b""))
                except OSError:
                    return  # the reader reports it
                finally:
                    self._sending.release()


class GroupLink:
    """The link to the other ranks; see `RankLink` of the language engine."""

    def __init__(self, ends: list[_End]) -> None:
        self._ends = ends

    def tell(self, payload: bytes) -> None:
        for end in self._ends:
            end.tell(payload)

    def hear(self) -> list[bytes]:
        return [end.hear() for end in self._ends]

    def close(self) -> None:
        for end in self._ends:
            end.close()


def meet(spec: RankSpec, lost: Lost) -> GroupLink:
    """Connect to the other ranks. Raises `NotMet`."""
    host, _, port = spec.control.rpartition(":")
    deadline = time.monotonic() + MEET_WITHIN
    try:
        if spec.rank:
            return GroupLink([_End(_connect((host, int(port)), spec, deadline), "Rank 0", lost)])
        found = _accept((host, int(port)), spec, deadline)
    except OSError as error:
        raise NotMet(
            f"Rank {spec.rank} cannot use the address {spec.control}: {error.strerror}. The next start takes another "
            "port."
        ) from error
    return GroupLink([_End(found[rank], f"Rank {rank}", lost) for rank in sorted(found)])


def _accept(address: tuple[str, int], spec: RankSpec, deadline: float) -> dict[int, socket.socket]:
    """Accept connections from all other ranks. Each is authenticated on a thread of its own, so that a stranger who
    says nothing delays nobody."""
    greeted: queue.SimpleQueue[tuple[int, socket.socket]] = queue.SimpleQueue()
    found: dict[int, socket.socket] = {}
    with socket.create_server(address, backlog=spec.size) as server:
        server.settimeout(LOOK_EVERY)
        while len(found) < spec.size - 1:
            if time.monotonic() > deadline:
                names = ", ".join(str(rank) for rank in range(1, spec.size) if rank not in found)
                raise NotMet(f"Rank {names} did not connect within {MEET_WITHIN:g} seconds.")
            with suppress(TimeoutError):
                connection, _ = server.accept()
                threading.Thread(
                    target=_greet, args=(connection, spec, greeted), name="greet", daemon=True
                ).start()
            while not greeted.empty():
                rank, connection = greeted.get()
                found.setdefault(rank, connection)
    return found


def _greet(
    connection: socket.socket, spec: RankSpec, greeted: "queue.SimpleQueue[tuple[int, socket.socket]]"
) -> None:
    """Greet a connection; a rank of this group proves to know the secret."""
    connection.settimeout(GREET_WITHIN)
    ours = secrets.token_bytes(NONCE)
    with suppress(OSError):
        connection.sendall(ours)
        said = _receive(connection, 1 + NONCE + DIGEST)
        rank, theirs, proof = said[:1], said[1 : 1 + NONCE], said[1 + NONCE :]
        known = hmac.compare_digest(proof, _proof(spec, b"joins", rank, ours, theirs))
        if known and 0 < rank[0] < spec.size:
            connection.sendall(_proof(spec, b"leads", rank, theirs, ours))
            greeted.put((rank[0], connection))
            return
    log.warning("Somebody who is no rank of this group connected, and was refused.")
    connection.close()


def _connect(address: tuple[str, int], spec: RankSpec, deadline: float) -> socket.socket:
    """Connect to rank 0: prove to it that this rank knows the secret, and check its proof. Raises `NotMet` or
    `OSError`."""
    connection = None
    while connection is None:
        try:
            connection = socket.create_connection(address, timeout=GREET_WITHIN)
        except OSError as error:  # rank 0 does not listen yet
            if time.monotonic() > deadline:
                raise NotMet(f"Rank 0 cannot be reached at {spec.control}: {error.strerror}.") from error
            time.sleep(0.05)
    rank, ours = bytes([spec.rank]), secrets.token_bytes(NONCE)
    try:
        theirs = _receive(connection, NONCE)
        connection.sendall(rank + ours + _proof(spec, b"joins", rank, theirs, ours))
        if not hmac.compare_digest(_receive(connection, DIGEST), _proof(spec, b"leads", rank, ours, theirs)):
            raise NotMet(f"Whoever listens at {spec.control} does not know the secret of this group.")
    except BaseException:
        connection.close()
        raise
    return connection


def _proof(spec: RankSpec, *parts: bytes) -> bytes:
    return hmac.digest(spec.secret.encode(), b"".join(parts), "sha256")


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError(0, "it hung up")
        data += piece
    return bytes(data)

"""A worker's end of the links to several API processes."""

import socket
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from pippin.core.events import PartDelta
from pippin.core.link import GUEST_BYTES, Cancel, FrameBuffer, LoadWeights, Order, Output, Submit, frame
from pippin.core.tasks import Tokenize
from pippin.worker import guests
from pippin.worker.guests import SharedLink
from pippin.worker.loop import GuestLeft


class Shared:
    """A shared link, and the sockets at its other ends."""

    def __init__(self) -> None:
        self.owner, ours = socket.socketpair()
        self.door, entrance = socket.socketpair()
        self.link = SharedLink(ours, entrance)
        self.came: list[Order | GuestLeft] = []
        self.guests: list[socket.socket] = []
        self.link.open_door(self.came.append)

    def guest(self, number: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.door, [number.to_bytes(GUEST_BYTES, "big")], [theirs.fileno()])
        self.guests.append(ours)
        until(lambda: str(number) in self.link._guests)
        return ours

    def close(self) -> None:
        for end in (self.owner, self.door, *self.guests):
            end.close()
        until(lambda: not self.link._guests)
        self.link.close()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


def delta(id: str, text: str = "x") -> tuple[str, PartDelta]:
    return id, PartDelta(0, 0, text, completed=1)


def told(connection: socket.socket) -> list[tuple[str, str]]:
    """The ids and texts of one frame."""
    connection.settimeout(10)
    buffer = FrameBuffer()
    while not (payloads := list(buffer.feed(connection.recv(1 << 16)))):
        pass
    output = msgspec.msgpack.decode(payloads[0], type=Output)
    return [(name, event.text) for name, event in output.events if isinstance(event, PartDelta)]


def sent(connection: socket.socket, order: Order) -> None:
    connection.sendall(frame(msgspec.msgpack.encode(order)))


def test_events_go_to_whose_requests_they_are_of(shared: Shared) -> None:
    first, second = shared.guest(1), shared.guest(2)
    shared.link.send_events([delta("a#1"), delta("b#1.1"), delta("c#2.1"), delta("d#1.2"), delta("e#9.1")])
    assert told(shared.owner) == [("a#1", "x")]
    assert told(first) == [("b#1.1", "x"), ("d#1.2", "x")]
    assert told(second) == [("c#2.1", "x")]


def test_a_guest_may_submit_and_cancel_its_own_requests_and_nothing_else(shared: Shared) -> None:
    guest = shared.guest(7)
    mine = Submit("mine#7.1", Tokenize("words"))
    for order in (LoadWeights(), Cancel("owners#1"), Cancel("anothers#8.1"), mine, Cancel("mine#7.1")):
        sent(guest, order)
    until(lambda: len(shared.came) == 2)
    assert shared.came == [mine, Cancel("mine#7.1")]


def test_a_guest_that_leaves_is_told_once(shared: Shared) -> None:
    guest = shared.guest(3)
    guest.close()
    until(lambda: shared.came == [GuestLeft("3")])
    shared.link.send_events([delta("late#3.1"), delta("a#1")])
    assert told(shared.owner) == [("a#1", "x")]


def test_a_guest_that_sends_no_frames_is_given_up_alone(shared: Shared) -> None:
    guest, other = shared.guest(3), shared.guest(4)
    guest.sendall(b"\x00\x00\x00\x04junk")
    until(lambda: shared.came == [GuestLeft("3")])
    shared.link.send_events([delta("a#4.1")])
    assert told(other) == [("a#4.1", "x")]


def test_a_guest_that_reads_nothing_holds_up_nobody(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "MOST_WAITING", 100)
    deaf, other = shared.guest(1), shared.guest(2)
    began = time.monotonic()
    for number in range(3000):
        shared.link.send_events([delta(f"r{number}#1.{number}", "y" * 2000)])
    until(lambda: GuestLeft("1") in shared.came)
    shared.link.send_events([delta("a#2.1")])
    assert told(other) == [("a#2.1", "x")]
    assert time.monotonic() - began < 10
    deaf.close()

"""Links of several API processes over one stream: bytes cross for each alone; who does not read is left behind."""

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from pippin.core.link import GUEST_BYTES, OWNER, PARCELS, FrameError, ParcelBuffer, parcel
from pippin.runtime.workers import carrier
from pippin.runtime.workers.carrier import Carrier
from pippin.worker.far import Carrying


@dataclass
class Ends:
    """The other ends of what a carrier has: the owner's link, the door, and the worker's sockets far away."""

    owner: socket.socket
    door: socket.socket
    far_owner: socket.socket
    far_door: socket.socket
    opened: list[socket.socket]

    def guest(self, number: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.door, [number.to_bytes(GUEST_BYTES, "big")], [theirs.fileno()])
        ours.settimeout(10)
        self.opened.append(ours)
        return ours

    async def far_guest(self) -> tuple[int, socket.socket]:
        data, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, self.far_door, GUEST_BYTES, 1)
        far = socket.socket(fileno=descriptors[0])
        far.settimeout(10)
        self.opened.append(far)
        return int.from_bytes(data, "big"), far


def carried(check: Callable[[Ends], Awaitable[None]]) -> None:
    """Both ends of a carrier, with a socket pair in place of the command's input and output."""

    async def run() -> None:
        pairs = [socket.socketpair() for _ in range(5)]
        (owner, own), (door, entrance), (near, far), (far_owner, far_own), (far_entrance, far_door) = pairs
        opened: list[socket.socket] = []
        said = os.dup(far.fileno())  # which the other end closes
        carrying_far = Carrying(far.fileno(), said, far_own, far_entrance)
        for each in (own, near):
            each.setblocking(False)
        found = Carrier(
            await asyncio.open_connection(sock=own), entrance, await asyncio.open_connection(sock=near)
        )
        for each in (owner, far_owner, far_door):
            each.settimeout(10)
        carrying = asyncio.create_task(found.run())
        try:
            await check(Ends(owner, door, far_owner, far_door, opened))
        finally:
            for each in (owner, far_owner, *opened):
                each.close()
            far.shutdown(socket.SHUT_RDWR)
            await asyncio.wait({carrying}, timeout=10)
            await asyncio.to_thread(carrying_far.finish, 10.0)
            for each in (socket_ for pair in pairs for socket_ in pair):
                each.close()

    asyncio.run(run())


async def heard(link: socket.socket, count: int) -> bytes:
    came = b""
    while len(came) < count and (data := await asyncio.to_thread(link.recv, 1 << 16)):
        came += data
    return came


def test_each_link_carries_its_own_bytes_both_ways() -> None:
    async def check(ends: Ends) -> None:
        guests = [ends.guest(1), ends.guest(2)]
        far: dict[int, socket.socket] = {}
        for number, guest in enumerate(guests, start=1):
            guest.sendall(b"%d" % number * 100_000)
            whose, link = await ends.far_guest()
            far[whose] = link
        ends.owner.sendall(b"0" * 10)
        assert await heard(ends.far_owner, 10) == b"0" * 10
        for number, guest in enumerate(guests, start=1):
            assert await heard(far[number], 100_000) == b"%d" % number * 100_000
            threading.Thread(target=far[number].sendall, args=(b"x%d" % number * 100_000,)).start()
            assert await heard(guest, 200_000) == b"x%d" % number * 100_000
        guests[0].close()  # which its worker reads, and nobody else
        assert await heard(far[1], 1) == b""
        guests[1].sendall(b"on")
        assert await heard(far[2], 2) == b"on"

    carried(check)


def test_a_guest_that_reads_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carrier, "UNREAD", 1 << 20)

    async def check(ends: Ends) -> None:
        deaf, other = ends.guest(1), ends.guest(2)
        far: dict[int, socket.socket] = {}
        for guest in (deaf, other):
            guest.sendall(b"hello")
            whose, link = await ends.far_guest()
            far[whose] = link
        assert await heard(far[1], 5) == await heard(far[2], 5) == b"hello"
        await asyncio.to_thread(lambda: [far[1].sendall(b"x" * 65536) for _ in range(100)])
        assert await heard(far[1], 1) == b""  # which the worker reads as the guest's end
        far[2].sendall(b"on")
        assert await heard(other, 2) == b"on"

    carried(check)


def test_the_end_of_the_owners_link_is_the_end_of_all() -> None:
    async def check(ends: Ends) -> None:
        guest = ends.guest(1)
        guest.sendall(b"hello")
        _, far = await ends.far_guest()
        ends.owner.close()
        assert await heard(ends.far_owner, 1) == b""
        assert await heard(far, 10) == b"hello"

    carried(check)


def test_what_is_no_parcel_is_refused() -> None:
    buffer = ParcelBuffer()
    stream = parcel(OWNER, b"") + parcel(7, b"abc")
    cut = [list(buffer.feed(stream[place : place + 5])) for place in range(0, len(stream), 5)]
    assert [each for part in cut for each in part] == [(OWNER, b""), (7, b"abc")]
    with pytest.raises(FrameError, match="more than the limit"):
        list(buffer.feed(PARCELS * 3))

"""Carries the links of several API processes over the single stream of a command that reaches a worker elsewhere.

Run as `python -m` this module with the descriptor of the door through which guests come in, and the command; the
owner's link is its input. It runs the command, whose input and output are the stream, and exits when the command does.
So tokens need not pass through the first API process. A bridge of a cluster is already a process of Pippin's and has a
`Carrier` inside. `worker/far.py` is the other end.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

from pippin.core.link import (
    GUEST_BYTES,
    LARGEST_PARCEL,
    OWNER,
    PARCELS,
    FrameError,
    ParcelBuffer,
    parcel,
)

DOOR: Final = "@door"
"""Placeholder in a worker's command for the number of the door's descriptor."""
UNREAD: Final = 64 << 20
"""Bytes queued for a guest that does not read. Beyond that its link is ended, because the others must not wait for
it."""
AT_ONCE: Final = 4  # guests in one message
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def carried(command: Sequence[str]) -> tuple[str, ...]:
    """The command that carries the links of all API processes over the stream of `command`."""
    return (sys.executable, "-m", __name__, DOOR, *command)


class Carrier:
    """Both directions of all links, until the owner's link or the stream ends."""

    def __init__(self, owner: Stream, door: socket.socket, far: Stream) -> None:
        self._links: dict[int, Stream] = {OWNER: owner}
        self._door = door
        self._far = far
        self._reading: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Carry until the worker or its owner has ended."""
        loop = asyncio.get_running_loop()
        self._far[1].write(PARCELS)
        self._door.setblocking(False)
        loop.add_reader(self._door, self._let_in)
        self._reading[OWNER] = asyncio.create_task(self._send(OWNER))
        try:
            await self._receive()
        finally:
            loop.remove_reader(self._door)
            for task in self._reading.values():
                task.cancel()
            for _, writer in (*self._links.values(), self._far):
                with contextlib.suppress(OSError):
                    writer.close()
                    await writer.wait_closed()

    def _let_in(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._door, GUEST_BYTES, AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not descriptors:
            asyncio.get_running_loop().remove_reader(self._door)
            return
        whose, link = int.from_bytes(data, "big"), socket.socket(fileno=descriptors[0])
        self._reading[whose] = asyncio.create_task(self._welcome(whose, link))

    async def _welcome(self, whose: int, link: socket.socket) -> None:
        link.setblocking(False)
        self._links[whose] = await asyncio.open_connection(sock=link, limit=LARGEST_PARCEL)
        await self._send(whose)

    async def _send(self, whose: int) -> None:
        """Forward a link's orders until the link ends, then announce its end. The end of the owner's link ends the
        stream."""
        reader, out = self._links[whose][0], self._far[1]
        with contextlib.suppress(OSError):
            while data := await reader.read(LARGEST_PARCEL):
                out.write(parcel(whose, data))
                await out.drain()
        with contextlib.suppress(OSError):
            out.write(parcel(whose, b""))
            if whose == OWNER:
                out.close()
        self._reading.pop(whose, None)
        if whose != OWNER:
            self._part(whose)

    async def _receive(self) -> None:
        """Deliver what the worker sends, until the stream ends or is malformed."""
        buffer = ParcelBuffer()
        with contextlib.suppress(OSError, FrameError):
            while data := await self._far[0].read(LARGEST_PARCEL):
                for whose, content in buffer.feed(data):
                    await self._give(whose, content)

    async def _give(self, whose: int, content: bytes) -> None:
        link = self._links.get(whose)
        if link is None or link[1].transport.is_closing():
            return  # the guest has left
        if not content:
            self._part(whose)
            return
        link[1].write(content)
        if whose == OWNER:
            with contextlib.suppress(OSError):
                await link[1].drain()
        elif link[1].transport.get_write_buffer_size() > UNREAD:
            link[1].transport.abort()  # ends its reader, which tells the worker

    def _part(self, whose: int) -> None:
        """Close a link on this side."""
        if (link := self._links.pop(whose, None)) is not None:
            link[1].close()


async def run(link: socket.socket, door: socket.socket, command: Sequence[str]) -> int:
    """Run the command and carry its stream; returns its exit status, or a negative signal number."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=theirs.fileno(), stdout=theirs.fileno()
        )
    link.setblocking(False)
    owner = await asyncio.open_connection(sock=link, limit=LARGEST_PARCEL)
    await Carrier(owner, door, await asyncio.open_connection(sock=ours, limit=LARGEST_PARCEL)).run()
    return await process.wait()


def end_as(status: int) -> None:
    """End this process as its command ended, so that the waiting parent sees the same exit status or signal."""
    if status < 0:
        resource.setrlimit(
            resource.RLIMIT_CORE, (0, 0)
        )  # the command may have dumped core; this process need not
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    sys.exit(status)


def main(arguments: Sequence[str]) -> int:
    door, *command = arguments
    link = socket.socket(fileno=os.dup(0))
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # keep a single descriptor of the link, so that its end is noticed
        os.dup2(nowhere, descriptor)
    return asyncio.run(run(link, socket.socket(fileno=int(door)), command))


if __name__ == "__main__":
    end_as(main(sys.argv[1:]))

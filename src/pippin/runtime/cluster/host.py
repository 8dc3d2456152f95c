"""A bridge's end on the machine that Ray chose: an actor that runs one worker and connects its link to the bridge."""

import asyncio
import socket
import sys
from asyncio.subprocess import Process

from msgspec import Struct

from pippin.runtime.cluster.pairing import Identity
from pippin.runtime.cluster.pumps import LINK, LOG, pump, watch
from pippin.runtime.workers.stopped import until_stopped


class Ticket(Struct, frozen=True):
    """What the actor needs to run a worker for a server elsewhere."""

    address: str  # where the bridge listens
    port: int
    certificate: str  # of the bridge, PEM
    model: str
    path: str  # of the model's folder on the server


class Host:
    """The actor. It runs one worker, then ends."""

    def __init__(self) -> None:
        self._identity = Identity.new()

    async def introduce(self) -> tuple[str, str]:
        """This side's certificate (PEM) and the machine's name."""
        return self._identity.certificate, socket.gethostname()

    async def run(self, ticket: Ticket) -> int:
        """Run the worker to its end and return its exit status. The worker exits when the bridge does."""
        context = self._identity.speaks_to(ticket.certificate)
        link = await asyncio.open_connection(ticket.address, ticket.port, ssl=context)
        log = await asyncio.open_connection(ticket.address, ticket.port, ssl=context)
        for (_, writer), word in ((link, LINK), (log, LOG)):
            watch(writer)
            writer.write(word)
            await writer.drain()
        ours, theirs = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pippin", "worker", ticket.model, ticket.path),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        assert process.stderr is not None
        own = await asyncio.open_connection(sock=ours)
        watching = asyncio.create_task(_end_if_stopped(process))
        try:
            await asyncio.gather(pump(link[0], own[1]), pump(own[0], link[1]), pump(process.stderr, log[1]))
            return await process.wait()
        finally:
            watching.cancel()


async def _end_if_stopped(process: Process) -> None:
    """End a process that stays stopped, as the server does on its own machine."""
    if await until_stopped(process.pid):
        process.kill()
